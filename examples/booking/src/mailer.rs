//! The email program: sends one email for each key, and writes down which.

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use axum::{Json, Router};

use crate::booking_request::BookingRequest;
use crate::effect_log::{Effect, EffectLog};
use crate::program;

/// The file of the email program, in the folder of the programs.
pub(crate) const FILE: &str = "mailer.deeds";

/// Runs it.
pub(crate) async fn run(folder: &Path) -> anyhow::Result<()> {
    let register = Arc::new(Mutex::new(EffectLog::open(&folder.join(FILE))?));
    program::serve(Router::new().route("/emails", post(send)).with_state(register)).await
}

async fn send(
    State(register): State<Arc<Mutex<EffectLog>>>,
    headers: HeaderMap,
    Json(wish): Json<BookingRequest>,
) -> Response {
    let Some(key) = program::key(&headers) else { return StatusCode::BAD_REQUEST.into_response() };
    crate::crash_points::pass("mailer-before-effect");
    let BookingRequest { guest, cabin } = wish;
    let sent = {
        let mut register = register.lock().unwrap_or_else(PoisonError::into_inner);
        match register.of(&key) {
            Some(_) => Ok(StatusCode::OK),
            None => {
                let deed = Effect { key, what: "mailed".to_owned(), guest, cabin };
                register.write(deed).map(|_| StatusCode::CREATED)
            }
        }
    };
    crate::crash_points::pass("mailer-after-effect");
    sent.map_or_else(|error| program::broken(&error), IntoResponse::into_response)
}
