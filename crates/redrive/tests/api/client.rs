//! Our own client against our own layer: each understands the other.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use axum::http::StatusCode;
use redrive::api::{Effects, Endpoint, OnUnknown, Tenant};
use redrive::http::ledger_status::RecordStatus;
use redrive::http::{Client, ProblemCode};
use redrive::{Backoff, Policy, StopReason};

use crate::shop::{BOOK, Calls, counting, keyed, memory, serve};
use crate::spy::Gate;

fn client() -> Client {
    let policy = Policy::builder().backoff(Backoff::NONE).build().unwrap();
    Client::new(reqwest::Client::new(), policy)
}

/// A client that does not retry.
fn once() -> Client {
    Client::new(reqwest::Client::new(), Policy::builder().attempts(1).build().unwrap())
}

#[tokio::test]
async fn a_second_call_under_the_key_is_told_that_it_is_a_replay() {
    let shop = counting(keyed()).await;
    let url = shop.server.url("/bookings");
    let first = client().post(&url).idempotency_key("k").send().await.unwrap();
    let status = Client::ledger_status(&first);
    assert_eq!((status.record, status.replayed), (Some(RecordStatus::Created), false));
    assert!(status.expires.is_some());
    let second = client().post(&url).idempotency_key("k").send().await.unwrap();
    let status = Client::ledger_status(&second);
    assert!(status.replayed && status.first_received.is_some());
    assert_eq!(first.text().await.unwrap(), second.text().await.unwrap());
    assert_eq!(shop.calls.count(), 1);
}

#[tokio::test]
async fn a_failure_is_tried_again_under_the_same_key() {
    let (redrive, _) = memory();
    let calls = Calls::default();
    let counted = calls.clone();
    let handler = move || async move {
        if counted.add() == 1 { StatusCode::INTERNAL_SERVER_ERROR } else { StatusCode::CREATED }
    };
    let server = serve(&redrive, keyed(), handler).await;
    let response = client().post(server.url("/bookings")).mint_key().send().await.unwrap();
    assert_eq!(response.status(), StatusCode::CREATED);
    let status = Client::ledger_status(&response);
    assert_eq!((status.record, status.attempt), (Some(RecordStatus::Resumed), Some(2)));
    assert_eq!(Client::report(&response).unwrap().attempts, 2);
}

#[tokio::test]
async fn an_unknown_outcome_is_not_tried_again() {
    let (redrive, _) = memory();
    let calls = Calls::default();
    let counted = calls.clone();
    let handler = move || async move {
        counted.add();
        StatusCode::BAD_GATEWAY
    };
    let hold = Effects::Opaque(OnUnknown::Hold);
    let endpoint = Endpoint::new(BOOK).tenant(Tenant::fixed("acme")).effects(hold);
    let server = serve(&redrive, endpoint, handler).await;
    // The handler's own failure is transient; the ledger's answer to the second try is not.
    let response = client().post(server.url("/bookings")).mint_key().send().await.unwrap();
    assert_eq!(response.status(), StatusCode::CONFLICT);
    let report = Client::report(&response).unwrap();
    assert_eq!((report.attempts, report.reason), (2, StopReason::Permanent));
    assert_eq!(Client::problem(&response).unwrap().code, Some(ProblemCode::OutcomeUnknown));
    assert_eq!(calls.count(), 1);
}

#[tokio::test]
async fn one_that_still_runs_may_be_tried_again_later_or_waited_for() {
    let (redrive, _) = memory();
    let gate = Gate::default();
    let at = gate.clone();
    let handler = move || async move {
        at.pass().await;
        "booked"
    };
    let server = serve(&redrive, keyed(), handler).await;
    let url: Arc<str> = server.url("/bookings").into();
    let (there, first) = (Arc::clone(&url), client());
    let first = tokio::spawn(async move { first.post(&*there).idempotency_key("k").send().await.unwrap() });
    gate.reached.wait().await;
    let told = once().post(&*url).idempotency_key("k").send().await.unwrap();
    let refusal = Client::problem(&told).unwrap();
    assert_eq!((refusal.code.as_ref(), refusal.retryable), (Some(&ProblemCode::InFlight), Some(true)));
    assert!(refusal.retry_after.is_some_and(|wait| wait >= Duration::from_secs(1)));
    assert_eq!(Client::report(&told).unwrap().reason, StopReason::AttemptsSpent, "it would have come again");
    let waits = client().post(&*url).idempotency_key("k").prefer_wait(Duration::from_secs(20));
    let second = tokio::spawn(async move { waits.send().await.unwrap() });
    gate.open.give();
    assert_eq!(first.await.unwrap().text().await.unwrap(), "booked");
    let second = second.await.unwrap();
    assert!(Client::ledger_status(&second).replayed);
    assert_eq!(second.text().await.unwrap(), "booked");
}

#[tokio::test]
async fn a_key_for_something_else_or_from_long_ago_is_refused_once_and_for_all() {
    let shop = counting(keyed()).await;
    let url = shop.server.url("/bookings");
    let post =
        |key: &str, body: &'static str| client().post(&url).idempotency_key(key).with(|post| post.body(body));
    post("k", "one").send().await.unwrap();
    let reused = post("k", "another").send().await.unwrap();
    assert_eq!(Client::problem(&reused).unwrap().code, Some(ProblemCode::KeyReused));
    // The shop's clock stands in September 2026.
    let long_ago = SystemTime::UNIX_EPOCH + Duration::from_secs(1_789_000_000);
    let old = post("l", "one").first_sent(long_ago).send().await.unwrap();
    assert_eq!(Client::problem(&old).unwrap().code, Some(ProblemCode::KeyTooOld));
    for response in [reused, old] {
        let report = Client::report(&response).unwrap();
        assert_eq!((report.attempts, report.reason), (1, StopReason::Permanent));
    }
    assert_eq!(shop.calls.count(), 1);
}
