//! The idempotent layer around a plain tower service, without axum and without a store.
#![cfg(feature = "server")]
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::collections::HashMap;
use std::convert::Infallible;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt, Full};
use redrive_core::{Moment, ledger};
use redrive_http::idempotent::{
    Body, ClaimRequest, Effects, Endpoint, FencedRun, Idempotent, Ledger, LedgerClaim, LedgerFuture,
    LedgerRecord, OnUnknown, RenewResult, RequestScope, RunEnding, Tenant,
};
use tower::{Layer, ServiceExt, service_fn};

/// The rules of `core` over a map, at a time that stands still.
#[derive(Debug, Default)]
struct Map(Mutex<HashMap<RequestScope, LedgerRecord>>);

impl Map {
    fn answer<T: Send + 'static>(
        &self,
        ask: impl FnOnce(&mut HashMap<RequestScope, LedgerRecord>) -> T,
    ) -> LedgerFuture<T> {
        let answer = ask(&mut self.0.lock().unwrap());
        Box::pin(async move { Ok(answer) })
    }
}

impl Ledger for Map {
    fn now(&self) -> Moment {
        Moment::from_nanos(1_790_000_000_000_000_000)
    }

    fn claim(&self, scope: RequestScope, ask: ClaimRequest) -> LedgerFuture<LedgerClaim> {
        let now = self.now();
        self.answer(|map| {
            let claim = ledger::claim(map.get(&scope), &ask, now);
            if let LedgerClaim::Run(record) | LedgerClaim::Probe(record) | LedgerClaim::Hold(record) = &claim
            {
                map.insert(scope, record.clone());
            }
            claim
        })
    }

    fn renew(
        &self,
        _: RequestScope,
        _: u64,
        _: Duration,
        _: Duration,
    ) -> LedgerFuture<Result<RenewResult, Option<FencedRun>>> {
        self.answer(|_| Ok(RenewResult::TooLong))
    }

    fn end(
        &self,
        scope: RequestScope,
        epoch: u64,
        end: RunEnding,
    ) -> LedgerFuture<Result<(), Option<FencedRun>>> {
        let now = self.now();
        self.answer(|map| {
            let record = map.remove(&scope).ok_or(None)?;
            let ended = match end {
                RunEnding::Completed { reply, resource } => {
                    ledger::complete(record, epoch, reply, resource, now).map(Some)
                }
                RunEnding::Retriable(not_before) => ledger::fail(record, epoch, not_before, now).map(Some),
                RunEnding::Unknown => ledger::hold(record, epoch, now).map(Some),
                RunEnding::Nothing => ledger::release(record, epoch, now),
            };
            if let Some(record) = ended.map_err(Some)? {
                map.insert(scope, record);
            }
            Ok(())
        })
    }

    fn record(&self, scope: RequestScope) -> LedgerFuture<Option<LedgerRecord>> {
        self.answer(|map| map.get(&scope).cloned())
    }
}

fn layer(map: &Arc<Map>, effects: Effects) -> Idempotent {
    let endpoint = Endpoint::new("POST /bookings").tenant(Tenant::fixed("acme")).effects(effects);
    Idempotent::new(map.clone(), endpoint).unwrap()
}

fn request() -> Request<Full<Bytes>> {
    let body = Full::new(Bytes::from_static(b"cabin 7"));
    Request::post("/bookings").header("idempotency-key", "k").body(body).unwrap()
}

#[tokio::test]
async fn a_plain_service_sees_the_body_and_answers_once() {
    let calls = Arc::new(AtomicUsize::new(0));
    let counted = calls.clone();
    let inner = service_fn(move |request: Request<Body>| {
        counted.fetch_add(1, Ordering::SeqCst);
        async move {
            let body = request.into_body().collect().await.unwrap().to_bytes();
            Ok::<_, Infallible>(Response::new(Full::new(body)))
        }
    });
    let service = layer(&Arc::default(), Effects::Keyed).layer(inner);
    for replayed in ["false", "true"] {
        let answer = service.clone().oneshot(request()).await.unwrap();
        assert_eq!(answer.headers()["idempotent-replayed"], replayed);
        assert_eq!(answer.into_body().collect().await.unwrap().to_bytes(), "cabin 7");
    }
    assert_eq!(calls.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn a_service_that_fails_without_an_answer_is_recorded_and_its_error_passed_on() {
    for (effects, state) in [(Effects::Keyed, "retriable"), (Effects::Opaque(OnUnknown::Hold), "unknown")] {
        let map = Arc::new(Map::default());
        let inner = service_fn(|_: Request<Body>| async {
            Err::<Response<Full<Bytes>>, _>(std::io::Error::other("no connection"))
        });
        let answer = layer(&map, effects).layer(inner).oneshot(request()).await;
        assert_eq!(answer.unwrap_err().to_string(), "no connection");
        let states: Vec<_> = map.0.lock().unwrap().values().map(|record| record.phase.as_str()).collect();
        assert_eq!(states, [state]);
    }
}

#[tokio::test(start_paused = true)]
async fn a_ledger_may_say_that_it_is_enough_before_the_time_is_over() {
    let map = Arc::new(Map::default());
    let inner =
        service_fn(|_: Request<Body>| std::future::pending::<Result<Response<Full<Bytes>>, Infallible>>());
    let began = tokio::time::Instant::now();
    let answer = layer(&map, Effects::Keyed).layer(inner).oneshot(request()).await.unwrap();
    assert_eq!((answer.status().as_u16(), began.elapsed()), (504, Duration::from_secs(10)));
}
