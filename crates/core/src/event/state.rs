//! The states of an event, the reasons why its attempts run, and the reasons why it becomes a dead letter.

use crate::report::StopReason;

/// Declares an enum whose variants each have a stored word, in one table.
macro_rules! words {
    ($(#[$doc:meta])* $name:ident { $($(#[$variant_doc:meta])* $variant:ident = $word:literal,)* }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[non_exhaustive]
        pub enum $name {
            $($(#[$variant_doc])* $variant,)*
        }

        impl $name {
            /// All variants, in the order of the docs.
            pub const ALL: &[$name] = &[$(Self::$variant,)*];

            /// The word used in the store, logs and metrics.
            #[must_use]
            pub const fn as_str(self) -> &'static str {
                match self {
                    $(Self::$variant => $word,)*
                }
            }

            /// The variant with this word.
            #[must_use]
            pub fn from_word(word: &str) -> Option<Self> {
                match word {
                    $($word => Some(Self::$variant),)*
                    _ => None,
                }
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(self.as_str())
            }
        }
    };
}

words! {
    /// The state of an event.
    State {
        /// It may run.
        Ready = "ready",
        /// It waits for its due time, or for an earlier event of its key.
        Waiting = "waiting",
        /// An attempt is running.
        Running = "running",
        /// It waits behind a dead letter of its key.
        Parked = "parked",
        /// An operator holds it back.
        Quarantined = "quarantined",
        /// It is a dead letter: it will not be retried by itself.
        Dead = "dead",
        /// It took effect.
        Done = "done",
        /// Its handler dropped it as not needed.
        Dropped = "dropped",
        /// An operator discarded it.
        Discarded = "discarded",
        /// It expired before it could run.
        Expired = "expired",
    }
}

impl State {
    /// Whether it has ended: the event is deleted and only its dedupe record is left.
    #[must_use]
    pub const fn is_ended(self) -> bool {
        matches!(self, Self::Done | Self::Dropped | Self::Discarded | Self::Expired)
    }
}

words! {
    /// Why an attempt runs.
    Mode {
        /// First attempt.
        Live = "live",
        /// An earlier attempt failed.
        Retry = "retry",
        /// An operator redrove a dead letter.
        Redrive = "redrive",
        /// An operator replays an event that was done.
        Replay = "replay",
    }
}

words! {
    /// Why an event will not be retried by itself. A reason that the policy decides has the word of its
    /// [`StopReason`].
    DeadReason {
        /// Its handler reported that another attempt will not help.
        Permanent = "permanent",
        /// Its handler failed with an error that no classifier knew.
        Unclassified = "unclassified",
        /// It used all attempts that the policy allows.
        AttemptsSpent = "attempts_spent",
        /// The next attempt would have been later than the policy's total time allows.
        TimeSpent = "time_spent",
        /// The failure was an overload, and the policy has no budget left for it.
        BudgetSpent = "budget_spent",
        /// The downstream asked for a longer wait than the policy allows.
        NotBeforeTooFar = "not_before_too_far",
        /// Its payload could not be decoded or is invalid; it never ran.
        Undecodable = "undecodable",
        /// Its handler panicked, and the queue treats a panic as permanent.
        Panicked = "panicked",
        /// It crashed the process three times while it ran alone.
        KilledProcess = "killed-process",
        /// An operator killed it.
        Killed = "killed",
        /// It was rerouted to a queue that does not run here.
        Unroutable = "unroutable",
    }
}

impl DeadReason {
    /// The dead-letter reason for the reason why a policy stopped.
    #[must_use]
    pub const fn from_stop(reason: StopReason) -> Self {
        match reason {
            StopReason::Unclassified => Self::Unclassified,
            StopReason::AttemptsSpent => Self::AttemptsSpent,
            StopReason::TimeSpent | StopReason::Deadline => Self::TimeSpent,
            StopReason::BudgetSpent | StopReason::BreakerOpen => Self::BudgetSpent,
            StopReason::NotBeforeTooFar => Self::NotBeforeTooFar,
            StopReason::Permanent
            | StopReason::Succeeded
            | StopReason::Dropped
            | StopReason::Cancelled
            | StopReason::InTransaction => Self::Permanent,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_word_leads_back_to_its_variant() {
        for state in State::ALL {
            assert_eq!(State::from_word(state.as_str()), Some(*state));
        }
        for reason in DeadReason::ALL {
            assert_eq!(DeadReason::from_word(reason.as_str()), Some(*reason));
        }
        assert_eq!(Mode::from_word("nonsense"), None);
    }
}
