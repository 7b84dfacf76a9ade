//! Stand-ins for the logs.

use redrive_core::queue_entry::Seq;
use redrive_core::scheduler::{DispatchedAttempt, EndedAttempt, SettledEvent};
use redrive_core::triage::Operator;
use redrive_store::StoreError;
use redrive_store::operate::CommandResult;

/// A span around an attempt.
#[derive(Clone, Copy)]
pub(in crate::engine) struct Span;

impl Span {
    pub(in crate::engine) const fn of(_: &DispatchedAttempt) -> Self {
        Self
    }

    #[allow(clippy::unused_self, reason = "the logging form needs it")]
    pub(in crate::engine) fn around<F: Future>(self, attempt: F) -> F {
        attempt
    }

    #[allow(clippy::unused_self, reason = "the logging form needs it")]
    pub(in crate::engine) const fn ended(self, _: &EndedAttempt) {}
}

pub(super) const fn told(_: &SettledEvent) {}

pub(in crate::engine) const fn ordered(_: &str, _: &Operator, _: &CommandResult) {}

pub(in crate::engine) const fn unhandled(_: &str) {}

pub(in crate::engine) const fn damaged(_: &str) {}

pub(in crate::engine) const fn lost(_: u32) {}

pub(in crate::engine) const fn stalled(_: u32, _: Seq) {}

pub(in crate::engine) const fn in_trouble(_: &StoreError) {}

pub(in crate::engine) const fn clock_is_behind(_: std::time::Duration) {}

pub(in crate::engine) const fn failed(_: &StoreError) {}
