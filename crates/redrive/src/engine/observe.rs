//! Telling whoever listens: counters behind the feature `metrics`, logs and spans behind `tracing`. Without
//! them there is a stand-in for each that does nothing. Never a payload.

#[cfg(feature = "metrics")]
mod counted;
#[cfg(not(feature = "metrics"))]
#[path = "observe/uncounted.rs"]
mod counted;

#[cfg(feature = "tracing")]
mod logged;
#[cfg(not(feature = "tracing"))]
#[path = "observe/unlogged.rs"]
mod logged;

use redrive_core::scheduler::Told;

use super::queue::Queue;

pub(super) use counted::{Meters, Name, fenced, name_of, owned, published, taken_over};
pub(super) use logged::{Span, damaged, failed, in_trouble, lost, ordered, unhandled};

/// What became of an event, other than a success at the first attempt.
pub(super) fn told(queue: &Queue, told: &Told) {
    counted::told(queue.name(), told);
    logged::told(told);
}

/// What became of a dead letter that stays one: it is counted already.
pub(super) fn known_better(told: &Told) {
    logged::told(told);
}
