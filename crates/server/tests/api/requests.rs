//! Requests in the ledger of a server's store, as a layer in another process would have left them.

use std::time::Duration;

use redrive::desk::{RequestScope, StoredReply};
use redrive::http::idempotent::{
    ClaimRequest, Effects, Ledger as _, LedgerClaim, OnUnknown, ReplyProtection, Retention, RunEnding,
};

use crate::dead_letters::engine;
use crate::test_server::TestServer;

pub(crate) const BOOK: &str = "POST /bookings";

pub(crate) fn scope(tenant: &str, key: &str) -> RequestScope {
    RequestScope { tenant: tenant.into(), operation: BOOK.into(), key: key.into() }
}

/// A request comes.
pub(crate) async fn claim(server: &TestServer, tenant: &str, key: &str) -> LedgerClaim {
    let ask = ClaimRequest {
        print: redrive::http::fingerprint::fingerprint(&Default::default(), &Default::default())
            .expect("one"),
        older: Vec::new(),
        effects: Effects::Opaque(OnUnknown::Hold),
        lease: Duration::from_secs(60),
        retention: Retention { answer: Duration::from_secs(86_400) },
        first_sent: None,
        skew: Duration::ZERO,
    };
    engine(server).ledger().claim(scope(tenant, key), ask).await.expect("a ledger")
}

/// A request comes, and ends so.
pub(crate) async fn end(server: &TestServer, tenant: &str, key: &str, end: RunEnding) {
    let LedgerClaim::Run(record) = claim(server, tenant, key).await else { panic!("{key} is there already") };
    engine(server)
        .ledger()
        .end(scope(tenant, key), record.epoch, end)
        .await
        .expect("a ledger")
        .expect("its own");
}

/// A request with an unknown outcome.
pub(crate) async fn hold(server: &TestServer, tenant: &str, keys: &[&str]) {
    for key in keys {
        end(server, tenant, key, RunEnding::Unknown).await;
    }
}

/// A request comes, and is answered.
pub(crate) async fn complete(server: &TestServer, tenant: &str, key: &str, keep: &ReplyProtection) {
    let reply = StoredReply {
        status: 201,
        headers: vec![("location".into(), b"/bookings/7".to_vec()), ("x-odd".into(), vec![0xff])],
        body: Some(b"{\"cabin\":7}".to_vec()),
    };
    let reply = keep.kept(&scope(tenant, key), reply);
    end(server, tenant, key, RunEnding::Completed { reply, resource: Some("booking-7".into()) }).await;
}
