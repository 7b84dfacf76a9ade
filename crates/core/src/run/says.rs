//! What an outcome says: of the other side's health and load, of the effect, and of why another may help.

use crate::disposition::{Again, Class, Disposition, Executed};
use crate::limit::Load;
use crate::observe::Outcome;

/// What an attempt says of the other side's health.
pub(crate) enum Health {
    Well,
    Unwell,
    Unsaid,
}

/// A permanent error is an answer, and whoever answers is alive. An error that nobody knows may be one or
/// not, and a caller who ran out of patience says nothing of the other side: otherwise one in a hurry could
/// open everybody's breaker.
pub(crate) const fn health(outcome: Outcome, hurried: bool) -> Health {
    match outcome {
        Outcome::Said(Disposition::Ok | Disposition::Permanent(_) | Disposition::Discard) => Health::Well,
        Outcome::Said(Disposition::Retry(_)) => Health::Unwell,
        Outcome::TimedOut if !hurried => Health::Unwell,
        Outcome::TimedOut | Outcome::Unclassified => Health::Unsaid,
    }
}

/// What an attempt says of the other side's load.
pub(crate) const fn load(outcome: Outcome, hurried: bool) -> Load {
    match outcome {
        Outcome::TimedOut if !hurried => Load::TooMuch,
        Outcome::Said(Disposition::Retry(Again { class: Class::Overload, .. })) => Load::TooMuch,
        Outcome::Said(Disposition::Ok) => Load::Fine,
        _ => Load::Unsaid,
    }
}

pub(crate) fn executed(outcome: Outcome) -> Executed {
    match outcome {
        Outcome::Said(Disposition::Retry(again)) => again.executed,
        Outcome::Said(Disposition::Permanent(executed)) => executed,
        Outcome::Said(Disposition::Ok | Disposition::Discard) => Executed::No,
        Outcome::Unclassified | Outcome::TimedOut => Executed::Unknown,
    }
}

pub(super) fn class(outcome: Outcome) -> Class {
    match outcome {
        Outcome::Said(Disposition::Retry(again)) => again.class,
        _ => Class::Transient,
    }
}
