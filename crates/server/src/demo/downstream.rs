//! The service that fails: calm, overloaded, calm, down, calm, and so on.
//!
//! It keeps a ledger of the keys that it has executed, as a payment provider would. An order whose answer was
//! lost took effect; when it comes again, the ledger answers and nothing happens twice. The ledger's count is
//! what the demo's promise is checked against.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use axum::Router;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use tokio::net::TcpListener;

/// What the service does with a request at the moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mood {
    /// Answers, except that every seventh answer is lost after the effect: the client sees a time-out.
    Calm,
    /// 503 with `Retry-After: 1`.
    Overloaded,
    /// Takes the request and never answers, with no effect: the client sees a time-out, too, and cannot tell
    /// the two apart.
    Down,
}

/// Moods in turn, over and over.
const MOODS: [(Mood, Duration); 4] = [
    (Mood::Calm, Duration::from_millis(1500)),
    (Mood::Overloaded, Duration::from_millis(700)),
    (Mood::Calm, Duration::from_millis(1500)),
    (Mood::Down, Duration::from_millis(900)),
];

#[derive(Debug)]
struct Inner {
    started: Instant,
    book: Mutex<Book>,
}

#[derive(Debug, Default)]
struct Book {
    /// How often each key took effect. The promise is that every one of them is 1.
    effects: HashMap<String, u32>,
    counted: Counted,
}

/// The service, running. Ends with the program.
#[derive(Debug)]
pub(crate) struct Downstream {
    address: SocketAddr,
    inner: Arc<Inner>,
}

/// What the service did with its requests.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct Counted {
    /// Orders that took effect.
    pub(crate) effects: u32,
    /// Of those, answers that were lost.
    pub(crate) lost: u32,
    /// Repeats of an order that had taken effect before.
    pub(crate) recognised: u32,
    /// Orders that make no sense.
    pub(crate) refused: u32,
    /// Answered with 503.
    pub(crate) overloaded: u32,
    /// Never answered, and without effect.
    pub(crate) ignored: u32,
}

impl Counted {
    pub(crate) const fn requests(&self) -> u32 {
        self.effects + self.recognised + self.refused + self.overloaded + self.ignored
    }
}

impl Downstream {
    pub(crate) async fn start() -> std::io::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let inner = Arc::new(Inner { started: Instant::now(), book: Mutex::default() });
        let router = Router::new().route("/orders", post(order)).with_state(Arc::clone(&inner));
        tokio::spawn(async move { axum::serve(listener, router).await });
        Ok(Self { address, inner })
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}/orders", self.address)
    }

    pub(crate) fn has_effect(&self, key: &str) -> bool {
        self.inner.book().effects.contains_key(key)
    }

    pub(crate) fn counted(&self) -> Counted {
        self.inner.book().counted
    }

    /// Orders that took effect more than once.
    pub(crate) fn twice(&self) -> usize {
        self.inner.book().effects.values().filter(|times| **times > 1).count()
    }
}

impl Inner {
    fn book(&self) -> std::sync::MutexGuard<'_, Book> {
        self.book.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn mood(&self) -> Mood {
        let round = MOODS.iter().map(|(_, lasts)| *lasts).sum::<Duration>().as_millis();
        let mut left = self.started.elapsed().as_millis() % round;
        for (mood, lasts) in MOODS {
            if left < lasts.as_millis() {
                return mood;
            }
            left -= lasts.as_millis();
        }
        Mood::Calm
    }
}

async fn order(State(inner): State<Arc<Inner>>, headers: HeaderMap, body: String) -> Response {
    let key = headers.get("idempotency-key").and_then(|key| key.to_str().ok()).unwrap_or_default().to_owned();
    match inner.answer(key, &body) {
        Some(answer) => answer,
        // Never answers; the client's time-out ends it.
        None => std::future::pending().await,
    }
}

impl Inner {
    /// What to answer; `None` for nothing, ever.
    fn answer(&self, key: String, body: &str) -> Option<Response> {
        let mut book = self.book();
        match self.mood() {
            Mood::Down => {
                book.counted.ignored += 1;
                return None;
            }
            Mood::Overloaded => {
                book.counted.overloaded += 1;
                return Some((StatusCode::SERVICE_UNAVAILABLE, [(header::RETRY_AFTER, "1")]).into_response());
            }
            Mood::Calm => {}
        }
        if body.contains("-1") {
            book.counted.refused += 1;
            return Some((StatusCode::UNPROCESSABLE_ENTITY, "a negative number of cabins").into_response());
        }
        if book.effects.contains_key(&key) {
            book.counted.recognised += 1;
            return Some((StatusCode::OK, "already done").into_response());
        }
        *book.effects.entry(key).or_default() += 1;
        book.counted.effects += 1;
        let lost = book.effects.len().is_multiple_of(7);
        book.counted.lost += u32::from(lost);
        (!lost).then(|| (StatusCode::CREATED, "done").into_response())
    }
}
