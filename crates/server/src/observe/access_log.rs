//! Every request: counted, timed, and logged if enabled.
//!
//! The line contains the path and never the query or a header, which may be secret. Its level is `debug`, and `warn`
//! for server errors; enable it with `redrive_server::observe::access_log=debug`.

use std::time::Instant;

use axum::extract::{MatchedPath, Request};
use axum::middleware::Next;
use axum::response::Response;
use http::{Method, StatusCode};
use metrics::{counter, histogram};
use redrive::names::{label, metric};

/// Lets a request through, and takes note of it.
pub(crate) async fn noted(request: Request, next: Next) -> Response {
    let route = request.extensions().get::<MatchedPath>().map(|path| path.as_str().to_owned());
    let note = AccessRecord::of(&request, route);
    let response = next.run(request).await;
    // To be full or about to stop is no failure.
    let is_to_blame =
        response.status().is_server_error() && response.status() != StatusCode::SERVICE_UNAVAILABLE;
    note.answered(response.status(), is_to_blame);
    response
}

/// A request, until it is answered.
#[derive(Debug)]
pub(crate) struct AccessRecord {
    began: Instant,
    route: String,
    method: &'static str,
    path: Option<String>,
}

impl AccessRecord {
    /// Starts a record for this route. All unmatched paths share one label, because clients may try a million of
    /// them.
    pub(crate) fn of(request: &Request, route: Option<String>) -> Self {
        Self {
            began: Instant::now(),
            route: route.unwrap_or_else(|| "none".to_owned()),
            method: word(request.method()),
            path: tracing::enabled!(tracing::Level::WARN).then(|| request.uri().path().to_owned()),
        }
    }

    /// Counts and logs the request; at a higher level for server errors.
    pub(crate) fn answered(self, status: StatusCode, is_to_blame: bool) {
        let Self { began, route, method, path } = self;
        let (took, status) = (began.elapsed(), status.as_u16());
        counter!(
            metric::HTTP_REQUESTS,
            label::ROUTE => route.clone(), label::METHOD => method, label::STATUS => status.to_string()
        )
        .increment(1);
        histogram!(metric::HTTP_SECONDS, label::ROUTE => route).record(took);
        let took_ms = u64::try_from(took.as_millis()).unwrap_or(u64::MAX);
        if is_to_blame {
            tracing::warn!(method, path, status, took_ms, "answered");
        } else {
            tracing::debug!(method, path, status, took_ms, "answered");
        }
    }
}

/// The method, or one word for unknown methods.
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
