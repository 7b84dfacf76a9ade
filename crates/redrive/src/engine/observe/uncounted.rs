//! Nothing is counted.

use std::time::Duration;

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

    pub(in crate::engine) const fn started(&self, _: Duration) {}

    pub(in crate::engine) const fn ended(&self, _: &Ending) {}
}

pub(in crate::engine) const fn published(_: &str, _: &Result<Published, PublishError>) {}

pub(super) const fn told(_: &str, _: &Told) {}
