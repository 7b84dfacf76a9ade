//! Telling whoever counts what becomes of requests.
//!
//! An observer is called in line, so it must be quick and must not block. Without one, nothing is paid.

use std::fmt::Debug;

/// What became of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Became {
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
    /// Nobody knows whether it happened.
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

impl Became {
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

/// Hears what becomes of requests.
pub trait Observer: Send + Sync + Debug {
    /// A request was decided on. `operation` is the endpoint's name.
    fn became(&self, operation: &str, became: Became);

    /// A request asks what another key asked lately: perhaps a client that mints a key for each attempt.
    fn minted_again(&self, operation: &str) {
        let _ = operation;
    }
}
