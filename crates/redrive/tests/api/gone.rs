//! Answers that can no longer be replayed: rows 17, 18, 19 and 19b.

use std::time::Duration;

use axum::http::StatusCode;
use redrive::http::idempotent::{Body, KeyedOperation, RecordPhase, RenderRequest};
use redrive::testing;

use crate::shop::{Calls, counting, keyed, memory, records, serve};
use crate::wire::post;

const DAY: Duration = Duration::from_secs(86_400);

#[tokio::test]
async fn row_17_an_answer_with_secrets_is_made_anew_and_not_kept() {
    let (redrive, store) = memory();
    let calls = Calls::default();
    let counted = calls.clone();
    let handler = move |op: KeyedOperation| async move {
        counted.add();
        op.resource("card-7");
        (StatusCode::CREATED, [("location", "/cards/7")], "number 4111")
    };
    let render = |pointer: RenderRequest| async move {
        let card = pointer.resource?;
        (card == "card-7").then(|| axum::http::Response::new(Body::from(b"number 4111, again".to_vec())))
    };
    let server = serve(&redrive, keyed().render(render), handler).await;
    assert_eq!(server.ask(&post("{}").key("k")).await.text(), "number 4111");
    let again = server.ask(&post("{}").key("k")).await;
    assert_eq!((again.status, again.text().as_str()), (201, "number 4111, again"));
    assert_eq!(again.header("location").as_deref(), Some("/cards/7"));
    assert_eq!(again.header("idempotent-replayed").as_deref(), Some("true"));
    assert_eq!(calls.count(), 1);
    let (_, record) = &records(&redrive, &store).await[0];
    let RecordPhase::Completed { reply, .. } = &record.phase else { panic!("{record:?}") };
    assert_eq!((reply.status, &reply.body), (201, &None));
}

#[tokio::test]
async fn row_17_what_cannot_be_made_anew_is_gone() {
    let (redrive, _) = memory();
    let handler = || async { "once" };
    for panics in [false, true] {
        let render = move |_: RenderRequest| async move {
            assert!(!panics, "as it was told to");
            None
        };
        let server = serve(&redrive, keyed().render(render), handler).await;
        let key = format!("k{panics}");
        assert_eq!(server.ask(&post("{}").key(&key)).await.text(), "once");
        assert_eq!(server.ask(&post("{}").key(&key)).await.code(), "response-expired");
    }
}

#[tokio::test]
async fn row_18_an_answer_that_was_too_large_is_gone_and_the_request_never_runs_again() {
    let (redrive, _) = memory();
    let calls = Calls::default();
    let counted = calls.clone();
    let handler = move || async move {
        counted.add();
        (StatusCode::CREATED, [("location", "/bookings/7")], "x".repeat(100_000))
    };
    let server = serve(&redrive, keyed().reply_max(1000), handler).await;
    let first = server.ask(&post("{}").key("k")).await;
    assert_eq!((first.status, first.body.len()), (201, 100_000));
    let again = server.ask(&post("{}").key("k")).await;
    assert_eq!((again.status, again.code().as_str()), (410, "response-expired"));
    assert_eq!(again.json()["original_status"], 201);
    assert_eq!(again.header("location").as_deref(), Some("/bookings/7"));
    assert_eq!(calls.count(), 1);
}

#[tokio::test]
async fn rows_19_and_19b_a_tombstone_outlives_its_answer_four_times_and_then_it_is_as_if_it_never_was() {
    let shop = counting(keyed()).await;
    let request = post("{}").key("k");
    assert_eq!(shop.server.ask(&request).await.text(), "call 1");
    testing::pass(&shop.redrive, DAY - Duration::from_nanos(1));
    assert_eq!(shop.server.ask(&request).await.text(), "call 1");
    for wait in [Duration::from_nanos(1), 3 * DAY - Duration::from_nanos(1)] {
        testing::pass(&shop.redrive, wait);
        let gone = shop.server.ask(&request).await;
        assert_eq!((gone.status, gone.code().as_str()), (410, "response-expired"));
        assert_eq!(gone.header("idempotency-expires").as_deref(), Some("Tue, 22 Sep 2026 14:13:20 GMT"));
        assert_eq!(gone.header("idempotency-forgotten").as_deref(), Some("Fri, 25 Sep 2026 14:13:20 GMT"));
        assert_eq!(gone.json()["original_status"], 200);
        assert_eq!(
            shop.server.ask(&post("[]").key("k")).await.code(),
            "key-reused",
            "the fingerprint is kept"
        );
    }
    testing::pass(&shop.redrive, Duration::from_nanos(1));
    let fresh = shop.server.ask(&request).await;
    assert_eq!(
        (fresh.text().as_str(), fresh.header("idempotency-status").as_deref()),
        ("call 2", Some("created"))
    );
}
