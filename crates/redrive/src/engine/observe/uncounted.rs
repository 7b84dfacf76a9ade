//! Nothing is counted.

use std::time::Duration;

use redrive_core::Event;
use redrive_core::scheduler::{Ending, Told};
use redrive_store::{PublishError, Published};

/// What a queue counts for each attempt.
#[derive(Debug)]
pub(in crate::engine) struct Meters;

#[allow(clippy::unused_self, reason = "the counting form needs it")]
impl Meters {
    pub(in crate::engine) const fn of(_: &str) -> Self {
        Self
    }

    pub(in crate::engine) fn started(&self, _: impl FnOnce() -> Duration) {}

    pub(in crate::engine) const fn ended(&self, _: &Ending) {}
}

/// Nobody asks for the name of a queue.
#[derive(Debug, Clone, Copy)]
pub(in crate::engine) struct Name;

pub(in crate::engine) const fn name_of(_: &Event) -> Name {
    Name
}

pub(in crate::engine) const fn published(_: &Name, _: &Result<Published, PublishError>) {}

pub(in crate::engine) const fn fenced() {}

pub(in crate::engine) const fn owned(_: &str, _: usize) {}

pub(in crate::engine) const fn taken_over() {}

pub(super) const fn told(_: &str, _: &Told) {}
