//! A span around every attempt, in OpenTelemetry's words for HTTP clients.
//!
//! `http.request.resend_count` is the number of attempts before this one and is left out on the first, as the
//! convention asks. The query of the address is not recorded: it is where secrets hide.

use std::future::Future;

use redrive_retry::Attempt;
use reqwest::{Error, Request, Response};
use tracing::field::Empty;
use tracing::{Instrument, Span, info_span};

/// The span of this attempt.
pub(super) fn of(attempt: Attempt, request: &Request) -> Span {
    let method = request.method().as_str();
    let url = request.url();
    let span = info_span!(
        "HTTP",
        otel.name = method,
        otel.kind = "client",
        http.request.method = method,
        server.address = url.host_str().unwrap_or_default(),
        server.port = url.port_or_known_default(),
        url.path = url.path(),
        http.request.resend_count = Empty,
        http.response.status_code = Empty,
        error.type = Empty,
    );
    if attempt.overall() > 1 {
        span.record("http.request.resend_count", attempt.overall() - 1);
    }
    span
}

/// Runs the attempt inside its span, and records how it ended.
pub(super) async fn inside(
    span: Span,
    attempt: impl Future<Output = Result<Response, Error>>,
) -> Result<Response, Error> {
    let result = attempt.instrument(span.clone()).await;
    match &result {
        Ok(response) => {
            span.record("http.response.status_code", response.status().as_u16());
            if response.status().as_u16() >= 400 {
                span.record("error.type", response.status().as_str());
            }
        }
        Err(error) => {
            let kind = match error {
                _ if error.is_timeout() => "timeout",
                _ if error.is_connect() => "connect",
                _ => "request",
            };
            span.record("error.type", kind);
        }
    }
    result
}
