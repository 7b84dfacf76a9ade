//! The ledger, with points at which the process may die: around a claim, in a renewal, before an end.
//!
//! Only the campaign needs it. An API of yours hands `redrive.ledger()` to the layer.

use std::time::Duration;

use redrive::Moment;
use redrive::api::EngineLedger;
use redrive::http::idempotent::{
    ClaimRequest, FencedRun, Ledger, LedgerClaim, LedgerFuture, LedgerRecord, RenewResult, RequestScope,
    RunEnding,
};

use crate::crash_points;

/// A ledger whose process may die.
#[derive(Debug)]
pub(crate) struct Mortal(pub(crate) EngineLedger);

impl Ledger for Mortal {
    fn now(&self) -> Moment {
        self.0.now()
    }

    fn claim(&self, scope: RequestScope, ask: ClaimRequest) -> LedgerFuture<LedgerClaim> {
        crash_points::pass("before-claim");
        let claim = self.0.claim(scope, ask);
        Box::pin(async move {
            let claim = claim.await?;
            if matches!(claim, LedgerClaim::Run(_)) {
                crash_points::pass("after-claim");
            }
            Ok(claim)
        })
    }

    fn renew(
        &self,
        scope: RequestScope,
        epoch: u64,
        lease: Duration,
        run_max: Duration,
    ) -> LedgerFuture<Result<RenewResult, Option<FencedRun>>> {
        crash_points::pass("in-renewal");
        self.0.renew(scope, epoch, lease, run_max)
    }

    fn end(
        &self,
        scope: RequestScope,
        epoch: u64,
        end: RunEnding,
    ) -> LedgerFuture<Result<(), Option<FencedRun>>> {
        crash_points::pass("before-end");
        self.0.end(scope, epoch, end)
    }

    fn record(&self, scope: RequestScope) -> LedgerFuture<Option<LedgerRecord>> {
        self.0.record(scope)
    }

    fn inside(&self) -> Option<&dyn Ledger> {
        Some(&self.0)
    }
}
