//! `Prefer: wait`: row 10. What waits is seen by its looking at the ledger.

use std::sync::Arc;
use std::time::Duration;

use axum::http::StatusCode;
use redrive::api::Idempotent;
use redrive::testing;

use crate::shop::{Calls, behind, keyed, memory};
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
    let (redrive, _) = memory();
    let spy = Spy::over(&redrive);
    let layer = Idempotent::new(spy.clone(), keyed().concurrency(2)).unwrap();
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
    let waiting = [(); 4].map(|()| server.later(post("1").key("k").header("prefer", "wait=20")));
    for _ in 0..4 {
        spy.looks.wait().await;
    }
    assert_eq!(server.ask(&post("2").key("l")).await.text(), "2");
    gate.open.give();
    for waiting in waiting {
        assert_eq!(waiting.await.unwrap().text(), "1");
    }
}
