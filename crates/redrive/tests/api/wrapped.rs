//! A ledger that wraps another: a handler still commits with its answer.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::routing::post as on_post;
use redrive::api::{CommitError, CommittedReply, EngineLedger, Idempotent, StoredReply};
use redrive::http::idempotent::{
    ClaimRequest, FencedRun, Ledger, LedgerClaim, LedgerFuture, LedgerRecord, RenewResult, RequestScope,
    RunEnding,
};
use redrive::{Moment, Operation, testing};

use crate::shop::keyed;
use crate::wire::{Server, post};

/// Passes everything on. If it does not reveal the inner ledger, no handler can commit to it.
#[derive(Debug)]
struct Before {
    requests: EngineLedger,
    says_so: bool,
}

impl Ledger for Before {
    fn now(&self) -> Moment {
        self.requests.now()
    }

    fn claim(&self, scope: RequestScope, ask: ClaimRequest) -> LedgerFuture<LedgerClaim> {
        self.requests.claim(scope, ask)
    }

    fn renew(
        &self,
        scope: RequestScope,
        epoch: u64,
        lease: Duration,
        run_max: Duration,
    ) -> LedgerFuture<Result<RenewResult, Option<FencedRun>>> {
        self.requests.renew(scope, epoch, lease, run_max)
    }

    fn end(
        &self,
        scope: RequestScope,
        epoch: u64,
        end: RunEnding,
    ) -> LedgerFuture<Result<(), Option<FencedRun>>> {
        self.requests.end(scope, epoch, end)
    }

    fn record(&self, scope: RequestScope) -> LedgerFuture<Option<LedgerRecord>> {
        self.requests.record(scope)
    }

    fn inside(&self) -> Option<&dyn Ledger> {
        self.says_so.then_some(&self.requests)
    }
}

async fn book(op: Operation) -> Result<CommittedReply, CommitError> {
    op.commit(|_| Ok::<_, CommitError>(StoredReply::new(201).body("booked"))).await
}

#[tokio::test]
async fn a_handler_commits_through_a_ledger_before_its_own() {
    for (says_so, status) in [(true, 201), (false, 500)] {
        let requests = testing::memory().ledger();
        let layer = Idempotent::new(Arc::new(Before { requests, says_so }), keyed()).unwrap();
        let server = Server::start(Router::new().route("/bookings", on_post(book).layer(layer))).await;
        assert_eq!(server.ask(&post("{}").key("k")).await.status, status);
    }
}
