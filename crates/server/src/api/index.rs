//! The start page: a browser is shown the desk.

use std::sync::Arc;

use axum::Router;
use axum::response::{IntoResponse, Redirect, Response};
use axum::routing::get;
use http::HeaderMap;
use http::header::ACCEPT;

use crate::app::App;

/// What a program is told. No figures: it is shown to every client.
const TOLD: &str = concat!(
    "Redrive ",
    env!("CARGO_PKG_VERSION"),
    "\n\n/desk          the operators' pages\n/openapi.json  the API\n/metrics       figures\n/readyz        health\n"
);

pub(super) fn routes() -> Router<Arc<App>> {
    Router::new().route("/", get(index))
}

async fn index(headers: HeaderMap) -> Response {
    let accept = headers.get(ACCEPT).and_then(|value| value.to_str().ok()).unwrap_or_default();
    if accept.contains("text/html") { Redirect::to("/desk").into_response() } else { TOLD.into_response() }
}
