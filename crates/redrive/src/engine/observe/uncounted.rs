//! Stand-ins for the metrics.

use std::time::Duration;

use redrive_core::Event;
use redrive_core::scheduler::{EndedAttempt, SettledEvent};
use redrive_store::{PublishError, Published};

/// The counters of a queue's attempts.
#[derive(Debug)]
pub(in crate::engine) struct Meters;

#[allow(clippy::unused_self, reason = "the counting form needs it")]
impl Meters {
    pub(in crate::engine) const fn of(_: &str) -> Self {
        Self
    }

    pub(in crate::engine) fn started(&self, _: impl FnOnce() -> Duration) {}

    pub(in crate::engine) const fn ended(&self, _: &EndedAttempt) {}
}

/// The name of a queue is not needed.
#[derive(Debug, Clone, Copy)]
pub(in crate::engine) struct Name;

pub(in crate::engine) const fn name_of(_: &Event) -> Name {
    Name
}

pub(in crate::engine) const fn published(_: &Name, _: &Result<Published, PublishError>) {}

pub(in crate::engine) const fn fenced() {}

pub(in crate::engine) const fn marked(_: bool) {}

pub(in crate::engine) const fn owned(_: &str, _: usize) {}

pub(in crate::engine) const fn stalled_shards(_: usize) {}

pub(in crate::engine) const fn taken_over() {}

pub(super) const fn told(_: &str, _: &SettledEvent) {}
