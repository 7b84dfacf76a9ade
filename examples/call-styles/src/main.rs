//! One policy through every door.
//!
//! A price service on loopback fails twice for every item, and then answers. The same request is made five times, in
//! five call styles, under one policy:
//!
//! ```text
//! cargo run -p example-call-styles
//! ```

use std::collections::HashMap;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::Context;
use axum::Router;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::routing::get;
use redrive::http::{Client, RetryLayer};
use redrive::prelude::*;
use tower::{Layer, ServiceExt, service_fn};

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let shop = shop().await?;
    let policy = Policy::builder()
        .name("prices")
        .backoff(Backoff::exponential(Duration::from_millis(20), 2.0, Duration::from_millis(200)))
        .build()?;

    // Postfix: anything that makes a fresh future for every attempt.
    let fetch = || ask(shop, "apple");
    let reported = fetch.retry(&policy).classify(classify::io).report().await;
    println!("postfix   {} after {} attempts", reported.result.map_err(lost)?, reported.report.attempts);

    // A session: a loop, where `&mut self` is borrowed.
    let mut buyer = Buyer { shop, policy: policy.clone(), questions: 0 };
    println!("session   {} after {} attempts", buyer.price("pear").await?, buyer.questions);

    // Blocking: the same without async.
    let blocking = policy.clone();
    let reported = tokio::task::spawn_blocking(move || {
        use redrive::blocking::Retry;
        (|| ask_blocking(shop, "plum")).retry(&blocking).classify(classify::io).report()
    })
    .await?;
    println!("blocking  {} after {} attempts", reported.result.map_err(lost)?, reported.report.attempts);

    // A tower layer, around any service.
    let service = service_fn(move |item: &'static str| ask(shop, item));
    let service = RetryLayer::new(policy.clone(), classify::io).layer(service);
    println!("tower     {} through a service", service.oneshot("fig").await?);

    // The HTTP client: statuses, Retry-After, idempotency keys.
    let client = Client::new(reqwest::Client::new(), policy);
    let response = client.get(format!("http://{shop}/price/quince")).send().await?;
    let report = Client::report(&response).context("a report")?;
    println!("reqwest   {}: {report}", response.text().await?);
    Ok(())
}

struct Buyer {
    shop: SocketAddr,
    policy: Policy,
    questions: u32,
}

impl Buyer {
    async fn ask(&mut self, item: &'static str) -> Result<String, io::Error> {
        self.questions += 1;
        ask(self.shop, item).await
    }

    async fn price(&mut self, item: &'static str) -> Result<String, Stopped<io::Error>> {
        let mut session = self.policy.start();
        while session.next().await.is_some() {
            if let Some(price) = session.run(self.ask(item), classify::io).await {
                return Ok(price);
            }
        }
        Err(session.stopped())
    }
}

fn lost(error: Option<io::Error>) -> anyhow::Error {
    error.map_or_else(|| anyhow::anyhow!("no attempt answered"), Into::into)
}

/// Asks once, on a thread that may block.
async fn ask(shop: SocketAddr, item: &'static str) -> Result<String, io::Error> {
    tokio::task::spawn_blocking(move || ask_blocking(shop, item)).await?
}

/// Sends one plain HTTP request. To `std::io`, a 500 is a truncated answer.
fn ask_blocking(shop: SocketAddr, item: &str) -> Result<String, io::Error> {
    let mut stream = TcpStream::connect(shop)?;
    write!(stream, "GET /price/{item} HTTP/1.1\r\nHost: {shop}\r\nConnection: close\r\n\r\n")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    match answer.split_once("\r\n\r\n") {
        Some((head, body)) if head.contains(" 200 ") => Ok(body.to_owned()),
        _ => Err(io::ErrorKind::UnexpectedEof.into()),
    }
}

type Asked = Arc<Mutex<HashMap<String, u32>>>;

/// A service that fails twice for every item, and then knows its price.
async fn shop() -> anyhow::Result<SocketAddr> {
    async fn price(State(asked): State<Asked>, Path(item): Path<String>) -> (StatusCode, String) {
        let mut asked = asked.lock().unwrap_or_else(PoisonError::into_inner);
        let times = asked.entry(item.clone()).or_default();
        *times += 1;
        match times {
            1 | 2 => (StatusCode::INTERNAL_SERVER_ERROR, String::new()),
            _ => (StatusCode::OK, format!("{item}: 17 cents")),
        }
    }
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    let router = Router::new().route("/price/{item}", get(price)).with_state(Asked::default());
    tokio::spawn(async move { axum::serve(listener, router).await });
    Ok(address)
}
