//! The client over real sockets: what is sent again, what is not, and what travels along.
#![allow(clippy::unwrap_used, reason = "a panic is a test's way to fail")]
#![cfg(feature = "reqwest")]

use std::time::Duration;

use http::StatusCode;
use redrive_core::{Backoff, Disposition, Executed, Fault, Policy, StopReason};
use redrive_http::{Client, StatusMap};
use redrive_testkit::{Reply, Scripted};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

/// Three attempts, a millisecond apart.
fn policy() -> Policy {
    Policy::builder().backoff(Backoff::constant(Duration::from_millis(1))).build().unwrap()
}

fn client() -> Client {
    Client::new(reqwest::Client::new(), policy())
}

#[tokio::test]
async fn a_get_is_sent_until_it_is_answered() {
    let server = Scripted::start([Reply::status(500), Reply::Cut, Reply::status(200).body("page")]).await;
    let response = client().get(server.url("/page")).send().await.unwrap();
    let report = Client::report(&response).unwrap();
    assert_eq!((report.reason, report.attempts), (StopReason::Succeeded, 3));
    assert_eq!(response.text().await.unwrap(), "page");
    assert_eq!(server.asked().len(), 3);
}

#[tokio::test]
async fn the_last_answer_comes_back_with_why_it_stopped() {
    let server = Scripted::start([Reply::status(500), Reply::status(500), Reply::status(502)]).await;
    let response = client().get(server.url("/")).send().await.unwrap();
    assert_eq!(response.status(), StatusCode::BAD_GATEWAY);
    assert_eq!(Client::report(&response).unwrap().reason, StopReason::AttemptsSpent);
}

#[tokio::test]
async fn statuses_mean_what_the_table_says() {
    for (status, attempts, reason) in [
        (200, 1, StopReason::Succeeded),
        (204, 1, StopReason::Succeeded),
        (304, 1, StopReason::Permanent),
        (400, 1, StopReason::Permanent),
        (404, 1, StopReason::Permanent),
        (408, 1, StopReason::Permanent),
        (422, 1, StopReason::Permanent),
        (429, 2, StopReason::Succeeded),
        (500, 2, StopReason::Succeeded),
        (503, 2, StopReason::Succeeded),
        (504, 2, StopReason::Succeeded),
    ] {
        let server = Scripted::start([Reply::status(status)]).await;
        let response = client().get(server.url("/")).send().await.unwrap();
        let report = Client::report(&response).unwrap();
        assert_eq!((report.attempts, report.reason), (attempts, reason), "{status}");
    }
}

#[tokio::test]
async fn a_map_overrides_single_statuses() {
    let server = Scripted::start([Reply::status(409), Reply::status(410)]).await;
    let statuses = StatusMap::default()
        .set(StatusCode::CONFLICT, Fault::transient())
        .set(StatusCode::GONE, Disposition::Ok);
    let response = client().statuses(statuses).delete(server.url("/")).send().await.unwrap();
    let report = Client::report(&response).unwrap();
    assert_eq!((report.attempts, report.reason), (2, StopReason::Succeeded));
}

#[tokio::test]
async fn without_a_budget_overload_is_not_retried() {
    let server = Scripted::start([Reply::status(503)]).await;
    let policy = Policy::builder().no_budget().build().unwrap();
    let client = Client::new(reqwest::Client::new(), policy);
    let response = client.get(server.url("/")).send().await.unwrap();
    assert_eq!(Client::report(&response).unwrap().reason, StopReason::BudgetSpent);
    assert_eq!(server.asked().len(), 1);
}

#[tokio::test]
async fn a_post_without_a_key_is_sent_once() {
    for reply in [Reply::status(500), Reply::Cut] {
        let server = Scripted::start([reply]).await;
        let _ = client().post(server.url("/")).with(|post| post.body("17 EUR")).send().await;
        assert_eq!(server.asked().len(), 1);
        assert_eq!(
            server.asked()[0].header("redrive-attempt"),
            None,
            "this client does not repeat it, so the next layer may"
        );
    }
}

#[tokio::test]
async fn a_minted_key_is_one_for_the_call_and_another_for_the_next() {
    let server = Scripted::start([Reply::status(500), Reply::Cut]).await;
    let client = client();
    for _ in 0..2 {
        let call = client.post(server.url("/")).with(|post| post.body("17 EUR")).mint_key();
        assert_eq!(call.send().await.unwrap().status(), StatusCode::OK);
    }
    let asked = server.asked();
    let keys: Vec<_> = asked.iter().map(|asked| asked.header("idempotency-key").unwrap()).collect();
    assert_eq!(keys.len(), 4);
    assert!(keys[0] == keys[1] && keys[1] == keys[2], "{keys:?}");
    assert_ne!(keys[2], keys[3]);
    assert!(keys[0].starts_with('"') && keys[0].ends_with('"'), "a structured string: {}", keys[0]);
    assert!(asked.iter().all(|asked| asked.body == "17 EUR"), "the body goes along every time");
}

#[tokio::test]
async fn the_callers_own_key_is_kept_and_makes_a_post_repeatable() {
    let server = Scripted::start([Reply::status(502)]).await;
    client().minting_keys().post(server.url("/")).idempotency_key("order-17").send().await.unwrap();
    let asked = server.asked();
    assert_eq!(asked.len(), 2);
    assert!(asked.iter().all(|asked| asked.header("idempotency-key") == Some("\"order-17\"")));
}

#[tokio::test]
async fn a_key_is_minted_only_where_none_is_and_the_method_is_not_enough() {
    let server = Scripted::start([]).await;
    let client = client().minting_keys();
    let own = client.post(server.url("/")).with(|post| post.header("idempotency-key", "order-17"));
    own.send().await.unwrap();
    client.put(server.url("/")).send().await.unwrap();
    client.patch(server.url("/")).send().await.unwrap();
    let asked = server.asked();
    assert_eq!(asked[0].header("idempotency-key"), Some("order-17"), "the caller's own, as it was set");
    assert_eq!(asked[1].header("idempotency-key"), None);
    assert!(asked[2].header("idempotency-key").is_some());
}

#[tokio::test]
async fn a_streamed_body_is_never_sent_twice() {
    let server = Scripted::start([Reply::status(500)]).await;
    let parts = ["one ", "two"].map(Ok::<_, std::io::Error>);
    let body = reqwest::Body::wrap_stream(futures_util::stream::iter(parts));
    let response = client().put(server.url("/")).with(|put| put.body(body)).send().await.unwrap();
    assert_eq!(response.status(), StatusCode::INTERNAL_SERVER_ERROR);
    assert_eq!(Client::report(&response).unwrap().reason, StopReason::AttemptsSpent);
    assert_eq!(server.asked().len(), 1);
    assert_eq!(server.asked()[0].body, "one two");
}

#[tokio::test]
async fn attempts_are_counted_in_a_header_and_time_left_is_told() {
    let server = Scripted::start([Reply::status(500), Reply::status(500)]).await;
    let policy = Policy::builder().backoff(Backoff::NONE).time(Duration::from_secs(30)).build().unwrap();
    Client::new(reqwest::Client::new(), policy).get(server.url("/")).send().await.unwrap();
    let asked = server.asked();
    let attempts: Vec<_> = asked.iter().map(|asked| asked.header("redrive-attempt").unwrap()).collect();
    assert_eq!(attempts, ["1", "2", "3"]);
    for asked in asked {
        let deadline = humantime::parse_rfc3339(asked.header("redrive-deadline").unwrap()).unwrap();
        let left = deadline.duration_since(std::time::SystemTime::now()).unwrap();
        assert!((20..=30).contains(&left.as_secs()), "{left:?}");
    }
}

#[tokio::test]
async fn an_answer_marked_no_retry_is_the_last() {
    let server = Scripted::start([Reply::status(500).header("redrive-no-retry", "1")]).await;
    let response = client().get(server.url("/")).send().await.unwrap();
    assert_eq!(Client::report(&response).unwrap().reason, StopReason::Permanent);
    assert_eq!(server.asked().len(), 1);
}

/// Paused time runs on when everything waits for a timer, and only then: while a request is under way there
/// is none.
#[tokio::test(start_paused = true)]
async fn retry_after_is_waited_for_and_not_a_moment_less() {
    let date = humantime_date(Duration::from_secs(100));
    for (value, at_least) in [("2", 2), (date.as_str(), 98)] {
        let server = Scripted::start([Reply::status(503).header("retry-after", value)]).await;
        let before = tokio::time::Instant::now();
        let response = client().get(server.url("/")).send().await.unwrap();
        let waited = Client::report(&response).unwrap().waited;
        assert_eq!(response.status(), StatusCode::OK);
        assert!(waited >= Duration::from_secs(at_least), "{value}: {waited:?}");
        assert!(before.elapsed() >= waited);
    }
}

fn humantime_date(from_now: Duration) -> String {
    httpdate::fmt_http_date(std::time::SystemTime::now() + from_now)
}

#[tokio::test]
async fn retry_after_of_a_day_ends_it_at_once() {
    let server = Scripted::start([Reply::status(503).header("retry-after", "86400")]).await;
    let response = client().get(server.url("/")).send().await.unwrap();
    assert_eq!(Client::report(&response).unwrap().reason, StopReason::NotBeforeTooFar);
}

#[tokio::test]
async fn nobody_at_home_is_retried_and_known_not_to_be_executed() {
    let nobody = {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        listener.local_addr().unwrap()
    };
    let stopped = client().get(format!("http://{nobody}/")).send().await.unwrap_err();
    assert_eq!((stopped.report.reason, stopped.report.attempts), (StopReason::AttemptsSpent, 3));
    assert_eq!(stopped.report.executed, Executed::No);
    assert!(stopped.error.unwrap().is_connect());
}

#[tokio::test]
async fn a_cut_connection_leaves_the_effect_unknown() {
    let server = Scripted::start([Reply::Cut, Reply::Cut, Reply::Cut]).await;
    let stopped = client().get(server.url("/")).send().await.unwrap_err();
    assert_eq!(stopped.report.executed, Executed::Unknown);
}

#[tokio::test]
async fn a_stalled_answer_ends_at_the_attempts_time_out_and_is_tried_again() {
    let server = Scripted::start([Reply::Stall]).await;
    let policy =
        Policy::builder().backoff(Backoff::NONE).attempt_time(Duration::from_millis(50)).build().unwrap();
    let client = Client::new(reqwest::Client::new(), policy);
    let response = client.get(server.url("/")).send().await.unwrap();
    assert_eq!(Client::report(&response).unwrap().attempts, 2);
}

#[tokio::test]
async fn a_request_that_cannot_be_built_is_permanent() {
    let stopped = client().get("not an address").send().await.unwrap_err();
    assert_eq!((stopped.report.reason, stopped.report.attempts), (StopReason::Permanent, 1));
    assert!(stopped.error.unwrap().is_builder());
}

#[tokio::test]
async fn a_body_that_does_not_decode_is_permanent() {
    let server = Scripted::start([Reply::status(200).body("{")]).await;
    let response = client().get(server.url("/")).send().await.unwrap();
    let error = response.json::<Vec<u8>>().await.unwrap_err();
    assert_eq!(redrive_http::classify::reqwest(&error), Some(Fault::permanent()));
}

#[tokio::test]
async fn a_redirect_loop_is_permanent() {
    let server = Scripted::start((0..20).map(|_| Reply::status(302).header("location", "/"))).await;
    let stopped = client().get(server.url("/")).send().await.unwrap_err();
    assert_eq!(stopped.report.reason, StopReason::Permanent);
}

#[tokio::test]
async fn a_key_that_cannot_be_sent_is_an_error_and_not_another_key() {
    let server = Scripted::start([]).await;
    for key in ["", "bestellung-\u{e9}-17", &"x".repeat(256)] {
        let call = client().minting_keys().post(server.url("/")).idempotency_key(key);
        let stopped = call.send().await.unwrap_err();
        assert_eq!((stopped.report.reason, stopped.report.executed), (StopReason::Permanent, Executed::No));
        assert!(stopped.error.unwrap().is_builder());
    }
    assert!(server.asked().is_empty());
}

#[tokio::test]
async fn an_empty_key_is_none() {
    let server = Scripted::start([Reply::status(500)]).await;
    let call = client().post(server.url("/")).with(|post| post.header("idempotency-key", ""));
    call.send().await.unwrap();
    assert_eq!(server.asked().len(), 1);
}

#[tokio::test]
async fn a_body_that_was_cut_may_come_whole_the_next_time() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/", listener.local_addr().unwrap());
    tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        let _ = stream.read(&mut [0; 1024]).await;
        stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nhello").await.unwrap();
    });
    let error = client().get(url).send().await.unwrap().text().await.unwrap_err();
    assert_eq!(redrive_http::classify::reqwest(&error), Some(Fault::transient()));
}

#[tokio::test(start_paused = true)]
async fn a_cancelled_wait_ends_at_once() {
    let server = Scripted::start([Reply::status(503).header("retry-after", "60")]).await;
    let before = tokio::time::Instant::now();
    let cancel = tokio::time::sleep(Duration::from_secs(1));
    let stopped = client().get(server.url("/")).send_unless(cancel).await.unwrap_err();
    assert_eq!(stopped.report.reason, StopReason::Cancelled);
    assert!(before.elapsed() < Duration::from_secs(2));
}
