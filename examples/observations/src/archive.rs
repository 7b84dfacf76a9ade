//! The archive: an external service with scripted failures.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};

use axum::Router;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use tokio::net::TcpListener;
use tokio::sync::watch;

use crate::readings;

/// How an archive is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Mood {
    #[default]
    Calm,
    /// 502: whatever is behind it does not answer.
    Down,
    /// 429 with `Retry-After: 1`.
    Busy,
}

/// How all archives are.
#[derive(Debug, Clone, Default)]
pub(crate) struct FailureSettings(Arc<Mutex<Mood>>);

impl FailureSettings {
    pub(crate) fn turn(&self, mood: Mood) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = mood;
    }

    fn now(&self) -> Mood {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The archive's counters.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Seen {
    /// Requests that say that they are the first attempt, or nothing.
    pub(crate) firsts: u32,
    /// Requests that say that they are retries.
    pub(crate) retries: u32,
    /// Pages that it gave.
    pub(crate) served: u32,
    /// Requests while it was down.
    pub(crate) while_down: u32,
    /// Requests while it asked to be left alone.
    pub(crate) while_busy: u32,
}

/// The archive, running. Ends with the program.
#[derive(Debug)]
pub(crate) struct Archive {
    address: SocketAddr,
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    weather: FailureSettings,
    seen: watch::Sender<Seen>,
}

impl Archive {
    pub(crate) async fn start(weather: &FailureSettings) -> std::io::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let inner = Arc::new(Inner { weather: weather.clone(), seen: watch::Sender::default() });
        let router = Router::new().route("/{station}/{page}", get(page)).with_state(Arc::clone(&inner));
        tokio::spawn(async move { axum::serve(listener, router).await });
        Ok(Self { address, inner })
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    pub(crate) fn seen(&self) -> Seen {
        *self.inner.seen.borrow()
    }

    /// Waits until it has seen something.
    pub(crate) async fn until(&self, is_seen: impl Fn(&Seen) -> bool) {
        // The sender is here: this does not fail.
        let _ = self.inner.seen.subscribe().wait_for(is_seen).await;
    }
}

async fn page(
    State(inner): State<Arc<Inner>>,
    Path((station, page)): Path<(u32, u32)>,
    headers: HeaderMap,
) -> Response {
    let attempt = headers.get("redrive-attempt").and_then(|attempt| attempt.to_str().ok());
    match inner.ask(attempt.is_none_or(|attempt| attempt == "1")) {
        Mood::Calm => readings::page(station, page).into_response(),
        Mood::Down => StatusCode::BAD_GATEWAY.into_response(),
        Mood::Busy => (StatusCode::TOO_MANY_REQUESTS, [(header::RETRY_AFTER, "1")]).into_response(),
    }
}

impl Inner {
    fn ask(&self, is_first: bool) -> Mood {
        let mood = self.weather.now();
        self.seen.send_modify(|seen| {
            seen.firsts += u32::from(is_first);
            seen.retries += u32::from(!is_first);
            seen.served += u32::from(mood == Mood::Calm);
            seen.while_down += u32::from(mood == Mood::Down);
            seen.while_busy += u32::from(mood == Mood::Busy);
        });
        mood
    }
}
