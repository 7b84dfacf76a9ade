//! Common mistakes of idempotency layers, each with a test that this one does not make it. `docs/guides/idempotency.md` lists
//! those that a row of the contract shows already.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use axum::http::{HeaderName, StatusCode};
use axum::response::IntoResponse;
use redrive::api::{Effects, Endpoint, Idempotent, Tenant};
use redrive::testing;

use crate::shop::{BOOK, Calls, behind, counting, keyed, memory, records, serve};
use crate::spy::{Gate, Spy};
use crate::wire::post;

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn check_then_act_without_a_lock() {
    // Twenty claims at once on several threads, and the handler does not end before all of the others were answered.
    let (redrive, _) = memory();
    let spy = Spy::over(&redrive);
    spy.claims_halt.store(true, Ordering::SeqCst);
    let (gate, calls) = (Gate::default(), Calls::default());
    let (at, counted) = (gate.clone(), calls.clone());
    let handler = move || async move {
        let call = counted.add();
        at.pass().await;
        format!("call {call}")
    };
    let layer = Idempotent::new(spy.clone(), keyed()).unwrap();
    let server = Arc::new(behind(&layer, handler).await);
    let mut asked = tokio::task::JoinSet::new();
    for _ in 0..20 {
        let server = server.clone();
        asked.spawn(async move { server.ask(&post("{}").key("k")).await });
    }
    for _ in 0..20 {
        spy.gate.reached.wait().await;
    }
    for _ in 0..20 {
        spy.gate.open.give();
    }
    for _ in 0..19 {
        assert_eq!(asked.join_next().await.unwrap().unwrap().code(), "in-flight");
    }
    gate.open.give();
    assert_eq!(asked.join_next().await.unwrap().unwrap().text(), "call 1");
    assert_eq!(calls.count(), 1);
}

#[tokio::test]
async fn one_time_out_for_lock_and_for_replay() {
    // A crash blocks a key for a lease, and not for as long as answers are kept.
    let (redrive, _) = memory();
    let gate = Gate::default();
    let at = gate.clone();
    let dead = Arc::new(serve(&redrive, keyed(), move || async move { at.pass().await }).await);
    let _first = dead.later(post("{}").key("k"));
    gate.reached.wait().await;
    testing::pass(&redrive, Duration::from_secs(30));
    let server = serve(&redrive, keyed(), || async { "fine" }).await;
    assert_eq!(server.ask(&post("{}").key("k")).await.text(), "fine");
    testing::pass(&redrive, Duration::from_secs(23 * 3600));
    assert_eq!(server.ask(&post("{}").key("k")).await.header("idempotent-replayed").as_deref(), Some("true"));
}

#[tokio::test]
async fn the_lock_lost_on_an_early_return() {
    // Whatever a handler does, its record has an end when its client has an answer.
    let (redrive, store) = memory();
    let handler = |body: String| async move {
        match body.as_str() {
            "rejected" => Err(StatusCode::UNPROCESSABLE_ENTITY),
            "failed" => Err(StatusCode::INTERNAL_SERVER_ERROR),
            "panicked" => panic!("as it was told to"),
            _ => Ok("fine"),
        }
    };
    let server = serve(&redrive, keyed(), handler).await;
    for body in ["rejected", "failed", "panicked", "fine"] {
        server.ask(&post(body).key(body)).await;
    }
    for (scope, record) in records(&redrive, &store).await {
        let want =
            if ["failed", "panicked"].contains(&scope.key.as_str()) { "retriable" } else { "completed" };
        assert_eq!(record.phase.as_str(), want, "{scope:?}");
    }
}

#[tokio::test]
async fn a_5xx_made_final() {
    let (redrive, _) = memory();
    let calls = Calls::default();
    let counted = calls.clone();
    let handler = move || async move {
        if counted.add() == 1 { StatusCode::BAD_GATEWAY.into_response() } else { "fine".into_response() }
    };
    let server = serve(&redrive, keyed(), handler).await;
    assert_eq!(server.ask(&post("{}").key("k")).await.status, 502);
    assert_eq!(server.ask(&post("{}").key("k")).await.text(), "fine");
}

#[tokio::test]
async fn the_record_deleted_after_half_an_effect() {
    // A keyed request that failed half-way keeps its fingerprint: it cannot go on as another one.
    let (redrive, _) = memory();
    let calls = Calls::default();
    let counted = calls.clone();
    let handler =
        move || async move { if counted.add() == 1 { StatusCode::BAD_GATEWAY } else { StatusCode::OK } };
    let server = serve(&redrive, keyed(), handler).await;
    assert_eq!(server.ask(&post(r#"{"cabin":7}"#).key("k")).await.status, 502);
    assert_eq!(server.ask(&post(r#"{"cabin":8}"#).key("k")).await.code(), "key-reused");
    let again = server.ask(&post(r#"{"cabin":7}"#).key("k")).await;
    assert_eq!((again.status, again.header("idempotency-attempt").as_deref()), (200, Some("2")));
}

#[tokio::test]
async fn keys_shared_across_tenants() {
    let tenant =
        |parts: &axum::http::request::Parts| Some(parts.headers.get("x-tenant")?.to_str().ok()?.to_owned());
    let shop = counting(Endpoint::new(BOOK).tenant(Tenant::from(tenant)).effects(Effects::Keyed)).await;
    let by = |tenant: &str| post("{}").key("k").header("x-tenant", tenant);
    assert_eq!(shop.server.ask(&by("acme")).await.text(), "call 1");
    assert_eq!(shop.server.ask(&by("other")).await.text(), "call 2");
    assert_eq!(shop.server.ask(&by("acme")).await.text(), "call 1");
}

#[tokio::test]
async fn the_fingerprint_dropped_on_completion() {
    let shop = counting(keyed()).await;
    assert_eq!(shop.server.ask(&post("1").key("k")).await.text(), "call 1");
    assert_eq!(shop.server.ask(&post("2").key("k")).await.code(), "key-reused");
}

#[tokio::test]
async fn headers_concatenated_without_delimiters() {
    let names = ["x-a", "x-b"].map(HeaderName::from_static);
    let shop = counting(keyed().headers(names)).await;
    let with = |a: &str, b: &str| post("{}").key("k").header("x-a", a).header("x-b", b);
    assert_eq!(shop.server.ask(&with("1", "23")).await.status, 200);
    assert_eq!(shop.server.ask(&with("12", "3")).await.code(), "key-reused");
    // The separator of fields in the fingerprint may also occur in a value.
    let both = post("{}").key("k").header("x-a", "1headerx-bvalue23");
    assert_eq!(shop.server.ask(&both).await.code(), "key-reused");
}

#[tokio::test]
async fn repeated_headers_dropped_on_replay_and_one_that_is_not_utf_8_makes_nothing_run_again() {
    let (redrive, _) = memory();
    let calls = Calls::default();
    let counted = calls.clone();
    let handler = move || async move {
        counted.add();
        let mut response = "fine".into_response();
        for value in [&b"one"[..], b"tw\xf6", b"three"] {
            response.headers_mut().append("x-part", axum::http::HeaderValue::from_bytes(value).unwrap());
        }
        response
    };
    let server = serve(&redrive, keyed(), handler).await;
    let parts = |answer: &crate::wire::Answer| {
        let parts = answer.headers.iter().filter(|(name, _)| name == "x-part");
        parts.map(|(_, value)| value.clone()).collect::<Vec<_>>()
    };
    let first = server.ask(&post("{}").key("k")).await;
    let again = server.ask(&post("{}").key("k")).await;
    assert_eq!(parts(&first), [&b"one"[..], b"tw\xf6", b"three"]);
    assert_eq!((parts(&first), calls.count()), (parts(&again), 1));
}

#[tokio::test]
async fn caching_before_validating() {
    // A request that is refused before the handler leaves no record: the corrected request passes under the same key.
    let shop = counting(keyed().body_max(16)).await;
    let bad = [post(r#"{"a":1,"a":2}"#), post("far too long for this endpoint")];
    for bad in bad {
        assert!(shop.server.ask(&bad.key("k")).await.status >= 400);
    }
    assert_eq!(
        shop.server.ask(&post("{}").key("k")).await.header("idempotency-status").as_deref(),
        Some("created")
    );
}
