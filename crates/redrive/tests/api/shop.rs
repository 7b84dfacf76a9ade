//! A service that counts how often it was called, behind a layer over a store in memory.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use axum::Router;
use axum::routing::{any, post};
use redrive::api::{Effects, Endpoint, Idempotent, Tenant};
use redrive::engine::{EventClock, Memory, OpenOptions};
use redrive::http::idempotent::{Ledger as _, LedgerRecord, RequestScope};
use redrive::store::ledger::LedgerQuery;
use redrive::store::{LedgerStore as _, Store};
use redrive::{Moment, Redrive};

use crate::wire::Server;

/// The name of the operation.
pub(crate) const BOOK: &str = "POST /bookings";

/// How often something was called.
#[derive(Debug, Clone, Default)]
pub(crate) struct Calls(Arc<AtomicUsize>);

impl Calls {
    pub(crate) fn add(&self) -> usize {
        self.0.fetch_add(1, Ordering::SeqCst) + 1
    }

    pub(crate) fn count(&self) -> usize {
        self.0.load(Ordering::SeqCst)
    }
}

/// An endpoint with keyed effects.
pub(crate) fn keyed() -> Endpoint<Tenant, Effects> {
    Endpoint::new(BOOK).tenant(Tenant::fixed("acme")).effects(Effects::Keyed)
}

pub(crate) fn layer(redrive: &Redrive, endpoint: Endpoint<Tenant, Effects>) -> Idempotent {
    Idempotent::new(Arc::new(redrive.ledger()), endpoint).unwrap()
}

/// A service whose handler says which call it is.
pub(crate) struct Shop {
    pub(crate) server: Server,
    pub(crate) calls: Calls,
    pub(crate) redrive: Redrive,
    store: Arc<Memory>,
}

impl Shop {
    /// How many records there are.
    pub(crate) async fn records(&self) -> usize {
        records(&self.redrive, &self.store).await.len()
    }
}

/// The records.
pub(crate) async fn records(redrive: &Redrive, store: &Memory) -> Vec<(RequestScope, LedgerRecord)> {
    let now = redrive.ledger().now();
    let mut records = store.records(LedgerQuery::default(), now).await.unwrap().records;
    for (scope, record) in &mut records {
        // A list has no bodies.
        *record = store.record(scope.clone(), now).await.unwrap().unwrap();
    }
    records
}

/// A store in memory, and an engine whose time stands still.
pub(crate) fn memory() -> (Redrive, Arc<Memory>) {
    let store = Arc::new(Memory::new());
    (over(store.clone()), store)
}

/// An engine over a store, whose time stands still at 14:13:20 on 21 September 2026.
pub(crate) fn over(store: Arc<dyn Store>) -> Redrive {
    let start = Moment::from_nanos(1_790_000_000_000_000_000);
    OpenOptions::new().clock(EventClock::still_at(start)).over(store)
}

pub(crate) async fn counting(endpoint: Endpoint<Tenant, Effects>) -> Shop {
    let (redrive, store) = memory();
    let calls = Calls::default();
    let counted = calls.clone();
    let handler = move || async move { format!("call {}", counted.add()) };
    let app = Router::new().route("/bookings", any(handler).layer(layer(&redrive, endpoint)));
    Shop { server: Server::start(app).await, calls, redrive, store }
}

/// A server with this handler behind a layer over this store.
pub(crate) async fn serve<H, T>(redrive: &Redrive, endpoint: Endpoint<Tenant, Effects>, handler: H) -> Server
where
    H: axum::handler::Handler<T, ()>,
    T: 'static,
{
    behind(&layer(redrive, endpoint), handler).await
}

/// A server with this handler behind this layer.
pub(crate) async fn behind<H, T>(layer: &Idempotent, handler: H) -> Server
where
    H: axum::handler::Handler<T, ()>,
    T: 'static,
{
    Server::start(Router::new().route("/bookings", post(handler).layer(layer.clone()))).await
}
