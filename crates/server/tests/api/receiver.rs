//! A destination of one's own: tells what it got, and answers as it is told to.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use axum::body::{Body, to_bytes};
use axum::extract::Request;
use axum::response::Response;
use http::HeaderMap;
use tokio::sync::mpsc;

/// What came.
#[derive(Debug)]
pub(crate) struct Got {
    pub(crate) path: String,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Vec<u8>,
}

impl Got {
    /// A header's text; empty where there is none.
    pub(crate) fn text(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", |value| std::str::from_utf8(value.as_bytes()).expect("text"))
    }
}

pub(crate) struct Receiver {
    pub(crate) address: SocketAddr,
    got: mpsc::UnboundedReceiver<Got>,
}

impl Receiver {
    /// One that answers the first request with `answer(1)`.
    pub(crate) async fn open(answer: impl Fn(usize) -> Response + Send + Sync + 'static) -> Self {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address");
        let (tell, got) = mpsc::unbounded_channel();
        let (answer, count) = (Arc::new(answer), Arc::new(AtomicUsize::new(0)));
        let router = axum::Router::new().fallback(async move |request: Request| {
            let (parts, body) = request.into_parts();
            let body = to_bytes(body, 2 << 20).await.expect("a body").to_vec();
            let path = parts.uri.to_string();
            let _ = tell.send(Got { path, headers: parts.headers, body });
            answer(count.fetch_add(1, Ordering::SeqCst) + 1)
        });
        tokio::spawn(async move { axum::serve(listener, router).await });
        Self { address, got }
    }

    /// One that says 200 and nothing else.
    pub(crate) async fn friendly() -> Self {
        Self::open(|_| status(200, "")).await
    }

    pub(crate) async fn next(&mut self) -> Got {
        let next = tokio::time::timeout(Duration::from_secs(60), self.got.recv()).await;
        next.expect("nothing came").expect("it listens")
    }

    /// Whether nothing more has come.
    pub(crate) fn is_quiet(&mut self) -> bool {
        self.got.try_recv().is_err()
    }
}

/// An answer.
pub(crate) fn status(status: u16, body: impl Into<Body>) -> Response {
    Response::builder().status(status).body(body.into()).expect("an answer")
}
