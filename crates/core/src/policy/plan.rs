//! The decisions of a policy that need neither budget nor breaker.
//!
//! A call asks budget and breaker when it plans its retry, because it is about to wait for it. An event may
//! wait for hours, so its engine asks when the retry is about to start. Both use the plan made here.

use std::fmt;
use std::time::Duration;

use super::PolicySettings;
use crate::backoff::Backoff;
use crate::disposition::{Disposition, Fault, RetryAdvice, RetryClass};
use crate::jitter::Jitter;
use crate::moment::Moment;
use crate::observe::Outcome;
use crate::random::RandomSource;
use crate::report::StopReason;
use crate::run::{RetryState, Verdict};

impl PolicySettings {
    /// Plans what follows an attempt: a function of its arguments.
    ///
    /// It never plans a wait that would end after the deadline or after the policy's total time; it stops
    /// instead.
    pub fn plan(
        &self,
        history: &RetryState,
        outcome: Outcome,
        now: Moment,
        random: &mut impl RandomSource,
    ) -> Verdict {
        let again = match outcome {
            Outcome::Classified(Disposition::Ok) => return Verdict::Done,
            Outcome::Classified(Disposition::Drop) => return Verdict::Drop,
            Outcome::Classified(Disposition::Permanent(_)) => return Verdict::Dead(StopReason::Permanent),
            Outcome::Unclassified => return Verdict::Dead(StopReason::Unclassified),
            Outcome::Classified(Disposition::Retry(again)) => again,
            Outcome::TimedOut => TIMED_OUT,
        };
        if let Some(reason) = self.forbids(again) {
            return Verdict::Dead(reason);
        }
        // The time limit that ended the attempt is the reason, also for the last attempt.
        if outcome == Outcome::TimedOut
            && let Some(reason) = self.too_late(history, now)
        {
            return Verdict::Dead(reason);
        }
        if history.attempts >= history.attempts_max {
            return Verdict::Dead(StopReason::AttemptsSpent);
        }
        let at = now + self.delay(history, again, random);
        self.too_late(history, at).map_or(Verdict::RetryAt(at), Verdict::Dead)
    }

    /// The outcome with the downstream's requested wait shortened to `not_before_max`. Used for events: they
    /// can wait, so a longer request is no reason to stop.
    #[must_use]
    pub fn clamped(&self, outcome: Outcome) -> Outcome {
        match outcome {
            Outcome::Classified(Disposition::Retry(again))
                if again.not_before > Some(self.not_before_max) =>
            {
                Outcome::Classified(Disposition::Retry(RetryAdvice {
                    not_before: Some(self.not_before_max),
                    ..again
                }))
            }
            outcome => outcome,
        }
    }

    /// The reason why no layer should retry after this, whatever attempts are left: an outer retry has to
    /// learn it from the last attempt too.
    fn forbids(&self, again: RetryAdvice) -> Option<StopReason> {
        if again.not_before > Some(self.not_before_max) {
            return Some(StopReason::NotBeforeTooFar);
        }
        let unpaid = again.class == RetryClass::Overload && self.budget.is_none();
        unpaid.then_some(StopReason::BudgetSpent)
    }

    /// The wait before the next attempt.
    fn delay(&self, history: &RetryState, again: RetryAdvice, random: &mut impl RandomSource) -> Duration {
        let Self { backoff, jitter, .. } = self;
        let RetryState { attempts, previous, .. } = *history;
        match again.not_before {
            None => jitter.draw(backoff, attempts, previous, random),
            Some(floor) => jitter.draw_from(floor, backoff, attempts, previous, random),
        }
    }

    /// The reason why an attempt at `at` would be too late, if it would.
    pub(crate) fn too_late(&self, history: &RetryState, at: Moment) -> Option<StopReason> {
        if history.deadline.is_some_and(|deadline| at >= deadline) {
            return Some(StopReason::Deadline);
        }
        let limit = self.time.zip(history.started).map(|(time, started)| started + time);
        limit.is_some_and(|limit| at >= limit).then_some(StopReason::TimeSpent)
    }

    /// The longest time until the last retry can still start.
    ///
    /// It assumes the longest wait each time: the ceiling of the backoff, or the longest wait that the
    /// downstream may ask for plus the tenth that spreads it; and it assumes that every attempt takes its
    /// time-out. It does not include the time that an event waits for its turn.
    #[must_use]
    pub fn horizon(&self) -> Horizon {
        let retries = self.attempts.saturating_sub(1);
        let asked = self.not_before_max.saturating_add(self.not_before_max / 10);
        let attempts = self.attempt_time.unwrap_or_default().saturating_mul(retries);
        let cap = self.backoff.cap();
        let mut waits = Duration::ZERO;
        for n in 1..=retries {
            let ceiling = self.backoff.ceiling(n);
            // From here on all waits are equal, or there are too many to add up.
            if ceiling >= cap || n > 10_000 {
                waits = waits.saturating_add(cap.max(asked).saturating_mul(retries - n + 1));
                break;
            }
            waits = waits.saturating_add(ceiling.max(asked));
        }
        Horizon { retries, waits, asked, attempts, limit: self.time }
    }

    /// These settings with the overrides of one event.
    #[must_use]
    pub fn tuned(&self, tuning: &Tuning) -> Self {
        let Tuning { attempts, backoff, jitter, time, attempt_time } = tuning;
        let mut settings = self.clone();
        settings.attempts = attempts.unwrap_or(settings.attempts);
        settings.backoff = backoff.clone().unwrap_or(settings.backoff);
        settings.jitter = jitter.unwrap_or(settings.jitter);
        settings.time = time.or(settings.time);
        settings.attempt_time = attempt_time.or(settings.attempt_time);
        settings
    }
}

/// The overrides of one event: `None` leaves the queue's setting unchanged.
///
/// ```
/// use redrive_core::policy::Tuning;
///
/// let only_once = Tuning { attempts: Some(1), ..Tuning::default() };
/// ```
#[derive(Debug, Clone, PartialEq, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(default, deny_unknown_fields))]
pub struct Tuning {
    /// The most attempts.
    pub attempts: Option<u32>,
    /// How the waits grow.
    pub backoff: Option<Backoff>,
    /// How the waits are spread.
    pub jitter: Option<Jitter>,
    /// The total time.
    #[cfg_attr(feature = "serde", serde(with = "crate::config::optional"))]
    pub time: Option<Duration>,
    /// The time limit of one attempt.
    #[cfg_attr(feature = "serde", serde(with = "crate::config::optional"))]
    pub attempt_time: Option<Duration>,
}

/// The longest time until the last retry can still start, and the terms of the sum.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Horizon {
    /// The number of retries.
    pub retries: u32,
    /// All waits before them, each at its longest.
    pub waits: Duration,
    /// The longest wait that the downstream may ask for before each retry, plus the tenth.
    pub asked: Duration,
    /// All attempts before the last, each at its time-out; zero if there is no time-out.
    pub attempts: Duration,
    /// The policy's total time, if it has one.
    pub limit: Option<Duration>,
}

impl Horizon {
    /// The sum, at most the limit.
    #[must_use]
    pub fn total(&self) -> Duration {
        let sum = self.waits.saturating_add(self.attempts);
        self.limit.map_or(sum, |limit| limit.min(sum))
    }
}

impl fmt::Display for Horizon {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { retries, waits, asked, attempts, limit } = self;
        write!(f, "{retries} waits of at most {waits:?} together")?;
        if !asked.is_zero() {
            write!(f, " (`not_before_max` lets the other side ask for up to {asked:?} each time)")?;
        }
        if !attempts.is_zero() {
            write!(f, " + {attempts:?} of attempts")?;
        }
        match limit {
            Some(limit) if *limit < waits.saturating_add(*attempts) => {
                write!(f, ", within {limit:?} in total")
            }
            _ => Ok(()),
        }?;
        write!(f, " = {:?}", self.total())
    }
}

/// The meaning of our own time-out: a temporary fault with an unknown outcome.
const TIMED_OUT: RetryAdvice = match Fault::transient() {
    Fault::Retry(again) => again,
    Fault::Permanent(_) => panic!("transient is retryable"),
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_horizon_is_the_sum_of_the_longest_waits() {
        let secs = Duration::from_secs;
        let backoff = Backoff::Exponential { base: secs(1), factor: 2.0, cap: secs(8) };
        let settings = PolicySettings {
            attempts: 6,
            backoff,
            not_before_max: Duration::ZERO,
            attempt_time: Some(secs(10)),
            ..PolicySettings::default()
        };
        // 1 + 2 + 4 + 8 + 8, and five attempts before the last.
        assert_eq!(settings.horizon().total(), secs(23 + 50));
        let limited = PolicySettings { time: Some(secs(30)), ..settings.clone() };
        assert_eq!(limited.horizon().total(), secs(30));
        assert!(limited.horizon().to_string().contains("within 30s in total = 30s"));
        let asked = PolicySettings { not_before_max: secs(100), ..settings };
        assert_eq!(asked.horizon().total(), secs(5 * 110 + 50));
        let endless = PolicySettings { attempts: u32::MAX, ..PolicySettings::default() };
        assert!(endless.horizon().total() > secs(300 * 4_000_000_000));
    }

    #[test]
    fn tuning_changes_what_it_names() {
        let settings = PolicySettings::default();
        assert_eq!(settings.tuned(&Tuning::default()), settings);
        let once = settings.tuned(&Tuning { attempts: Some(1), ..Tuning::default() });
        assert_eq!((once.attempts, &once.backoff), (1, &settings.backoff));
    }
}
