//! The API that pages put behind the gateway: it answers every request with 201 and a number that counts them.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use axum::Router;
use http::StatusCode;
use tokio::runtime::Runtime;

/// It runs until it is dropped.
pub(crate) struct Upstream {
    _runtime: Runtime,
}

impl Upstream {
    pub(crate) fn start(port: u16) -> Self {
        let runtime = Runtime::new().expect("a runtime");
        let listener = runtime.block_on(tokio::net::TcpListener::bind(("127.0.0.1", port))).expect("a port");
        let count = Arc::new(AtomicU32::new(0));
        let answer = move || {
            let number = count.fetch_add(1, Relaxed) + 1;
            async move { (StatusCode::CREATED, format!("{{\"number\": {number}}}\n")) }
        };
        runtime.spawn(async move { axum::serve(listener, Router::new().fallback(answer)).await });
        Self { _runtime: runtime }
    }
}
