//! Requests in the ledger of a server's store, as a layer in another process would have left them.

use std::time::Duration;

use redrive::desk::{Reply, Scope};
use redrive::http::idempotent::{Ask, Claim, Effects, End, Keep, Ledger as _, OnUnknown, Retention};

use crate::house::House;
use crate::letters::engine;

pub(crate) const BOOK: &str = "POST /bookings";

pub(crate) fn scope(tenant: &str, key: &str) -> Scope {
    Scope { tenant: tenant.into(), operation: BOOK.into(), key: key.into() }
}

/// A request comes.
pub(crate) async fn claim(house: &House, tenant: &str, key: &str) -> Claim {
    let ask = Ask {
        print: redrive::http::fingerprint::fingerprint(&Default::default(), &Default::default())
            .expect("one"),
        older: Vec::new(),
        effects: Effects::Opaque(OnUnknown::Hold),
        lease: Duration::from_secs(60),
        retention: Retention { answer: Duration::from_secs(86_400) },
        first_sent: None,
        skew: Duration::ZERO,
    };
    engine(house).ledger().claim(scope(tenant, key), ask).await.expect("a ledger")
}

/// A request comes, and ends so.
pub(crate) async fn end(house: &House, tenant: &str, key: &str, end: End) {
    let Claim::Run(record) = claim(house, tenant, key).await else { panic!("{key} is there already") };
    engine(house)
        .ledger()
        .end(scope(tenant, key), record.epoch, end)
        .await
        .expect("a ledger")
        .expect("its own");
}

/// A request comes, and nobody knows how it ended.
pub(crate) async fn hold(house: &House, tenant: &str, keys: &[&str]) {
    for key in keys {
        end(house, tenant, key, End::Unknown).await;
    }
}

/// A request comes, and is answered.
pub(crate) async fn complete(house: &House, tenant: &str, key: &str, keep: &Keep) {
    let reply = Reply {
        status: 201,
        headers: vec![("location".into(), b"/bookings/7".to_vec()), ("x-odd".into(), vec![0xff])],
        body: Some(b"{\"cabin\":7}".to_vec()),
    };
    let reply = keep.kept(&scope(tenant, key), reply);
    end(house, tenant, key, End::Completed { reply, resource: Some("booking-7".into()) }).await;
}
