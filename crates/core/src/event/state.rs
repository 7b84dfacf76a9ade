//! Where an event is, why its attempts run, and why it died.

use crate::report::StopReason;

/// Declares an enum whose variants have a word each, in one table.
macro_rules! words {
    ($(#[$doc:meta])* $name:ident { $($(#[$variant_doc:meta])* $variant:ident = $word:literal,)* }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[non_exhaustive]
        pub enum $name {
            $($(#[$variant_doc])* $variant,)*
        }

        impl $name {
            /// All of them, as the docs list them.
            pub const ALL: &[$name] = &[$(Self::$variant,)*];

            /// The word used in the store, logs and metrics.
            #[must_use]
            pub const fn as_str(self) -> &'static str {
                match self {
                    $(Self::$variant => $word,)*
                }
            }

            /// The one with this word.
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
    /// Where an event is.
    State {
        /// It may run.
        Ready = "ready",
        /// It waits for its time, or for the one of its key before it.
        Waiting = "waiting",
        /// An attempt is under way.
        Running = "running",
        /// It waits behind a dead letter of its key.
        Parked = "parked",
        /// It is held back by an operator.
        Quarantined = "quarantined",
        /// It will not be retried by itself.
        Dead = "dead",
        /// It took effect.
        Done = "done",
        /// Its handler said that it is not needed.
        Dropped = "dropped",
        /// An operator took it away.
        Discarded = "discarded",
        /// Its time was over before it could run.
        Expired = "expired",
    }
}

impl State {
    /// Whether it has ended: there is no event any more, only the memory of one.
    #[must_use]
    pub const fn is_ended(self) -> bool {
        matches!(self, Self::Done | Self::Dropped | Self::Discarded | Self::Expired)
    }
}

words! {
    /// Why an attempt runs.
    Mode {
        /// For the first time.
        Live = "live",
        /// Because one before failed.
        Retry = "retry",
        /// Because an operator put a dead letter back.
        Redrive = "redrive",
        /// Because an operator wants what is done done again.
        Replay = "replay",
    }
}

words! {
    /// Why an event will not be retried by itself. Those that a policy decides have the words of its
    /// [`StopReason`].
    DeadReason {
        /// Its handler said that trying again will not help.
        Permanent = "permanent",
        /// Its handler failed with an error that no classifier knew.
        Unclassified = "unclassified",
        /// As many attempts were made as the policy allows.
        AttemptsSpent = "attempts_spent",
        /// The next attempt would have been after the policy's time in all.
        TimeSpent = "time_spent",
        /// It was an overload, and the policy has no budget for such.
        BudgetSpent = "budget_spent",
        /// The other side asked to be left alone for longer than the policy is willing to wait.
        NotBeforeTooFar = "not_before_too_far",
        /// Its payload could not be decoded, or is not valid; it never ran.
        Undecodable = "undecodable",
        /// Its handler panicked, and the queue takes that for permanent.
        Panicked = "panicked",
        /// Its handler took the process down with it, three times while it ran alone.
        KilledProcess = "killed-process",
        /// An operator wanted it so.
        Killed = "killed",
        /// It was to go to a queue that nobody runs here.
        Unroutable = "unroutable",
    }
}

impl DeadReason {
    /// The reason for which a policy gave it up.
    #[must_use]
    pub const fn from_stop(reason: StopReason) -> Self {
        match reason {
            StopReason::Unclassified => Self::Unclassified,
            StopReason::AttemptsSpent => Self::AttemptsSpent,
            StopReason::TimeSpent | StopReason::Deadline => Self::TimeSpent,
            StopReason::BudgetSpent | StopReason::BreakerOpen => Self::BudgetSpent,
            StopReason::NotBeforeTooFar => Self::NotBeforeTooFar,
            StopReason::Permanent | StopReason::Succeeded | StopReason::Discarded | StopReason::Cancelled => {
                Self::Permanent
            }
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
