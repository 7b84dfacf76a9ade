//! A ledger that stands before another: a handler still commits with its answer.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::routing::post as on_post;
use redrive::api::{CommitError, Committed, Idempotent, Reply, Requests};
use redrive::http::idempotent::{Ask, Asked, Claim, End, Fenced, Ledger, Record, Renewed, Scope};
use redrive::{Moment, Operation, testing};

use crate::shop::keyed;
use crate::wire::{Server, post};

/// Passes everything on. Without a word of what is inside, it is a ledger that no handler can commit to.
#[derive(Debug)]
struct Before {
    requests: Requests,
    says_so: bool,
}

impl Ledger for Before {
    fn now(&self) -> Moment {
        self.requests.now()
    }

    fn claim(&self, scope: Scope, ask: Ask) -> Asked<Claim> {
        self.requests.claim(scope, ask)
    }

    fn renew(
        &self,
        scope: Scope,
        epoch: u64,
        lease: Duration,
        run_max: Duration,
    ) -> Asked<Result<Renewed, Option<Fenced>>> {
        self.requests.renew(scope, epoch, lease, run_max)
    }

    fn end(&self, scope: Scope, epoch: u64, end: End) -> Asked<Result<(), Option<Fenced>>> {
        self.requests.end(scope, epoch, end)
    }

    fn record(&self, scope: Scope) -> Asked<Option<Record>> {
        self.requests.record(scope)
    }

    fn inside(&self) -> Option<&dyn Ledger> {
        self.says_so.then_some(&self.requests)
    }
}

async fn book(op: Operation) -> Result<Committed, CommitError> {
    op.commit(|_| Ok::<_, CommitError>(Reply::new(201).body("booked"))).await
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
