//! The ledger, with points at which the process may die: around a claim, in a renewal, before an end.
//!
//! Only the campaign needs it. An API of yours hands `redrive.ledger()` to the layer.

use std::time::Duration;

use redrive::Moment;
use redrive::api::Requests;
use redrive::http::idempotent::{Ask, Asked, Claim, End, Fenced, Ledger, Record, Renewed, Scope};

use crate::points;

/// A ledger whose process may die.
#[derive(Debug)]
pub(crate) struct Mortal(pub(crate) Requests);

impl Ledger for Mortal {
    fn now(&self) -> Moment {
        self.0.now()
    }

    fn claim(&self, scope: Scope, ask: Ask) -> Asked<Claim> {
        points::pass("before-claim");
        let claim = self.0.claim(scope, ask);
        Box::pin(async move {
            let claim = claim.await?;
            if matches!(claim, Claim::Run(_)) {
                points::pass("after-claim");
            }
            Ok(claim)
        })
    }

    fn renew(
        &self,
        scope: Scope,
        epoch: u64,
        lease: Duration,
        run_max: Duration,
    ) -> Asked<Result<Renewed, Option<Fenced>>> {
        points::pass("in-renewal");
        self.0.renew(scope, epoch, lease, run_max)
    }

    fn end(&self, scope: Scope, epoch: u64, end: End) -> Asked<Result<(), Option<Fenced>>> {
        points::pass("before-end");
        self.0.end(scope, epoch, end)
    }

    fn record(&self, scope: Scope) -> Asked<Option<Record>> {
        self.0.record(scope)
    }

    fn inside(&self) -> Option<&dyn Ledger> {
        Some(&self.0)
    }
}
