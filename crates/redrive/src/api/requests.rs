//! The engine's store as the ledger of the idempotent layer.

use std::sync::Arc;
use std::time::Duration;

use redrive_core::Moment;
use redrive_core::ledger::{
    ClaimRequest, FencedRun, LedgerClaim, LedgerRecord, RenewResult, RequestScope, RunEnding,
};
use redrive_http::idempotent::{CachedReply, Ledger, LedgerError, LedgerFuture, LedgerObserver};
use redrive_store::{StoreError, StoreFuture};

use super::memory::Answers;
use super::observe::LedgerTelemetry;
use crate::Redrive;

/// The ledger of a store. Made by [`Redrive::ledger`].
#[derive(Debug, Clone)]
pub struct EngineLedger {
    pub(super) redrive: Redrive,
    answers: Answers,
}

impl Redrive {
    /// The store's ledger, for the layers of an API. Works without [`start`](Redrive::start).
    #[must_use]
    pub fn ledger(&self) -> EngineLedger {
        EngineLedger { redrive: self.clone(), answers: Answers::default() }
    }
}

impl EngineLedger {
    /// Deletes a bounded number of expired requests and returns how many. Call it now and then from a program that
    /// does not [start](Redrive::start) the engine; a started engine does it by itself.
    ///
    /// # Errors
    /// If the store does not answer.
    pub async fn sweep(&self) -> Result<usize, StoreError> {
        self.redrive.store().forget(self.now()).await
    }
}

impl Ledger for EngineLedger {
    fn now(&self) -> Moment {
        // Of several processes over one file, one that slept must not think that all leases still run. A process that
        // only answers requests has no loop that would notice.
        self.redrive.follow();
        self.redrive.now()
    }

    fn claim(&self, scope: RequestScope, ask: ClaimRequest) -> LedgerFuture<LedgerClaim> {
        asked(self.redrive.store().claim(scope, ask, self.now()))
    }

    fn renew(
        &self,
        scope: RequestScope,
        epoch: u64,
        lease: Duration,
        run_max: Duration,
    ) -> LedgerFuture<Result<RenewResult, Option<FencedRun>>> {
        asked(self.redrive.store().renew(scope, epoch, lease, run_max, self.now()))
    }

    fn end(
        &self,
        scope: RequestScope,
        epoch: u64,
        end: RunEnding,
    ) -> LedgerFuture<Result<(), Option<FencedRun>>> {
        asked(self.redrive.store().end(scope, epoch, end, self.now()))
    }

    fn record(&self, scope: RequestScope) -> LedgerFuture<Option<LedgerRecord>> {
        asked(self.redrive.store().record(scope, self.now()))
    }

    fn cached(&self, scope: &RequestScope) -> Option<Arc<CachedReply>> {
        self.answers.find(scope)
    }

    fn cache(&self, scope: &RequestScope, ended: CachedReply) {
        self.answers.remember(scope, ended);
    }

    fn observer(&self) -> Option<Arc<dyn LedgerObserver>> {
        Some(Arc::new(LedgerTelemetry))
    }
}

fn asked<T: 'static>(answer: StoreFuture<T>) -> LedgerFuture<T> {
    Box::pin(async move { answer.await.map_err(told) })
}

/// Only an error that is known to mean "the store is down" counts as that: an endpoint that fails open runs without
/// the ledger.
fn told(error: StoreError) -> LedgerError {
    match error {
        StoreError::Passing { .. }
        | StoreError::DiskLow { .. }
        | StoreError::Unknown { .. }
        | StoreError::Unanswered { .. }
        | StoreError::Poisoned { .. }
        | StoreError::Open { .. }
        | StoreError::Closed => LedgerError::new(error),
        error => LedgerError::unreadable(error),
    }
}
