//! reqwest 0.13.5's own retry: at once, whatever the server asked, and once where it should not at all.
//!
//! - There is no backoff: the policy's wait is a future that is ready. On loopback the retries are 0.2 ms
//!   apart.
//! - The classifier sees the status but no headers, so `Retry-After` cannot be honoured.
//! - The scope is asked when the request is copied for a second retry. The copy for the first is made before.
//!
//! Time is paused. It advances only when everything waits for a timer, so elapsed time is chosen waiting.

use std::time::Duration;

use redrive_core::{Backoff, Jitter, Policy};
use redrive_http::Client;
use redrive_testkit::{Reply, Scripted};
use reqwest::{Response, StatusCode};
use tokio::time::Instant;

/// Without idle connections: reqwest sets a timer for those, and paused time would run to it.
pub(crate) fn builder() -> reqwest::ClientBuilder {
    reqwest::Client::builder().pool_max_idle_per_host(0)
}

/// reqwest, retrying every 503 of this host twice.
fn theirs(host: &'static str) -> reqwest::Client {
    let retry = reqwest::retry::for_host(host).classify_fn(|seen| match seen.status() {
        Some(StatusCode::SERVICE_UNAVAILABLE) => seen.retryable(),
        _ => seen.success(),
    });
    builder().retry(retry).build().unwrap()
}

/// Redrive with as many attempts, from 100 ms on; at least half of that.
fn ours() -> Client {
    let backoff = Backoff::exponential(Duration::from_millis(100), 2.0, Duration::from_secs(10));
    let policy = Policy::builder().backoff(backoff).jitter(Jitter::Equal).build().unwrap();
    Client::new(builder().build().unwrap(), policy)
}

/// What was answered, and how long was waited for it.
async fn timed<E: std::fmt::Debug>(
    call: impl Future<Output = Result<Response, E>>,
) -> (StatusCode, Duration) {
    let start = Instant::now();
    let response = call.await.unwrap();
    (response.status(), start.elapsed())
}

async fn busy(retry_after: Option<&str>) -> Scripted {
    let busy = match retry_after {
        None => Reply::status(503),
        Some(wait) => Reply::status(503).header("retry-after", wait),
    };
    Scripted::start([busy.clone(), busy]).await
}

#[tokio::test(start_paused = true)]
async fn reqwest_retries_at_once_and_we_back_off() {
    let server = busy(None).await;
    let (status, waited) = timed(theirs("127.0.0.1").get(server.url("/")).send()).await;
    assert_eq!((status, server.asked().len()), (StatusCode::OK, 3));
    assert_eq!(waited, Duration::ZERO);

    let server = busy(None).await;
    let (status, waited) = timed(ours().get(server.url("/")).send()).await;
    assert_eq!((status, server.asked().len()), (StatusCode::OK, 3));
    assert!(waited >= Duration::from_millis(50 + 100), "{waited:?}");
    assert!(waited < Duration::from_millis(100 + 200 + 5), "{waited:?}");
}

#[tokio::test(start_paused = true)]
async fn reqwest_ignores_retry_after_and_we_wait_for_it() {
    let server = busy(Some("7")).await;
    let (_, waited) = timed(theirs("127.0.0.1").get(server.url("/")).send()).await;
    assert_eq!((server.asked().len(), waited), (3, Duration::ZERO));

    let server = busy(Some("7")).await;
    let (_, waited) = timed(ours().get(server.url("/")).send()).await;
    assert_eq!(server.asked().len(), 3);
    assert!(waited >= Duration::from_secs(14), "{waited:?}");
}

/// Redrive has no scope by host: a policy is given to the client of one downstream, and others get another
/// client over the same connections.
#[tokio::test(start_paused = true)]
async fn reqwest_retries_a_host_out_of_scope_once_and_a_client_of_one_attempt_never() {
    let server = busy(None).await;
    let (status, _) = timed(theirs("elsewhere.example").get(server.url("/")).send()).await;
    assert_eq!((status, server.asked().len()), (StatusCode::SERVICE_UNAVAILABLE, 2));

    let server = busy(None).await;
    let once = Client::new(builder().build().unwrap(), Policy::builder().attempts(1).build().unwrap());
    let (status, _) = timed(once.get(server.url("/")).send()).await;
    assert_eq!((status, server.asked().len()), (StatusCode::SERVICE_UNAVAILABLE, 1));
}
