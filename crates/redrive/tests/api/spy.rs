//! A ledger that can be watched and made to fail, and a gate for handlers: tests wait for these instead of sleeping.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use redrive::api::EngineLedger;
use redrive::http::idempotent::{
    ClaimRequest, FencedRun, Ledger, LedgerClaim, LedgerError, LedgerFuture, LedgerRecord, RenewResult,
    RequestScope, RunEnding,
};
use redrive::{Moment, Redrive};
use tokio::sync::Semaphore;

/// A limit that no test comes near, so that a test that never stops fails instead of hanging.
const CLAIMS_MAX: usize = 1000;

/// A ledger over another.
#[derive(Debug)]
pub(crate) struct Spy {
    pub(crate) redrive: Redrive,
    inner: EngineLedger,
    /// One for each look without a claim.
    pub(crate) looks: Signal,
    /// One for each time that a lease was renewed.
    pub(crate) renewals: Signal,
    /// One for each claim, and one for each end.
    pub(crate) claims: Signal,
    pub(crate) ends: Signal,
    pub(crate) claims_fail: AtomicBool,
    /// Claims stop at the gate.
    pub(crate) claims_halt: AtomicBool,
    pub(crate) gate: Gate,
    pub(crate) renewals_fail: AtomicBool,
    pub(crate) ends_fail: AtomicBool,
}

impl Spy {
    pub(crate) fn over(redrive: &Redrive) -> Arc<Self> {
        let (redrive, inner) = (redrive.clone(), redrive.ledger());
        let [claims_fail, claims_halt, renewals_fail, ends_fail] = [false; 4].map(AtomicBool::new);
        let gate = Gate::default();
        let (looks, renewals) = (Signal::default(), Signal::default());
        let (claims, ends) = (Signal::default(), Signal::default());
        Arc::new(Self {
            redrive,
            inner,
            looks,
            renewals,
            claims,
            ends,
            claims_fail,
            claims_halt,
            gate,
            renewals_fail,
            ends_fail,
        })
    }
}

fn failed<T>() -> LedgerFuture<T> {
    Box::pin(async { Err(LedgerError::new("told to fail")) })
}

impl Ledger for Spy {
    fn now(&self) -> Moment {
        self.inner.now()
    }

    fn claim(&self, scope: RequestScope, ask: ClaimRequest) -> LedgerFuture<LedgerClaim> {
        self.claims.give();
        if self.claims_fail.load(Ordering::SeqCst) {
            return failed();
        }
        assert!(self.claims.count() < CLAIMS_MAX, "it claims again and again");
        if self.claims_halt.load(Ordering::SeqCst) {
            let (gate, claiming) = (self.gate.clone(), self.inner.claim(scope, ask));
            return Box::pin(async move {
                gate.pass().await;
                claiming.await
            });
        }
        self.inner.claim(scope, ask)
    }

    fn renew(
        &self,
        scope: RequestScope,
        epoch: u64,
        lease: Duration,
        run_max: Duration,
    ) -> LedgerFuture<Result<RenewResult, Option<FencedRun>>> {
        self.renewals.give();
        if self.renewals_fail.load(Ordering::SeqCst) {
            return failed();
        }
        self.inner.renew(scope, epoch, lease, run_max)
    }

    fn end(
        &self,
        scope: RequestScope,
        epoch: u64,
        end: RunEnding,
    ) -> LedgerFuture<Result<(), Option<FencedRun>>> {
        self.ends.give();
        if self.ends_fail.load(Ordering::SeqCst) {
            return failed();
        }
        self.inner.end(scope, epoch, end)
    }

    fn record(&self, scope: RequestScope) -> LedgerFuture<Option<LedgerRecord>> {
        self.looks.give();
        self.inner.record(scope)
    }
}

/// The longest wait for an event: then a test fails, and does not hang.
pub(crate) async fn within<F: Future>(coming: F) -> F::Output {
    tokio::time::timeout(Duration::from_secs(30), coming).await.expect("it never came")
}

/// An event that can be waited for, as often as it happens.
#[derive(Debug, Clone)]
pub(crate) struct Signal(Arc<Semaphore>);

impl Default for Signal {
    fn default() -> Self {
        Self(Arc::new(Semaphore::new(0)))
    }
}

impl Signal {
    pub(crate) fn give(&self) {
        self.0.add_permits(1);
    }

    /// How often it happened and was not waited for.
    pub(crate) fn count(&self) -> usize {
        self.0.available_permits()
    }

    pub(crate) async fn wait(&self) {
        within(self.0.acquire()).await.unwrap().forget();
    }
}

/// Where a handler stops, until the test lets it go on.
#[derive(Debug, Clone, Default)]
pub(crate) struct Gate {
    /// A handler is there.
    pub(crate) reached: Signal,
    /// It goes on.
    pub(crate) open: Signal,
}

impl Gate {
    pub(crate) async fn pass(&self) {
        self.reached.give();
        self.open.wait().await;
    }
}
