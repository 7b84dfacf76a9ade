//! The service that fails: it starts slowly, is overloaded now and then, loses answers, and is down once.
//!
//! It keeps a ledger of executed keys, like a payment provider. An order whose response was lost took effect; when it
//! comes again, the ledger answers and nothing happens twice. The demo checks its promise against this ledger.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use axum::Router;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use tokio::net::TcpListener;

use super::shop::PREFIX;

/// One in this many responses is lost after the effect.
const LOSES: usize = 15;

/// How long an answer takes while the service warms up.
const SLOW: Duration = Duration::from_millis(300);

/// The current behaviour of the service.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FailureMode {
    /// Answers after a while.
    Slow,
    /// Answers.
    Calm,
    /// 503 with `Retry-After: 1`.
    Overloaded,
    /// Accepts the request and never responds, without an effect: a client cannot distinguish it from a lost
    /// response.
    Down,
}

impl FailureMode {
    /// The mood of a moment after the start: a slow start, then bursts of overload, and one outage.
    fn at(since: Duration) -> Self {
        let seconds = since.as_secs_f64();
        match seconds {
            _ if seconds < 2.0 => Self::Slow,
            _ if (8.0..11.0).contains(&seconds) => Self::Down,
            _ if (4.0..5.0).contains(&(seconds % 12.0)) => Self::Overloaded,
            _ => Self::Calm,
        }
    }

    /// The message when it begins.
    const fn news(self) -> &'static str {
        match self {
            Self::Slow => "the service is warming up: every response is slow",
            Self::Calm => "the service is healthy",
            Self::Overloaded => "the service is overloaded: 503 with Retry-After: 1",
            Self::Down => "the service is down: it accepts requests and never responds",
        }
    }
}

#[derive(Debug)]
struct Inner {
    started: Instant,
    /// Whether an operator has repaired it: then it answers.
    repaired: Arc<AtomicBool>,
    book: Mutex<EffectLedger>,
}

#[derive(Debug, Default)]
struct EffectLedger {
    /// How often each order took effect, by its key. The promise is that every one of them is 1.
    effects: HashMap<String, u32>,
    /// The keys' orders, as their headers say.
    orders: HashMap<String, String>,
    counted: Counted,
    told: Option<FailureMode>,
}

/// The service, running. Ends with the program.
#[derive(Debug)]
pub(super) struct Downstream {
    address: SocketAddr,
    inner: Arc<Inner>,
}

/// Counters of the service.
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct Counted {
    /// Requests in all.
    pub(super) requests: u64,
    /// Of those, second and later attempts.
    pub(super) retries: u64,
    /// Orders that took effect.
    pub(super) effects: u64,
    /// Of those, lost responses.
    pub(super) lost: u64,
    /// Repeats of an order that had taken effect before.
    pub(super) recognised: u64,
    /// Events that took effect and are no orders of the shop's.
    pub(super) others: u64,
}

impl Downstream {
    pub(super) async fn start() -> std::io::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let inner =
            Arc::new(Inner { started: Instant::now(), repaired: Arc::default(), book: Mutex::default() });
        let router = Router::new().route("/orders", post(order)).with_state(Arc::clone(&inner));
        tokio::spawn(async move { axum::serve(listener, router).await });
        Ok(Self { address, inner })
    }

    pub(super) fn url(&self) -> String {
        format!("http://{}/orders", self.address)
    }

    /// The switch by which the desk repairs the service.
    pub(super) fn repaired(&self) -> Arc<AtomicBool> {
        self.inner.repaired.clone()
    }

    pub(super) fn counted(&self) -> Counted {
        self.inner.book().counted
    }

    /// News since the last call.
    pub(super) fn news(&self) -> Option<&'static str> {
        let mood = self.inner.mode();
        let mut book = self.inner.book();
        let is_new = book.told != Some(mood);
        book.told = Some(mood);
        is_new.then(|| mood.news())
    }

    /// How often each order took effect, by its id.
    pub(super) fn effects(&self) -> HashMap<String, u32> {
        let book = self.inner.book();
        let mut effects = HashMap::new();
        for (key, times) in &book.effects {
            let id = book.orders.get(key).cloned().unwrap_or_default();
            *effects.entry(id).or_default() += times;
        }
        effects
    }

    /// Orders that took effect more than once.
    pub(super) fn twice(&self) -> usize {
        self.effects().values().filter(|times| **times > 1).count()
    }
}

impl Inner {
    fn book(&self) -> MutexGuard<'_, EffectLedger> {
        self.book.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn mode(&self) -> FailureMode {
        if self.repaired.load(Ordering::Relaxed) {
            return FailureMode::Calm;
        }
        FailureMode::at(self.started.elapsed())
    }

    /// What to answer; `None` for nothing, ever.
    fn answer(&self, mood: FailureMode, headers: &HeaderMap, body: &str) -> Option<Response> {
        let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default();
        let mut book = self.book();
        // A reader who tries the commands publishes other events; these figures are the shop's.
        let is_ours = text("redrive-id").starts_with(PREFIX);
        if is_ours {
            let is_first = (text("redrive-attempt"), text("redrive-mode")) == ("1", "live");
            book.counted.requests += 1;
            book.counted.retries += u64::from(!is_first);
        }
        match mood {
            FailureMode::Down => return None,
            FailureMode::Overloaded => {
                let answer = (StatusCode::SERVICE_UNAVAILABLE, [(header::RETRY_AFTER, "1")], "overloaded");
                return Some(answer.into_response());
            }
            FailureMode::Calm | FailureMode::Slow => {}
        }
        if body.contains("-1") {
            let answer = (StatusCode::UNPROCESSABLE_ENTITY, "a negative number of cabins");
            return Some(answer.into_response());
        }
        let key = text("idempotency-key").to_owned();
        if book.effects.contains_key(&key) {
            book.counted.recognised += u64::from(is_ours);
            return Some((StatusCode::OK, "already done").into_response());
        }
        book.orders.insert(key.clone(), text("redrive-id").to_owned());
        *book.effects.entry(key).or_default() += 1;
        let lost = book.effects.len().is_multiple_of(LOSES);
        book.counted.effects += u64::from(is_ours);
        book.counted.others += u64::from(!is_ours);
        book.counted.lost += u64::from(lost && is_ours);
        (!lost).then(|| (StatusCode::CREATED, "done").into_response())
    }
}

async fn order(State(inner): State<Arc<Inner>>, headers: HeaderMap, body: String) -> Response {
    let mood = inner.mode();
    if mood == FailureMode::Slow {
        tokio::time::sleep(SLOW).await;
    }
    match inner.answer(mood, &headers, &body) {
        Some(answer) => answer,
        // The caller's time-out ends it.
        None => std::future::pending().await,
    }
}
