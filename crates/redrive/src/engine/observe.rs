//! Metrics behind the feature `metrics`, logs and spans behind `tracing`. Without the features, stand-ins do nothing.
//! Never a payload.

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

use redrive_core::scheduler::SettledEvent;

use super::queue::Queue;

pub(super) use counted::{
    Meters, Name, fenced, marked, name_of, owned, published, stalled_shards, taken_over,
};
pub(super) use logged::{
    Span, clock_is_behind, damaged, failed, in_trouble, lost, ordered, stalled, unhandled,
};

/// The outcome of an event, other than a success at the first attempt.
pub(super) fn told(queue: &Queue, told: &SettledEvent) {
    counted::told(queue.name(), told);
    logged::told(told);
}

/// The new cause of a dead letter, which was counted before.
pub(super) fn known_better(told: &SettledEvent) {
    logged::told(told);
}
