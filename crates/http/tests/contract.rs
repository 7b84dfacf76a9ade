//! The client against what an idempotent layer answers: what is asked for again, what never, and what is told of it.
#![allow(clippy::unwrap_used, reason = "a panic is a test's way to fail")]
#![cfg(feature = "reqwest")]

use std::time::{Duration, SystemTime};

use http::StatusCode;
use redrive_core::{Backoff, Fault, Policy, StopReason};
use redrive_http::ledger_status::RecordStatus;
use redrive_http::{Client, ProblemCode, StatusMap};
use redrive_retry::Retry;
use redrive_testkit::{Reply, Scripted};

fn client() -> Client {
    let policy = Policy::builder().backoff(Backoff::constant(Duration::from_millis(1))).build().unwrap();
    Client::new(reqwest::Client::new(), policy).minting_keys()
}

fn problem(status: u16, body: &'static str) -> Reply {
    Reply::status(status).header("content-type", "application/problem+json").body(body)
}

/// An answer that does not say how long it is.
fn chunked(reply: Reply) -> Reply {
    reply.header("transfer-encoding", "chunked")
}

const IN_FLIGHT: &str =
    r#"{"code":"in-flight","detail":"it runs","retry_after_ms":1500,"retryable":true,"status":409}"#;
const UNKNOWN: &str = r#"{"code":"outcome-unknown","detail":"it is unknown","retryable":false,"status":409}"#;

/// Paused time runs on when everything waits for a timer, and only then.
#[tokio::test(start_paused = true)]
async fn a_request_that_still_runs_is_asked_for_again_under_its_key_not_before_its_time() {
    let in_flight = problem(409, IN_FLIGHT).header("retry-after", "2");
    let server = Scripted::start([in_flight, Reply::status(201).header("idempotent-replayed", "true")]).await;
    let response = client().post(server.url("/")).with(|post| post.body("17 EUR")).send().await.unwrap();
    assert_eq!(response.status(), StatusCode::CREATED);
    let report = Client::report(&response).unwrap();
    assert_eq!((report.attempts, report.reason), (2, StopReason::Succeeded));
    assert!(report.waited >= Duration::from_secs(2), "{:?}", report.waited);
    let keys: Vec<_> =
        server.asked().iter().map(|asked| asked.header("idempotency-key").unwrap().to_owned()).collect();
    assert_eq!(keys[0], keys[1]);
}

#[tokio::test(start_paused = true)]
async fn the_later_of_header_and_document_is_waited_for() {
    let body = r#"{"code":"backing-off","retryable":true,"retry_after_ms":3000}"#;
    for (reply, at_least) in [
        (problem(503, body).header("retry-after", "1"), 3),
        (problem(503, body).header("retry-after", "5"), 5),
        (problem(503, body), 3),
        // The document is gone on its way, and the header tells enough.
        (Reply::status(409).header("retry-after", "4"), 4),
    ] {
        let server = Scripted::start([reply]).await;
        let response = client().post(server.url("/")).send().await.unwrap();
        let report = Client::report(&response).unwrap();
        assert_eq!((report.attempts, report.reason), (2, StopReason::Succeeded));
        assert!(report.waited >= Duration::from_secs(at_least), "{at_least}: {:?}", report.waited);
    }
}

#[tokio::test]
async fn what_is_marked_not_retryable_is_asked_once() {
    for (status, code, body) in [
        (409, ProblemCode::OutcomeUnknown, UNKNOWN),
        (422, ProblemCode::KeyReused, r#"{"code":"key-reused","retryable":false}"#),
        (412, ProblemCode::KeyTooOld, r#"{"code":"key-too-old","retryable":false}"#),
        (
            410,
            ProblemCode::ResponseExpired,
            r#"{"code":"response-expired","retryable":false,"original_status":201}"#,
        ),
        (400, ProblemCode::KeyMissing, r#"{"code":"key-missing","retryable":false}"#),
        // Statuses that are retried elsewhere.
        (
            503,
            ProblemCode::Other("shutting-down".to_owned()),
            r#"{"code":"shutting-down","retryable":false}"#,
        ),
        (504, ProblemCode::Other("timed-out".to_owned()), r#"{"code":"timed-out","retryable":false}"#),
    ] {
        let server = Scripted::start([problem(status, body)]).await;
        let response = client().post(server.url("/")).send().await.unwrap();
        assert_eq!(Client::report(&response).unwrap().reason, StopReason::Permanent, "{body}");
        assert_eq!(server.asked().len(), 1, "{body}");
        assert_eq!(Client::problem(&response).unwrap().code, Some(code));
    }
}

#[tokio::test]
async fn nobody_further_out_sends_an_unknown_outcome_again_under_a_new_key() {
    // The header says the same of a document that says nothing of it.
    let marked = problem(500, r#"{"code":"handler-failed"}"#).header("redrive-no-retry", "1");
    for reply in [problem(409, UNKNOWN), chunked(problem(409, UNKNOWN)), marked] {
        let server = Scripted::start([reply]).await;
        let (client, url) = (client(), server.url("/"));
        let pay = || async { client.post(&url).send().await.unwrap().error_for_status() };
        let policy = Policy::builder().backoff(Backoff::NONE).build().unwrap();
        let stopped = pay.retry(&policy).classify(|_: &reqwest::Error| Fault::transient()).await.unwrap_err();
        assert_eq!(stopped.report.reason, StopReason::Permanent);
        assert_eq!(server.asked().len(), 1);
    }
}

#[tokio::test]
async fn without_a_key_a_post_is_sent_once_whatever_the_document_says() {
    let server = Scripted::start([problem(409, IN_FLIGHT)]).await;
    let keyless = Client::new(reqwest::Client::new(), Policy::default());
    assert_eq!(keyless.post(server.url("/")).send().await.unwrap().status(), StatusCode::CONFLICT);
    assert_eq!(server.asked().len(), 1);
}

#[tokio::test]
async fn a_replayed_failure_is_final_because_it_would_come_again() {
    for reply in [Reply::status(503), Reply::status(409).header("retry-after", "1"), problem(409, IN_FLIGHT)]
    {
        let server = Scripted::start([reply.header("idempotent-replayed", "true")]).await;
        let response = client().post(server.url("/")).send().await.unwrap();
        assert_eq!(Client::report(&response).unwrap().reason, StopReason::Permanent);
        assert_eq!(server.asked().len(), 1);
    }
}

#[tokio::test]
async fn an_answer_marked_no_retry_is_final_whatever_its_document_says() {
    let server = Scripted::start([problem(409, IN_FLIGHT).header("redrive-no-retry", "1")]).await;
    let response = client().post(server.url("/")).send().await.unwrap();
    assert_eq!(Client::report(&response).unwrap().reason, StopReason::Permanent);
    assert_eq!(server.asked().len(), 1);
}

#[tokio::test]
async fn what_the_client_was_told_of_a_status_counts_more_than_that_it_may_be_tried_again() {
    let server = Scripted::start([problem(409, IN_FLIGHT).header("retry-after", "1")]).await;
    let statuses = StatusMap::default().set(StatusCode::CONFLICT, Fault::permanent());
    client().statuses(statuses).post(server.url("/")).send().await.unwrap();
    assert_eq!(server.asked().len(), 1);
    // And less than that it may not.
    let server = Scripted::start([problem(409, UNKNOWN)]).await;
    let statuses = StatusMap::default().set(StatusCode::CONFLICT, Fault::transient());
    client().statuses(statuses).post(server.url("/")).send().await.unwrap();
    assert_eq!(server.asked().len(), 1);
}

#[tokio::test]
async fn a_document_that_was_read_is_still_there_with_its_address() {
    let server = Scripted::start([problem(409, UNKNOWN).header("x-more", "a").header("x-more", "b")]).await;
    let url = server.url("/pay?for=17");
    let response = client().post(&url).send().await.unwrap();
    assert_eq!(response.url().as_str(), url);
    assert_eq!(response.headers().get_all("x-more").iter().count(), 2);
    assert_eq!(response.content_length(), Some(UNKNOWN.len() as u64));
    assert!(response.remote_addr().is_some());
    let refusal = Client::problem(&response).unwrap();
    assert_eq!((refusal.retryable, refusal.detail.as_deref()), (Some(false), Some("it is unknown")));
    assert_eq!(response.text().await.unwrap(), UNKNOWN);
}

#[tokio::test]
async fn a_document_is_read_however_it_is_framed() {
    let server = Scripted::start([chunked(problem(409, UNKNOWN))]).await;
    let response = client().post(server.url("/")).send().await.unwrap();
    assert!(response.headers().get("content-length").is_none());
    assert_eq!(Client::problem(&response).unwrap().code, Some(ProblemCode::OutcomeUnknown));
    assert_eq!(response.text().await.unwrap(), UNKNOWN);
    let full: &'static str = format!("{UNKNOWN}{}", " ".repeat(16 * 1024 - UNKNOWN.len())).leak();
    let server = Scripted::start([chunked(problem(409, full))]).await;
    let response = client().post(server.url("/")).send().await.unwrap();
    assert_eq!(Client::problem(&response).unwrap().code, Some(ProblemCode::OutcomeUnknown));
}

#[tokio::test]
async fn only_small_problem_documents_are_read() {
    let long: &'static str = format!(r#"{{"retryable":false,"x":"{}"}}"#, "x".repeat(16 * 1024)).leak();
    let longer: &'static str = format!(r#"{{"retryable":false,"x":"{}"}}"#, "y".repeat(1 << 20)).leak();
    for (reply, body) in [
        (problem(500, long), long),
        (chunked(problem(500, long)), long),
        (chunked(problem(500, longer)), longer),
        (Reply::status(500).header("content-type", "application/json").body(UNKNOWN), UNKNOWN),
        (problem(500, "not JSON"), "not JSON"),
        (problem(500, "[]"), "[]"),
        (problem(500, r#"{"retryable":"no"}"#), r#"{"retryable":"no"}"#),
    ] {
        let server = Scripted::start([reply.clone(), reply.clone(), reply]).await;
        let response = client().post(server.url("/")).send().await.unwrap();
        // As the status alone has it.
        assert_eq!(Client::report(&response).unwrap().attempts, 3);
        assert!(Client::problem(&response).is_none_or(|refusal| refusal.retryable.is_none()));
        assert_eq!(response.text().await.unwrap(), body);
    }
}

#[tokio::test]
async fn how_a_request_stands_is_read_from_its_answer() {
    let replay = Reply::status(201)
        .header("idempotent-replayed", "true")
        .header("idempotency-first-received", "Sun, 06 Nov 1994 08:49:37 GMT")
        .header("preference-applied", "wait");
    let ran =
        Reply::status(201).header("idempotency-status", "unrecorded").header("idempotent-replayed", "false");
    let server = Scripted::start([replay, ran]).await;
    let status = Client::ledger_status(&client().post(server.url("/")).send().await.unwrap());
    assert!(status.replayed && status.waited && status.first_received.is_some());
    let status = Client::ledger_status(&client().post(server.url("/")).send().await.unwrap());
    assert_eq!((status.replayed, status.record), (false, Some(RecordStatus::Unrecorded)));
}

#[tokio::test]
async fn when_it_was_first_sent_and_how_long_to_wait_are_said_on_request_and_at_every_attempt() {
    let server = Scripted::start([Reply::status(500), Reply::status(200)]).await;
    let first = SystemTime::UNIX_EPOCH + Duration::from_secs(784_111_777);
    let call = client().post(server.url("/")).idempotency_key("order-17");
    call.first_sent(first).prefer_wait(Duration::from_millis(2500)).send().await.unwrap();
    client().post(server.url("/")).send().await.unwrap();
    let asked = server.asked();
    for asked in &asked[..2] {
        assert_eq!(asked.header("repeatability-first-sent"), Some("Sun, 06 Nov 1994 08:49:37 GMT"));
        assert_eq!(asked.header("prefer"), Some("wait=3"));
    }
    assert_eq!((asked[2].header("repeatability-first-sent"), asked[2].header("prefer")), (None, None));
}
