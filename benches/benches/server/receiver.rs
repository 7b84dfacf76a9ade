//! The receiver of deliveries, and their rate.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use axum::routing::post;
use tokio::sync::Notify;

/// Counts what arrives.
pub(crate) struct Receiver {
    url: String,
    inner: Arc<Inner>,
}

#[derive(Default)]
struct Inner {
    arrived: AtomicU64,
    first: Notify,
    wanted: AtomicU64,
    all: Notify,
}

impl Receiver {
    pub(crate) async fn start() -> Result<Self, String> {
        let listener =
            tokio::net::TcpListener::bind("127.0.0.1:0").await.map_err(|error| error.to_string())?;
        let address = listener.local_addr().map_err(|error| error.to_string())?;
        let inner = Arc::new(Inner { wanted: AtomicU64::new(u64::MAX), ..Inner::default() });
        let router = Router::new().route("/", post(receive)).with_state(inner.clone());
        tokio::spawn(async move { axum::serve(listener, router).await });
        Ok(Self { url: format!("http://{address}/"), inner })
    }

    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    /// Arrivals a second, from the first to this one.
    pub(crate) async fn rate(&self, count: u64) -> f64 {
        self.inner.wanted.store(count, Ordering::Relaxed);
        self.inner.first.notified().await;
        let began = Instant::now();
        self.inner.all.notified().await;
        #[allow(clippy::cast_precision_loss, reason = "far fewer than 2^52 deliveries")]
        let count = count as f64;
        count / began.elapsed().as_secs_f64()
    }
}

async fn receive(State(inner): State<Arc<Inner>>, _body: axum::body::Bytes) -> StatusCode {
    let arrived = inner.arrived.fetch_add(1, Ordering::Relaxed) + 1;
    if arrived == 1 {
        inner.first.notify_one();
    }
    if arrived == inner.wanted.load(Ordering::Relaxed) {
        inner.all.notify_one();
    }
    StatusCode::NO_CONTENT
}
