//! Spans around HTTP requests, in OpenTelemetry's words: those that the gateway serves, and those that are sent.
//!
//! They are made only where traces are exported, so that they cost nothing otherwise and no log line carries them. The
//! query is not recorded: it is where secrets hide.

use http::{HeaderMap, HeaderValue, Method, Request, StatusCode};
use redrive::names::header::{TRACEPARENT, TRACESTATE};
use tracing::field::Empty;
use tracing::{Span, info_span};

use super::{is_traceparent, otlp};

/// The span of a request that this process answers. It continues the client's trace.
pub(crate) fn server<B>(request: &Request<B>, route: Option<&str>) -> Span {
    if !otlp::exports() {
        return Span::none();
    }
    let method = request.method().as_str();
    // A route's name begins with its method.
    let path = route.map(|route| route.split_once(' ').map_or(route, |(_, path)| path));
    let span = info_span!(
        "HTTP",
        otel.name = route.unwrap_or(method),
        otel.kind = "server",
        otel.status_code = Empty,
        http.request.method = method,
        http.route = path,
        url.path = request.uri().path(),
        url.scheme = "http",
        http.response.status_code = Empty,
        error.type = Empty,
    );
    let text = |name| request.headers().get(name).and_then(|value| value.to_str().ok());
    if let Some(parent) = text(TRACEPARENT).filter(|parent| is_traceparent(parent)) {
        otlp::continues(&span, parent, text(TRACESTATE));
    }
    span
}

/// The span of a request that this process sends, for the attempt of this number.
pub(crate) fn client(
    method: &Method,
    (address, port): (&str, Option<u16>),
    path: &str,
    attempt: u32,
) -> Span {
    if !otlp::exports() {
        return Span::none();
    }
    let span = info_span!(
        "HTTP",
        otel.name = method.as_str(),
        otel.kind = "client",
        otel.status_code = Empty,
        http.request.method = method.as_str(),
        http.request.resend_count = Empty,
        server.address = address,
        server.port = port.map(i64::from),
        url.path = path,
        http.response.status_code = Empty,
        error.type = Empty,
    );
    if attempt > 1 {
        span.record("http.request.resend_count", i64::from(attempt) - 1);
    }
    span
}

/// Records the response of a request that was served: a failure of the server's is an error.
pub(crate) fn served(span: &Span, status: StatusCode) {
    answered(span, status, status.is_server_error());
}

/// Records the response to a request that was sent: any failure is an error.
pub(crate) fn sent(span: &Span, status: StatusCode) {
    answered(span, status, status.is_client_error() || status.is_server_error());
}

fn answered(span: &Span, status: StatusCode, is_error: bool) {
    span.record("http.response.status_code", i64::from(status.as_u16()));
    if is_error {
        failed(span, status.as_str());
    }
}

/// Records that there was no response, and why.
pub(crate) fn failed(span: &Span, why: &str) {
    span.record("error.type", why);
    span.record("otel.status_code", "ERROR");
}

/// Has what is sent continue this span's trace. A state goes with its own parent only: it stays where the trace is the
/// one that the request came with.
pub(crate) fn inject(span: &Span, headers: &mut HeaderMap) {
    let Some(own) = otlp::own(span) else { return };
    let trace = |parent: &str| parent.get(3..35).map(str::to_owned);
    let came_with = headers.get(TRACEPARENT).and_then(|value| value.to_str().ok()).and_then(trace);
    if came_with != trace(&own) {
        headers.remove(TRACESTATE);
    }
    if let Ok(own) = HeaderValue::try_from(own) {
        headers.insert(TRACEPARENT, own);
    }
}
