//! Two processes' worth of layers over a real socket: a client that retries, a server that retries, one
//! downstream that is down.
#![allow(clippy::unwrap_used, reason = "a panic is a test's way to fail")]
#![cfg(feature = "reqwest")]

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use axum::Router;
use axum::http::StatusCode;
use axum::routing::get;
use redrive_core::{Backoff, Budget, Policy, StopReason};
use redrive_http::{Client, IncomingLayer};
use redrive_retry::{Retry, classify};

fn three_attempts() -> Policy {
    Policy::builder().backoff(Backoff::NONE).build().unwrap()
}

/// A server whose handler calls a service that is down, three times unless the request says otherwise.
async fn server(downstream: Arc<AtomicU32>, policy: Policy) -> String {
    let handler = move || async move {
        let call = || async {
            downstream.fetch_add(1, Ordering::Relaxed);
            Err::<(), _>("down")
        };
        match call.retry(&policy).classify(classify::all).await {
            Ok(()) => StatusCode::OK,
            Err(_) => StatusCode::BAD_GATEWAY,
        }
    };
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/", listener.local_addr().unwrap());
    tokio::spawn(
        axum::serve(listener, Router::new().route("/", get(handler)).layer(IncomingLayer)).into_future(),
    );
    url
}

#[tokio::test]
async fn three_attempts_on_each_side_are_three_calls_and_not_nine() {
    let downstream = Arc::new(AtomicU32::new(0));
    let url = server(downstream.clone(), three_attempts()).await;
    let client = Client::new(reqwest::Client::new(), three_attempts());
    let response = client.get(url).send().await.unwrap();
    assert_eq!(Client::report(&response).unwrap().attempts, 3);
    assert_eq!(downstream.load(Ordering::Relaxed), 3);
}

#[tokio::test]
async fn a_client_who_does_not_count_gets_the_servers_retries_and_is_told_to_leave_it_at_that() {
    let downstream = Arc::new(AtomicU32::new(0));
    let url = server(downstream.clone(), three_attempts()).await;
    let response = reqwest::get(url).await.unwrap();
    assert_eq!(downstream.load(Ordering::Relaxed), 3);
    assert_eq!(response.headers()["redrive-no-retry"], "1");
}

#[tokio::test]
async fn a_breaker_open_on_the_server_stops_the_clients_retries() {
    let breaker = redrive_core::Breaker::default();
    let now = redrive_retry::clock();
    while let Ok(pass) = breaker.admit(&now) {
        pass.failed(now);
    }
    let policy = Policy::builder().backoff(Backoff::NONE).breaker(breaker).build().unwrap();
    let downstream = Arc::new(AtomicU32::new(0));
    let url = server(downstream.clone(), policy).await;
    let client = Client::new(reqwest::Client::new(), three_attempts());
    let response = client.get(url).send().await.unwrap();
    let report = Client::report(&response).unwrap();
    assert_eq!((report.attempts, report.reason), (1, StopReason::Permanent));
    assert_eq!(downstream.load(Ordering::Relaxed), 0);
}

#[tokio::test]
async fn a_retry_around_the_client_leaves_it_alone_too() {
    let downstream = Arc::new(AtomicU32::new(0));
    let spent = Policy::builder().budget(Budget::share_of(0.0).unwrap()).build().unwrap();
    let url = server(downstream.clone(), spent).await;
    let client = Client::new(reqwest::Client::new(), three_attempts());
    let call = || async { client.get(&url).send().await.unwrap().error_for_status() };
    let stopped = call.retry(&three_attempts()).classify(classify::all).await.unwrap_err();
    assert_eq!(stopped.report.attempts, 1, "{stopped}");
}
