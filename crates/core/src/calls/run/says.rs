//! What an outcome says about the downstream's health and load, about the effect, and about a retry.

use crate::disposition::{Disposition, Executed, RetryAdvice, RetryClass};
use crate::limit::LoadSignal;
use crate::observe::Outcome;

/// What an attempt says about the downstream's health.
pub(crate) enum Health {
    Well,
    Unwell,
    Unsaid,
}

/// A permanent error counts as healthy: a downstream that answers is alive. An unclassified error counts as
/// neither. A caller's deadline says nothing about the downstream: otherwise one impatient caller could open
/// the breaker for all callers.
pub(crate) const fn health(outcome: Outcome, hurried: bool) -> Health {
    match outcome {
        Outcome::Classified(Disposition::Ok | Disposition::Permanent(_) | Disposition::Drop) => Health::Well,
        Outcome::Classified(Disposition::Retry(_)) => Health::Unwell,
        Outcome::TimedOut if !hurried => Health::Unwell,
        Outcome::TimedOut | Outcome::Unclassified => Health::Unsaid,
    }
}

/// What an attempt says about the downstream's load.
pub(crate) const fn load(outcome: Outcome, hurried: bool) -> LoadSignal {
    match outcome {
        Outcome::TimedOut if !hurried => LoadSignal::TooMuch,
        Outcome::Classified(Disposition::Retry(RetryAdvice { class: RetryClass::Overload, .. })) => {
            LoadSignal::TooMuch
        }
        Outcome::Classified(Disposition::Ok) => LoadSignal::Fine,
        _ => LoadSignal::Unsaid,
    }
}

pub(crate) fn executed(outcome: Outcome) -> Executed {
    match outcome {
        Outcome::Classified(Disposition::Retry(again)) => again.executed,
        Outcome::Classified(Disposition::Permanent(executed)) => executed,
        Outcome::Classified(Disposition::Ok | Disposition::Drop) => Executed::No,
        Outcome::Unclassified | Outcome::TimedOut => Executed::Unknown,
    }
}

pub(super) fn class(outcome: Outcome) -> RetryClass {
    match outcome {
        Outcome::Classified(Disposition::Retry(again)) => again.class,
        _ => RetryClass::Transient,
    }
}
