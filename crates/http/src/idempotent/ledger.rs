//! The contract between the layer and a ledger.
//!
//! Defined here rather than in the store crate, so that any store can implement it; `redrive` has an implementation
//! (`Redrive::ledger`). Every method is one commit, and `redrive_core::ledger` makes the decisions.

use std::any::Any;
use std::error::Error;
use std::fmt::Debug;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use redrive_core::Moment;
use redrive_core::ledger::{
    ClaimRequest, FencedRun, LedgerClaim, LedgerRecord, RenewResult, RequestScope, RunEnding,
};

use super::observe::LedgerObserver;
use crate::idempotent::replay_cache::CachedReply;

/// The answer to come.
pub type LedgerFuture<T> = Pin<Box<dyn Future<Output = Result<T, LedgerError>> + Send>>;

/// Where requests are remembered. Its clock is the only clock.
pub trait Ledger: Any + Send + Sync + Debug {
    /// What time it is.
    fn now(&self) -> Moment;

    /// Decides what to do with a request, and claims it if it is to run.
    fn claim(&self, scope: RequestScope, ask: ClaimRequest) -> LedgerFuture<LedgerClaim>;

    /// Renews the lease of a run.
    fn renew(
        &self,
        scope: RequestScope,
        epoch: u64,
        lease: Duration,
        run_max: Duration,
    ) -> LedgerFuture<Result<RenewResult, Option<FencedRun>>>;

    /// Records the end of a run. Fenced if it was taken over: returns the current record, if there is one.
    fn end(
        &self,
        scope: RequestScope,
        epoch: u64,
        end: RunEnding,
    ) -> LedgerFuture<Result<(), Option<FencedRun>>>;

    /// The record of a request.
    fn record(&self, scope: RequestScope) -> LedgerFuture<Option<LedgerRecord>>;

    /// The cached reply of a completed request. Called before each claim, so it must be fast and must not wait for
    /// the ledger.
    fn cached(&self, scope: &RequestScope) -> Option<Arc<CachedReply>> {
        let _ = scope;
        None
    }

    /// Caches the reply of a completed request that was just repeated. A completed request never changes, so no
    /// invalidation is needed.
    fn cache(&self, scope: &RequestScope, ended: CachedReply) {
        let _ = (scope, ended);
    }

    /// The observer for endpoints without their own.
    fn observer(&self) -> Option<Arc<dyn LedgerObserver>> {
        self.inside().and_then(|inside| inside.observer())
    }

    /// The wrapped ledger, if this one is only a wrapper that counts or injects failures. Implementations use it to
    /// find their own type.
    fn inside(&self) -> Option<&dyn Ledger> {
        None
    }
}

/// The ledger did not respond or failed. The operation may have been performed all the same.
#[derive(Debug, Clone, thiserror::Error)]
#[error("the ledger did not respond: {cause}")]
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

    /// The ledger is up but cannot read this record: it is damaged or inconsistent. No endpoint runs the request
    /// then, not even one that stays open. With its cause.
    pub fn unreadable(cause: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self { cause: Arc::from(cause.into()), down: false }
    }

    /// Whether the ledger is down.
    #[must_use]
    pub fn is_down(&self) -> bool {
        self.down
    }
}
