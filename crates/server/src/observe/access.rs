//! Every request: counted, timed, and logged where that is asked for.
//!
//! The line has the path and never the query or a header: those may hold what nobody is to read. It is at `debug`, and
//! at `warn` where the server is to blame; turn it on by itself with `redrive_server::observe::access=debug`.

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
    let note = Note::of(&request, route);
    let response = next.run(request).await;
    // To be full or about to stop is no failure.
    let is_to_blame =
        response.status().is_server_error() && response.status() != StatusCode::SERVICE_UNAVAILABLE;
    note.answered(response.status(), is_to_blame);
    response
}

/// A request, until it is answered.
#[derive(Debug)]
pub(crate) struct Note {
    began: Instant,
    route: String,
    method: &'static str,
    path: Option<String>,
}

impl Note {
    /// Begins, on this route. There is one label for all that is on none: somebody may try a million addresses.
    pub(crate) fn of(request: &Request, route: Option<String>) -> Self {
        Self {
            began: Instant::now(),
            route: route.unwrap_or_else(|| "none".to_owned()),
            method: word(request.method()),
            path: tracing::enabled!(tracing::Level::WARN).then(|| request.uri().path().to_owned()),
        }
    }

    /// Counts it, and tells of it; louder where whoever answered is to blame.
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
