//! reqwest-retry 0.9.1: repeats what must not be repeated, and measures with a clock that can be set.
//!
//! - The default strategy looks only at the response. A POST that failed with 500 is sent again, and a customer pays
//!   twice.
//! - Elapsed time is the difference of two readings of the time of day. Set back, a call retries without end;
//!   set forward (a laptop's lid, a correction), it gives up at once.

use std::time::{Duration, SystemTime};

use redrive_core::{Backoff, Jitter, Policy};
use redrive_http::Client;
use redrive_testkit::{Reply, Scripted};
use reqwest_middleware::{ClientBuilder, ClientWithMiddleware};
use reqwest_retry::policies::ExponentialBackoff;
use reqwest_retry::{RetryDecision, RetryPolicy, RetryTransientMiddleware};
use tokio::time::Instant;

use crate::reqwest::builder;

const fn secs(secs: u64) -> Duration {
    Duration::from_secs(secs)
}

fn theirs(policy: impl RetryPolicy + Send + Sync + 'static) -> ClientWithMiddleware {
    let retry = RetryTransientMiddleware::new_with_policy(policy);
    ClientBuilder::new(builder().build().unwrap()).with(retry).build()
}

fn ours(policy: Policy) -> Client {
    Client::new(builder().build().unwrap(), policy)
}

/// A second between attempts, five in all.
fn five_seconds() -> impl RetryPolicy {
    ExponentialBackoff::builder()
        .retry_bounds(secs(1), secs(1))
        .jitter(reqwest_retry::Jitter::None)
        .build_with_total_retry_duration(secs(5))
}

async fn failing(times: usize) -> Scripted {
    Scripted::start(std::iter::repeat_n(Reply::status(500), times)).await
}

#[tokio::test(start_paused = true)]
async fn reqwest_retry_sends_a_post_three_times_and_we_once() {
    let server = failing(2).await;
    let twice_more = ExponentialBackoff::builder().build_with_max_retries(2);
    theirs(twice_more).post(server.url("/payments")).body("17 EUR").send().await.unwrap();
    let bodies: Vec<_> = server.asked().into_iter().map(|asked| asked.body).collect();
    assert_eq!(bodies, ["17 EUR", "17 EUR", "17 EUR"]);

    let server = failing(2).await;
    let client = ours(Policy::default());
    client.post(server.url("/payments")).with(|post| post.body("17 EUR")).send().await.unwrap();
    assert_eq!(server.asked().len(), 1);

    let server = failing(2).await;
    let call = client.post(server.url("/payments")).with(|post| post.body("17 EUR"));
    call.idempotency_key("order-17").send().await.unwrap();
    assert_eq!(server.asked().len(), 3, "with a key, it may");
}

#[test]
fn reqwest_retry_believes_a_clock_that_was_set() {
    let hour = secs(3600);
    let started_later = five_seconds().should_retry(SystemTime::now() + hour, 1_000_000);
    assert!(matches!(started_later, RetryDecision::Retry { .. }), "set back: a million retries, and on");
    let started_earlier = five_seconds().should_retry(SystemTime::now() - hour, 0);
    assert!(matches!(started_earlier, RetryDecision::DoNotRetry), "set forward: not one");
}

/// Paused time is a clock that was set back: timers go on, the time of day does not.
#[tokio::test(start_paused = true)]
async fn five_seconds_are_fifty_to_reqwest_retry_and_five_to_us() {
    let server = failing(50).await;
    let start = Instant::now();
    theirs(five_seconds()).get(server.url("/")).send().await.unwrap();
    assert_eq!(server.asked().len(), 51, "until it works");
    assert!(start.elapsed() >= secs(49), "{:?}", start.elapsed());

    let server = failing(50).await;
    let start = Instant::now();
    let policy = Policy::builder().attempts(100).backoff(Backoff::constant(secs(1))).jitter(Jitter::None);
    ours(policy.time(secs(5)).build().unwrap()).get(server.url("/")).send().await.unwrap();
    assert_eq!(server.asked().len(), 5);
    assert!(start.elapsed() < secs(5), "{:?}", start.elapsed());
}
