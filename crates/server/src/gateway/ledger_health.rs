//! Whether the ledger can be written: watched at every claim and every end, because a gateway that cannot record
//! refuses every enrolled request, and should say so where operators look.
//!
//! A failure makes `/readyz` 503 until a write succeeds, or for [`DOUBT`]: a balancer then sends no requests, so that
//! nothing would ever be written again.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use redrive::Moment;
use redrive::api::EngineLedger;
use redrive::http::idempotent::{
    CachedReply, ClaimRequest, FencedRun, Ledger, LedgerClaim, LedgerError, LedgerFuture, LedgerRecord,
    RenewResult, RequestScope, RunEnding,
};
use redrive::names::{label, metric};
use tokio::time::Instant;

/// How long a failed write counts if none follows, and between two lines of the log.
const DOUBT: Duration = Duration::from_secs(10);

/// What the last writes came to.
#[derive(Debug, Clone, Default)]
pub(super) struct LedgerHealth(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    failed: Option<(Instant, String)>,
    logged: Option<Instant>,
}

impl LedgerHealth {
    /// Why the ledger cannot be written; `None` if it can, as far as is known.
    pub(super) fn trouble(&self) -> Option<String> {
        let state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let failed = state.failed.as_ref().filter(|(at, _)| at.elapsed() < DOUBT);
        failed.map(|(_, cause)| cause.clone())
    }

    fn wrote<T>(&self, what: &'static str, operation: &str, result: &Result<T, LedgerError>) {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let Err(error) = result else {
            if state.failed.take().is_some() {
                tracing::info!("the ledger can be written again");
                state.logged = None;
            }
            return;
        };
        metrics::counter!(metric::LEDGER_FAILURES, label::PLACE => what).increment(1);
        state.failed = Some((Instant::now(), error.to_string()));
        if state.logged.is_none_or(|logged| logged.elapsed() >= DOUBT) {
            state.logged = Some(Instant::now());
            let cause = error;
            match what {
                "claim" => {
                    tracing::error!(%cause, operation, "the ledger cannot be written; enrolled requests are answered 503");
                }
                _ => tracing::error!(%cause, operation, "the outcome of a request could not be recorded"),
            }
        }
    }
}

/// A ledger whose writes are watched.
#[derive(Debug)]
pub(super) struct WatchedLedger {
    pub(super) inner: EngineLedger,
    pub(super) health: LedgerHealth,
}

impl Ledger for WatchedLedger {
    fn now(&self) -> Moment {
        self.inner.now()
    }

    fn claim(&self, scope: RequestScope, ask: ClaimRequest) -> LedgerFuture<LedgerClaim> {
        let (health, operation) = (self.health.clone(), scope.operation.clone());
        let claiming = self.inner.claim(scope, ask);
        Box::pin(async move {
            let claimed = claiming.await;
            // Nothing was written for what is answered without a run.
            if !matches!(claimed, Ok(LedgerClaim::Say(_))) {
                health.wrote("claim", &operation, &claimed);
            }
            claimed
        })
    }

    fn renew(
        &self,
        scope: RequestScope,
        epoch: u64,
        lease: Duration,
        run_max: Duration,
    ) -> LedgerFuture<Result<RenewResult, Option<FencedRun>>> {
        self.inner.renew(scope, epoch, lease, run_max)
    }

    fn end(
        &self,
        scope: RequestScope,
        epoch: u64,
        end: RunEnding,
    ) -> LedgerFuture<Result<(), Option<FencedRun>>> {
        let (health, operation) = (self.health.clone(), scope.operation.clone());
        let ending = self.inner.end(scope, epoch, end);
        Box::pin(async move {
            let ended = ending.await;
            health.wrote("end", &operation, &ended);
            ended
        })
    }

    fn record(&self, scope: RequestScope) -> LedgerFuture<Option<LedgerRecord>> {
        self.inner.record(scope)
    }

    fn cached(&self, scope: &RequestScope) -> Option<Arc<CachedReply>> {
        self.inner.cached(scope)
    }

    fn cache(&self, scope: &RequestScope, ended: CachedReply) {
        self.inner.cache(scope, ended);
    }

    fn inside(&self) -> Option<&dyn Ledger> {
        Some(&self.inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_failed_write_is_told_until_one_succeeds_or_for_a_while() {
        let health = LedgerHealth::default();
        assert_eq!(health.trouble(), None);
        let failed: Result<(), _> = Err(LedgerError::new("read-only file system"));
        health.wrote("claim", "POST /orders", &failed);
        assert!(health.trouble().is_some_and(|cause| cause.contains("read-only file system")));
        health.wrote("end", "POST /orders", &Ok(()));
        assert_eq!(health.trouble(), None);
        health.wrote("end", "POST /orders", &failed);
        assert!(health.trouble().is_some());
        tokio::time::advance(DOUBT).await;
        assert_eq!(health.trouble(), None, "a balancer may try again");
    }
}
