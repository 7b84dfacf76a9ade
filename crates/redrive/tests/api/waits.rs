//! `Prefer: wait`: row 10. A waiting request is recognised by its looks at the ledger.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::Request;
use axum::http::StatusCode;
use axum::routing::post as post_to;
use redrive::api::{Effects, Endpoint, Idempotent, OnUnknown, Tenant};
use redrive::http::idempotent::ProbeOutcome;
use redrive::testing;
use tower::ServiceExt;

use crate::shop::{BOOK, Calls, behind, keyed, memory};
use crate::spy::{Gate, Spy};
use crate::wire::{Server, post};

/// A server whose first call stops at a gate and ends with this status, and whose later ones are fine.
async fn gated(status: u16) -> (Arc<Server>, Gate, Arc<Spy>, Calls) {
    let (redrive, _) = memory();
    let spy = Spy::over(&redrive);
    let layer = Idempotent::new(spy.clone(), keyed()).unwrap();
    let (gate, calls) = (Gate::default(), Calls::default());
    let (at, counted) = (gate.clone(), calls.clone());
    let handler = move || async move {
        let call = counted.add();
        if call == 1 {
            at.pass().await;
            return (StatusCode::from_u16(status).unwrap(), "call 1".to_owned());
        }
        (StatusCode::OK, format!("call {call}"))
    };
    (Arc::new(behind(&layer, handler).await), gate, spy, calls)
}

#[tokio::test]
async fn row_10_who_waits_gets_the_originals_answer() {
    let (server, gate, spy, calls) = gated(201).await;
    let first = server.later(post("{}").key("k"));
    gate.reached.wait().await;
    let second = server.later(post("{}").key("k").header("prefer", "respond-async, wait=20"));
    spy.looks.wait().await;
    gate.open.give();
    let second = second.await.unwrap();
    assert_eq!((second.status, second.text().as_str()), (201, "call 1"));
    assert_eq!(second.header("preference-applied").as_deref(), Some("wait"));
    assert_eq!(second.header("idempotent-replayed").as_deref(), Some("true"));
    assert_eq!(first.await.unwrap().header("idempotent-replayed").as_deref(), Some("false"));
    assert_eq!(calls.count(), 1);
}

#[tokio::test]
async fn row_10_where_the_first_ends_otherwise_the_table_is_asked_again() {
    let (server, gate, spy, calls) = gated(500).await;
    let first = server.later(post("{}").key("k"));
    gate.reached.wait().await;
    let second = server.later(post("{}").key("k").header("prefer", "wait=20"));
    spy.looks.wait().await;
    gate.open.give();
    let second = second.await.unwrap();
    assert_eq!((second.status, second.text().as_str()), (200, "call 2"));
    assert_eq!(second.header("idempotency-status").as_deref(), Some("resumed"));
    assert_eq!(second.header("idempotency-attempt").as_deref(), Some("2"));
    assert_eq!(first.await.unwrap().status, 500);
    assert_eq!(calls.count(), 2);
}

#[tokio::test]
async fn row_10_where_the_first_dies_its_lease_ends_the_wait() {
    let (server, gate, spy, calls) = gated(200).await;
    let _dead = server.later(post("{}").key("k"));
    gate.reached.wait().await;
    let second = server.later(post("{}").key("k").header("prefer", "wait=20"));
    spy.looks.wait().await;
    testing::pass(&spy.redrive, Duration::from_secs(30));
    let second = second.await.unwrap();
    assert_eq!(
        (second.text().as_str(), second.header("idempotency-attempt").as_deref()),
        ("call 2", Some("2"))
    );
    assert_eq!(calls.count(), 2);
}

#[tokio::test]
async fn row_10_when_the_time_is_over_it_is_in_flight() {
    let (server, gate, spy, _) = gated(200).await;
    let _first = server.later(post("{}").key("k"));
    gate.reached.wait().await;
    let second = server.ask(&post("{}").key("k").header("prefer", "wait=0")).await;
    spy.looks.wait().await;
    assert_eq!((second.status, second.code().as_str()), (409, "in-flight"));
    assert_eq!(second.header("preference-applied"), None);
    // And it is bounded, whatever a client wants.
    let (redrive, _) = memory();
    let gate = Gate::default();
    let at = gate.clone();
    let handler = move || async move { at.pass().await };
    let layer = Idempotent::new(Arc::new(redrive.ledger()), keyed().wait_max(Duration::ZERO)).unwrap();
    let server = Arc::new(behind(&layer, handler).await);
    let _first = server.later(post("{}").key("k"));
    gate.reached.wait().await;
    let second = server.ask(&post("{}").key("k").header("prefer", "wait=86400")).await;
    assert_eq!(second.code(), "in-flight");
}

#[tokio::test]
async fn row_10_who_waits_takes_nobodys_room() {
    // At the limit, and one below it, where the waiting request could take the last permit.
    for limit in [1, 2] {
        let (redrive, _) = memory();
        let spy = Spy::over(&redrive);
        let endpoint = keyed().concurrency(limit).patience(Duration::ZERO);
        let layer = Idempotent::new(spy.clone(), endpoint).unwrap();
        let gate = Gate::default();
        let at = gate.clone();
        let handler = move |body: String| async move {
            if body == "1" {
                at.pass().await;
            }
            body
        };
        let server = Arc::new(behind(&layer, handler).await);
        let _first = server.later(post("1").key("k"));
        gate.reached.wait().await;
        let waiting = server.later(post("1").key("k").header("prefer", "wait=20"));
        // At the limit it looks before it waits.
        for _ in 0..=usize::from(limit == 1) {
            spy.looks.wait().await;
        }
        let other = server.ask(&post("2").key("l")).await;
        if limit == 1 {
            assert_eq!(other.code(), "too-busy");
        } else {
            assert_eq!(other.text(), "2");
        }
        gate.open.give();
        assert_eq!(waiting.await.unwrap().text(), "1");
    }
}

#[tokio::test(start_paused = true)]
async fn row_10_who_waits_while_an_effect_settles_looks_now_and_then_and_not_for_longer_than_it_said() {
    let redrive = testing::memory();
    let spy = Spy::over(&redrive);
    let settling = Duration::from_secs(60);
    let effects = Effects::Opaque(OnUnknown::Probe { settling });
    let endpoint = Endpoint::new(BOOK).tenant(Tenant::fixed("acme")).effects(effects);
    let endpoint = endpoint.probe(|_| std::future::ready(ProbeOutcome::StillUnknown));
    let layer = Idempotent::new(spy.clone(), endpoint).unwrap();
    let app = Router::new().route("/bookings", post_to(std::future::pending::<()>).layer(layer));
    // Neither renewed nor ended: it died.
    spy.renewals_fail.store(true, Ordering::SeqCst);
    spy.ends_fail.store(true, Ordering::SeqCst);
    tokio::spawn(app.clone().oneshot(asking(None)));
    tokio::time::sleep(Duration::from_secs(31)).await;
    let began = tokio::time::Instant::now();
    let answer = app.oneshot(asking(Some("wait=2"))).await.unwrap();
    assert_eq!((answer.status(), began.elapsed()), (StatusCode::CONFLICT, Duration::from_secs(2)));
    assert_eq!(spy.claims.count(), 2, "one of the first, one of the second");
    assert!((10..=22).contains(&spy.looks.count()), "{}", spy.looks.count());
}

#[tokio::test(start_paused = true)]
async fn who_hung_up_while_it_was_claimed_does_not_wait() {
    let redrive = testing::memory();
    let spy = Spy::over(&redrive);
    let layer = Idempotent::new(spy.clone(), keyed()).unwrap();
    let calls = Calls::default();
    let counted = calls.clone();
    let handler = move || async move {
        counted.add();
        tokio::time::sleep(Duration::from_secs(10)).await;
        StatusCode::INTERNAL_SERVER_ERROR
    };
    let app = Router::new().route("/bookings", post_to(handler).layer(layer));
    let first = tokio::spawn(app.clone().oneshot(asking(None)));
    spy.claims.wait().await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    spy.claims_halt.store(true, Ordering::SeqCst);
    let second = tokio::spawn(app.oneshot(asking(Some("wait=20"))));
    spy.gate.reached.wait().await;
    second.abort();
    assert!(second.await.unwrap_err().is_cancelled());
    spy.gate.open.give();
    assert_eq!(first.await.unwrap().unwrap().status(), 500);
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!((spy.looks.count(), calls.count()), (0, 1), "no request waits for it, and none runs it again");
}

fn asking(prefer: Option<&str>) -> Request {
    let request = Request::post("/bookings").header("idempotency-key", "k");
    let request = prefer.into_iter().fold(request, |request, prefer| request.header("prefer", prefer));
    request.body(Body::empty()).unwrap()
}
