//! The first answer, and the same again: rows 7, 9 and 16, and the commit of a handler's own.

use std::sync::Arc;

use axum::http::{HeaderMap, HeaderValue, StatusCode};
use redrive::api::{CommitError, Effects, Endpoint, Reply, Tenant};
use redrive::{Operation, testing};
use tokio::sync::Notify;

use crate::shop::{BOOK, Calls, counting, keyed, serve};
use crate::wire::post;

#[tokio::test]
async fn row_7_the_first_request_runs_and_is_told_that_it_did() {
    let shop = counting(keyed()).await;
    let answer = shop.server.ask(&post("{}").key("\"order-17\"")).await;
    assert_eq!((answer.status, answer.text().as_str()), (200, "call 1"));
    assert_eq!(answer.header("idempotency-key").as_deref(), Some("\"order-17\""));
    assert_eq!(answer.header("idempotent-replayed").as_deref(), Some("false"));
    assert_eq!(answer.header("idempotency-status").as_deref(), Some("created"));
    // The store's clock stands at a day in 2026, and an answer is kept for one more.
    assert_eq!(answer.header("idempotency-expires").as_deref(), Some("Tue, 22 Sep 2026 14:13:20 GMT"));
}

#[tokio::test]
async fn row_9_a_request_that_runs_is_in_flight_for_everybody_else() {
    let redrive = testing::memory();
    let (begun, go) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let (begins, goes) = (begun.clone(), go.clone());
    let handler = move || async move {
        begins.notify_one();
        goes.notified().await;
        "done"
    };
    let server = Arc::new(serve(&redrive, keyed(), handler).await);
    let first = tokio::spawn({
        let server = server.clone();
        async move { server.ask(&post("{}").key("k")).await }
    });
    begun.notified().await;
    let second = server.ask(&post("{}").key("k")).await;
    assert_eq!((second.status, second.code().as_str()), (409, "in-flight"));
    assert_eq!(
        second.header("retry-after").as_deref(),
        Some("30"),
        "no run was seen yet: what its lease has left"
    );
    assert_eq!(second.json()["retryable"], true);
    // That it asks something else comes before that it runs.
    let other = server.ask(&post("[]").key("k")).await;
    assert_eq!((other.status, other.code().as_str()), (422, "key-reused"));
    go.notify_one();
    assert_eq!(first.await.unwrap().text(), "done");
    assert_eq!(server.ask(&post("{}").key("k")).await.text(), "done");
}

#[tokio::test]
async fn row_16_a_repetition_gets_the_same_bytes_and_headers() {
    let redrive = testing::memory();
    let calls = Calls::default();
    let counted = calls.clone();
    let handler = move || async move {
        let mut headers = HeaderMap::new();
        headers.append("x-part", HeaderValue::from_static("one"));
        headers.append("x-part", HeaderValue::from_static("two"));
        headers.append("x-name", HeaderValue::from_bytes(b"caf\xe9").unwrap());
        headers.append("set-cookie", HeaderValue::from_static("session=1"));
        headers.append("x-hop", HeaderValue::from_static("1"));
        headers.append("connection", HeaderValue::from_static("x-hop"));
        (StatusCode::CREATED, headers, vec![0_u8, 255, u8::try_from(counted.add()).unwrap()])
    };
    let server = serve(&redrive, keyed(), handler).await;
    let first = server.ask(&post(r#"{"a":1,"b":2}"#).key("k")).await;
    assert_eq!(first.header("set-cookie").as_deref(), Some("session=1"));
    // Another spelling of key and body is the same request.
    let again = server.ask(&post(r#"{"b":2.0, "a":1}"#).key("\"k\"")).await;
    assert_eq!((again.status, &again.body), (201, &vec![0, 255, 1]));
    assert_eq!(again.all("x-part"), ["one", "two"]);
    let name = again.headers.iter().find(|(name, _)| name == "x-name").unwrap();
    assert_eq!(name.1, b"caf\xe9");
    assert_eq!(again.header("idempotent-replayed").as_deref(), Some("true"));
    assert_eq!(again.header("idempotency-first-received").as_deref(), Some("Mon, 21 Sep 2026 14:13:20 GMT"));
    assert_eq!((again.header("set-cookie"), again.header("x-hop")), (None, None));
    assert_eq!(calls.count(), 1);
}

#[tokio::test]
async fn a_commit_keeps_what_was_written_the_event_and_the_answer() {
    let redrive = testing::memory();
    redrive.queue("emails").declare().await.unwrap();
    let endpoint = Endpoint::new(BOOK).tenant(Tenant::fixed("acme")).effects(Effects::Transactional);
    let handler = |op: Operation| async move {
        let email = op.event("emails", "confirmation");
        let committed = op.commit(move |tx| {
            let cabins = tx.memory().unwrap();
            cabins.insert(format!("cabin-{}", cabins.len()), b"taken".to_vec());
            tx.publish(email.clone())?;
            Ok::<_, redrive::PublishError>(Reply::new(201).header("location", "/bookings/7").body("yours"))
        });
        committed.await?;
        // What was committed is what is sent.
        Ok::<_, CommitError>((StatusCode::IM_A_TEAPOT, "something else"))
    };
    let server = serve(&redrive, endpoint, handler).await;
    for _ in 0..2 {
        let answer = server.ask(&post("{}").key("k")).await;
        assert_eq!((answer.status, answer.text().as_str()), (201, "yours"));
        assert_eq!(answer.header("location").as_deref(), Some("/bookings/7"));
    }
    let cabins = redrive.transact(|tx| Ok::<_, std::fmt::Error>(tx.memory().unwrap().len())).await.unwrap();
    assert_eq!(cabins, 1);
    let emails = redrive.counts().await.unwrap().iter().map(|count| count.events).sum::<u64>();
    assert_eq!(emails, 1);
}
