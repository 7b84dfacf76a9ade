//! Every request: counted, timed, and logged where that is asked for.
//!
//! The line has the path and never the query or a header: those may hold what nobody is to read. It is at `debug`, and
//! at `warn` where the server is to blame; turn it on by itself with `redrive_server::observe::access=debug`.

use std::time::Instant;

use axum::extract::{MatchedPath, Request};
use axum::middleware::Next;
use axum::response::Response;
use http::Method;
use metrics::{counter, histogram};
use redrive::names::{label, metric};

/// Lets a request through, and takes note of it.
pub(crate) async fn noted(request: Request, next: Next) -> Response {
    let began = Instant::now();
    let route = request.extensions().get::<MatchedPath>().map(|path| path.as_str().to_owned());
    // One label for all that is nowhere: somebody may try a million addresses.
    let route = route.unwrap_or_else(|| "none".to_owned());
    let method = word(request.method());
    let path = tracing::enabled!(tracing::Level::WARN).then(|| request.uri().path().to_owned());
    let response = next.run(request).await;
    let (took, status) = (began.elapsed(), response.status().as_u16());
    counter!(
        metric::HTTP_REQUESTS,
        label::ROUTE => route.clone(), label::METHOD => method, label::STATUS => status.to_string()
    )
    .increment(1);
    histogram!(metric::HTTP_SECONDS, label::ROUTE => route).record(took);
    let took_ms = u64::try_from(took.as_millis()).unwrap_or(u64::MAX);
    // To be full or about to stop is no failure.
    if response.status().is_server_error() && status != 503 {
        tracing::warn!(method, path, status, took_ms, "answered");
    } else {
        tracing::debug!(method, path, status, took_ms, "answered");
    }
    response
}

/// The method, or one word for those that nobody knows.
fn word(method: &Method) -> &'static str {
    match *method {
        Method::GET => "GET",
        Method::POST => "POST",
        Method::PUT => "PUT",
        Method::PATCH => "PATCH",
        Method::DELETE => "DELETE",
        Method::HEAD => "HEAD",
        Method::OPTIONS => "OPTIONS",
        _ => "other",
    }
}
