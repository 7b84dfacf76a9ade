//! Observers of requests, for metrics and logs.
//!
//! An observer is called in line, so it must be quick and must not block. Without one, nothing is paid.

use std::fmt::Debug;

use redrive_core::ledger::RequestScope;

use crate::fingerprint::RequestDifference;

/// The result of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum RequestOutcome {
    /// It ran for the first time.
    Fresh,
    /// The first answer was given again.
    Replayed,
    /// Its first try was still running.
    InFlight,
    /// Its key was used for something else.
    Mismatch,
    /// It ran again, after a run that did not end or that failed.
    TakenOver,
    /// The outcome is unknown.
    Unknown,
    /// It ran without the ledger.
    Bypassed,
    /// It was first sent too long ago.
    TooOld,
    /// It happened, and the answer is gone.
    Gone,
    /// It happened, and no key opens the answer.
    Unopened,
    /// It failed, and asked to be left alone for longer.
    BackingOff,
    /// It was not looked up: no key, a bad one, no room, no ledger.
    Refused,
}

impl RequestOutcome {
    /// The label `result` of `redrive_ledger_total`.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Fresh => "fresh",
            Self::Replayed => "replayed",
            Self::InFlight => "in_flight",
            Self::Mismatch => "mismatch",
            Self::TakenOver => "taken_over",
            Self::Unknown => "unknown",
            Self::Bypassed => "bypassed",
            Self::TooOld => "too_old",
            Self::Gone => "gone",
            Self::Unopened => "unopened",
            Self::BackingOff => "backing_off",
            Self::Refused => "refused",
        }
    }
}

/// Observes requests.
pub trait LedgerObserver: Send + Sync + Debug {
    /// A request was decided on. `operation` is the endpoint's name.
    fn became(&self, operation: &str, became: RequestOutcome);

    /// A request under a key was decided on, which [`became`](Self::became) was told too. `differs` is what a mismatch
    /// is about, if that is known. For logs: keys have no bound, so they are no labels.
    fn keyed(&self, scope: &RequestScope, became: RequestOutcome, differs: Option<RequestDifference>) {
        let _ = (scope, became, differs);
    }

    /// A request equals a recent one under another key: perhaps a client that creates a key per attempt.
    fn rekeyed(&self, operation: &str) {
        let _ = operation;
    }
}
