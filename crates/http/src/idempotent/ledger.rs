//! What the layer needs of a ledger.
//!
//! Written down here and not taken from the store, because this crate may be used with any: `redrive` has the bridge
//! (`Redrive::ledger`). Every verb is one commit, and what it decides is `redrive_core::ledger`'s.

use std::any::Any;
use std::error::Error;
use std::fmt::Debug;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use redrive_core::Moment;
use redrive_core::ledger::{Ask, Claim, End, Fenced, Record, Renewed, Scope};

use super::observe::Observer;
use super::remembered::Remembered;

/// The answer to come.
pub type Asked<T> = Pin<Box<dyn Future<Output = Result<T, LedgerError>> + Send>>;

/// Where requests are remembered. Its clock is the only clock.
pub trait Ledger: Any + Send + Sync + Debug {
    /// What time it is.
    fn now(&self) -> Moment;

    /// Asks what to do with a request, and has it, where it is to run.
    fn claim(&self, scope: Scope, ask: Ask) -> Asked<Claim>;

    /// Has a run go on.
    fn renew(
        &self,
        scope: Scope,
        epoch: u64,
        lease: Duration,
        run_max: Duration,
    ) -> Asked<Result<Renewed, Option<Fenced>>>;

    /// Says how a run ended. Refused where it was taken over: with the record as it is, if there is one.
    fn end(&self, scope: Scope, epoch: u64, end: End) -> Asked<Result<(), Option<Fenced>>>;

    /// What is remembered of a request.
    fn record(&self, scope: Scope) -> Asked<Option<Record>>;

    /// What this process remembers of a request that ended. Asked before each claim, so it must be quick, and must not
    /// wait for the ledger.
    fn recall(&self, scope: &Scope) -> Option<Arc<Remembered>> {
        let _ = scope;
        None
    }

    /// A request ended, and its answer was just asked for again: to be remembered for as long as there is room. What is
    /// over never changes, so nothing has to be taken back.
    fn remember(&self, scope: &Scope, ended: Remembered) {
        let _ = (scope, ended);
    }

    /// Who is told what becomes of requests, where an endpoint names nobody.
    fn observer(&self) -> Option<Arc<dyn Observer>> {
        self.inside().and_then(|inside| inside.observer())
    }

    /// The ledger that this one stands before, where it only does: one that counts, or fails on request. Bridges look
    /// there for their own.
    fn inside(&self) -> Option<&dyn Ledger> {
        None
    }
}

/// The ledger did not answer, or could not. What was asked may have been done all the same.
#[derive(Debug, Clone, thiserror::Error)]
#[error("the ledger did not answer: {cause}")]
pub struct LedgerError {
    #[source]
    cause: Arc<dyn Error + Send + Sync>,
    down: bool,
}

impl LedgerError {
    /// It is down: nothing can be asked of it just now. With its cause.
    pub fn new(cause: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self { cause: Arc::from(cause.into()), down: true }
    }

    /// It is there, and cannot tell of this request: its record is damaged, or makes no sense. No endpoint runs it then,
    /// also not one that stays open. With its cause.
    pub fn unreadable(cause: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self { cause: Arc::from(cause.into()), down: false }
    }

    /// Whether the ledger is down.
    #[must_use]
    pub fn is_down(&self) -> bool {
        self.down
    }
}
