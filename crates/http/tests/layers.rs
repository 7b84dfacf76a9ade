//! The tower layers: what the client's side repeats, and what the two sides say to one another.
#![allow(clippy::unwrap_used, reason = "a panic is a test's way to fail")]

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use http::{Method, Request, Response, StatusCode};
use redrive_core::{Backoff, Fault, Policy, Report, StopReason};
use redrive_http::{IncomingLayer, RetryLayer};
use redrive_retry::{Attempt, Retry, classify};
use tower::{Layer, Service, ServiceExt, service_fn};

fn policy() -> Policy {
    Policy::builder().backoff(Backoff::NONE).build().unwrap()
}

/// Fails `failures` times with this status, then answers 200 with the attempt's header as body.
fn flaky(
    calls: Arc<AtomicU32>,
    failures: u32,
    status: u16,
) -> impl Service<Request<String>, Response = Response<String>, Error = Infallible, Future: Send> + Clone {
    service_fn(move |request: Request<String>| {
        let call = calls.fetch_add(1, Ordering::Relaxed);
        let status = if call < failures { status } else { 200 };
        let header = request.headers().get("redrive-attempt");
        let body = header.map(|value| value.to_str().unwrap().to_owned()).unwrap_or_default();
        std::future::ready(Ok(Response::builder().status(status).body(body).unwrap()))
    })
}

fn request(method: Method, key: Option<&str>) -> Request<String> {
    let mut request = Request::builder().method(method).uri("/");
    if let Some(key) = key {
        request = request.header("idempotency-key", key);
    }
    request.body("body".to_owned()).unwrap()
}

#[tokio::test]
async fn only_what_is_safe_to_repeat_is_repeated() {
    for (method, key, calls_wanted) in [
        (Method::GET, None, 2),
        (Method::HEAD, None, 2),
        (Method::PUT, None, 2),
        (Method::DELETE, None, 2),
        (Method::POST, None, 1),
        (Method::PATCH, None, 1),
        (Method::POST, Some("\"order-17\""), 2),
    ] {
        let calls = Arc::new(AtomicU32::new(0));
        let service = RetryLayer::http(policy()).layer(flaky(calls.clone(), 1, 500));
        let response = service.oneshot(request(method.clone(), key)).await.unwrap();
        assert_eq!(calls.load(Ordering::Relaxed), calls_wanted, "{method} {key:?}");
        let report = response.extensions().get::<Report>().unwrap();
        assert_eq!(report.attempts, calls_wanted);
    }
}

#[tokio::test]
async fn a_minted_key_makes_a_post_repeatable() {
    let calls = Arc::new(AtomicU32::new(0));
    let service = RetryLayer::http(policy()).minting_keys().layer(flaky(calls.clone(), 2, 502));
    let response = service.oneshot(request(Method::POST, None)).await.unwrap();
    assert_eq!((response.status(), response.body().as_str()), (StatusCode::OK, "3"));
}

#[tokio::test(start_paused = true)]
async fn a_time_out_of_every_attempt_is_an_error_without_a_cause() {
    let stuck = service_fn(|_: Request<String>| std::future::pending::<Result<Response<()>, Infallible>>());
    let policy =
        Policy::builder().backoff(Backoff::NONE).attempt_time(Duration::from_secs(1)).build().unwrap();
    let stopped =
        RetryLayer::http(policy).layer(stuck).oneshot(request(Method::GET, None)).await.unwrap_err();
    assert!(stopped.error.is_none() && stopped.report.timed_out);
    assert_eq!((stopped.report.attempts, stopped.report.reason), (3, StopReason::AttemptsSpent));
}

#[tokio::test]
async fn any_service_can_be_retried_by_its_errors() {
    let calls = AtomicU32::new(0);
    let calls = &calls;
    let service = service_fn(|number: u32| async move {
        if calls.fetch_add(1, Ordering::Relaxed) == 0 { Err("down") } else { Ok(number + 1) }
    });
    let service = RetryLayer::new(policy(), classify::all).layer(service);
    assert_eq!(service.oneshot(16).await.unwrap(), 17);
}

/// A service that is ready only every other time it is asked, and whose callers must have waited for that.
#[derive(Debug, Default)]
struct Hesitant {
    asked: u32,
    ready: bool,
}

impl Clone for Hesitant {
    /// A clone is not ready because its original was.
    fn clone(&self) -> Self {
        Self::default()
    }
}

impl Service<()> for Hesitant {
    type Response = ();
    type Error = &'static str;
    type Future = std::future::Ready<Result<(), &'static str>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.asked += 1;
        self.ready = self.asked > 1;
        if self.ready {
            return Poll::Ready(Ok(()));
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }

    fn call(&mut self, (): ()) -> Self::Future {
        assert!(std::mem::take(&mut self.ready), "called before it was ready");
        std::future::ready(Err("down"))
    }
}

#[tokio::test]
async fn every_attempt_waits_until_the_service_is_ready() {
    let service = RetryLayer::new(policy(), classify::all).layer(Hesitant::default());
    let stopped = service.oneshot(()).await.unwrap_err();
    assert_eq!(stopped.report.attempts, 3);
}

/// A handler that itself retries a downstream which is always down, and counts the calls to it.
fn handler(
    downstream: Arc<AtomicU32>,
    fault: Fault,
) -> impl Service<Request<String>, Response = Response<String>, Error = Infallible> + Clone {
    IncomingLayer.layer(service_fn(move |_: Request<String>| {
        let downstream = downstream.clone();
        async move {
            let call = || async {
                downstream.fetch_add(1, Ordering::Relaxed);
                Err::<(), _>("down")
            };
            let _ = call.retry(&policy()).classify(|_: &&str| fault).await;
            Ok(Response::builder().status(500).body(String::new()).unwrap())
        }
    }))
}

#[tokio::test]
async fn a_server_makes_one_attempt_for_a_sender_who_repeats() {
    let downstream = Arc::new(AtomicU32::new(0));
    let service = RetryLayer::http(policy()).layer(handler(downstream.clone(), Fault::transient()));
    let response = service.oneshot(request(Method::GET, None)).await.unwrap();
    assert_eq!(
        downstream.load(Ordering::Relaxed),
        3,
        "three layers' worth of policy, three calls and not nine"
    );
    assert_eq!(response.extensions().get::<Report>().unwrap().attempts, 3);
}

#[tokio::test]
async fn a_server_retries_for_a_sender_who_does_not_and_then_says_that_it_did() {
    let downstream = Arc::new(AtomicU32::new(0));
    let service = handler(downstream.clone(), Fault::transient());
    let response = service.oneshot(request(Method::GET, None)).await.unwrap();
    assert_eq!(downstream.load(Ordering::Relaxed), 3);
    assert_eq!(response.headers()["redrive-no-retry"], "1");
}

#[tokio::test]
async fn a_spent_budget_behind_the_server_ends_the_senders_retries() {
    let downstream = Arc::new(AtomicU32::new(0));
    let spent = Policy::builder()
        .backoff(Backoff::NONE)
        .attempts(10)
        .budget(redrive_core::Budget::share_of(0.0).unwrap())
        .build()
        .unwrap();
    let inner = {
        let downstream = downstream.clone();
        service_fn(move |_: Request<String>| {
            let (downstream, spent) = (downstream.clone(), spent.clone());
            async move {
                let call = || async {
                    downstream.fetch_add(1, Ordering::Relaxed);
                    Err::<(), _>("busy")
                };
                let _ = call.retry(&spent).classify(|_: &&str| Fault::overload()).await;
                Ok::<_, Infallible>(Response::builder().status(503).body(String::new()).unwrap())
            }
        })
    };
    let service = RetryLayer::http(policy()).layer(IncomingLayer.layer(inner));
    let response = service.oneshot(request(Method::GET, None)).await.unwrap();
    assert_eq!(downstream.load(Ordering::Relaxed), 1);
    assert_eq!(response.headers()["redrive-no-retry"], "1");
    assert_eq!(response.extensions().get::<Report>().unwrap().attempts, 1);
}

#[tokio::test]
async fn the_senders_deadline_holds_inside() {
    let inside = service_fn(|_: Request<String>| async {
        let left = Attempt::current().unwrap().remaining().unwrap();
        Ok::<_, Infallible>(Response::new(left.as_secs().to_string()))
    });
    let at =
        humantime::format_rfc3339_millis(std::time::SystemTime::now() + Duration::from_secs(60)).to_string();
    let mut asked = request(Method::GET, None);
    asked.headers_mut().insert("redrive-deadline", at.parse().unwrap());
    let left: u64 = IncomingLayer.layer(inside).oneshot(asked).await.unwrap().body().parse().unwrap();
    assert!((50..=60).contains(&left), "{left}");
}

#[tokio::test]
async fn a_success_is_never_marked() {
    let inside = service_fn(|_: Request<String>| async {
        let call = || async { Err::<(), _>("down") };
        let _ = call.retry(&policy()).classify(classify::all).await;
        Ok::<_, Infallible>(Response::new(String::new()))
    });
    let response = IncomingLayer.layer(inside).oneshot(request(Method::GET, None)).await.unwrap();
    assert!(!response.headers().contains_key("redrive-no-retry"));
}

#[tokio::test(start_paused = true)]
async fn a_wait_that_was_asked_of_the_server_is_asked_of_the_sender() {
    let inside = service_fn(|_: Request<String>| async {
        let call = || async { Err::<(), _>("down") };
        let policy = Policy::builder().attempts(1).build().unwrap();
        let wait = Duration::from_millis(6_500);
        let _ = call.retry(&policy).classify(|_: &&str| Fault::transient().not_before(wait)).await;
        Ok::<_, Infallible>(Response::builder().status(502).body(String::new()).unwrap())
    });
    let response = IncomingLayer.layer(inside).oneshot(request(Method::GET, None)).await.unwrap();
    assert_eq!(response.headers()["retry-after"], "7", "whole seconds, and none too early");
    assert!(!response.headers().contains_key("redrive-no-retry"));
}
