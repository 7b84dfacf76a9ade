//! The payment provider: a separate program, with its own file and its own idempotency.
//!
//! An authorisation is made once per key, and the same key returns the same authorisation. A key can be voided,
//! whether it was used or not; a later request with it is refused. Now and then it is slow after the effect, so that
//! the caller waits longer than its lease.

use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::extract::{Path as InPath, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::{delete, post};
use axum::{Json, Router};
use serde_json::json;

use crate::booking_request::BookingRequest;
use crate::effect_log::{Effect, EffectLog};
use crate::program;

/// One in this many authorisations is slow.
const SLOW_EVERY: u32 = 6;

/// The file of the provider, in the folder of the programs.
pub(crate) const FILE: &str = "provider.deeds";

#[derive(Debug)]
struct Provider {
    register: Mutex<EffectLog>,
    slow: Duration,
    calls: AtomicU32,
}

/// Runs it.
pub(crate) async fn run(folder: &Path, slow: Duration) -> anyhow::Result<()> {
    let register = Mutex::new(EffectLog::open(&folder.join(FILE))?);
    let provider = Arc::new(Provider { register, slow, calls: AtomicU32::new(0) });
    let router = Router::new()
        .route("/authorisations", post(authorise))
        .route("/authorisations/{key}", delete(void))
        .with_state(provider);
    program::serve(router).await
}

async fn authorise(
    State(provider): State<Arc<Provider>>,
    headers: HeaderMap,
    Json(wish): Json<BookingRequest>,
) -> Response {
    let Some(key) = program::key(&headers) else { return StatusCode::BAD_REQUEST.into_response() };
    crate::crash_points::pass("provider-before-effect");
    let (status, number) = match provider.deed(&key, "authorised", wish) {
        Ok(done) => done,
        Err(error) => return program::broken(&error),
    };
    crate::crash_points::pass("provider-after-effect");
    if provider.calls.fetch_add(1, Ordering::Relaxed) % SLOW_EVERY == SLOW_EVERY - 1 {
        tokio::time::sleep(provider.slow).await;
    }
    (status, Json(json!({ "authorisation": number }))).into_response()
}

async fn void(State(provider): State<Arc<Provider>>, InPath(key): InPath<String>) -> Response {
    let unknown = BookingRequest { guest: String::new(), cabin: String::new() };
    match provider.deed(&key, "voided", unknown) {
        Ok(_) => StatusCode::NO_CONTENT.into_response(),
        Err(error) => program::broken(&error),
    }
}

impl Provider {
    /// Does something under a key, unless it was done.
    fn deed(&self, key: &str, what: &str, wish: BookingRequest) -> std::io::Result<(StatusCode, u64)> {
        let mut register = self.register();
        match register.of(key) {
            Some((number, deed)) if deed.what == what => return Ok((StatusCode::OK, *number)),
            Some((number, deed)) if deed.what == "voided" => return Ok((StatusCode::GONE, *number)),
            _ => {}
        }
        let BookingRequest { guest, cabin } = wish;
        let number = register.write(Effect { key: key.to_owned(), what: what.to_owned(), guest, cabin })?;
        Ok((StatusCode::CREATED, number))
    }

    fn register(&self) -> MutexGuard<'_, EffectLog> {
        self.register.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
