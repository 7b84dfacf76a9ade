//! What went wrong on the way to the upstream, as its answer: 502 and 504, as problem documents.
//!
//! What counts most is what is known of the effect. A connection that was never made carried nothing, which is proof;
//! everything after that may have arrived, whatever became of the answer.

use axum::body::Body;
use axum::response::IntoResponse as _;
use http::header::ALLOW;
use http::{HeaderValue, Method, Response, StatusCode};

use super::flow::Fault;
use super::proxy::Enrolled;
use crate::api::Problem;

/// What a handler says to the layer of what happened; taken away before anybody sees it.
pub(super) const OUTCOME: &str = "idempotency-outcome";

/// Why there is no answer of the upstream's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Failure {
    /// No connection could be made.
    Unreachable,
    /// It closed the connection, or what it sent is no HTTP.
    BrokeOff,
    /// It did not answer in time.
    Slow,
    /// The client did not send its request whole.
    Client(Fault),
    /// The request has been here before.
    Loop,
    /// A tunnel to somewhere else is asked for.
    Connect,
    /// It names several hosts.
    Hosts,
}

impl Failure {
    /// Whether it is proven that the upstream did nothing.
    pub(super) const fn is_before_sending(self) -> bool {
        matches!(self, Self::Unreachable | Self::Loop | Self::Connect | Self::Hosts)
    }

    /// Its word, for clients and for the log.
    pub(super) const fn code(self) -> &'static str {
        match self {
            Self::Unreachable => "upstream-unreachable",
            Self::BrokeOff => "upstream-broke-off",
            Self::Slow => "upstream-slow",
            Self::Client(Fault::Slow) => "request-slow",
            Self::Client(Fault::Broken) => "request-broken",
            Self::Loop => "loop",
            Self::Connect => "no-tunnels",
            Self::Hosts => "host-ambiguous",
        }
    }

    const fn status(self) -> StatusCode {
        match self {
            Self::Unreachable | Self::BrokeOff => StatusCode::BAD_GATEWAY,
            Self::Slow => StatusCode::GATEWAY_TIMEOUT,
            Self::Client(Fault::Slow) => StatusCode::REQUEST_TIMEOUT,
            Self::Client(Fault::Broken) | Self::Hosts => StatusCode::BAD_REQUEST,
            Self::Loop => StatusCode::LOOP_DETECTED,
            Self::Connect => StatusCode::METHOD_NOT_ALLOWED,
        }
    }

    const fn detail(self) -> &'static str {
        match self {
            Self::Unreachable => "the API behind this gateway cannot be reached; it was sent nothing",
            Self::BrokeOff => "the API behind this gateway broke off; it may have done what was asked",
            Self::Slow => {
                "the API behind this gateway did not answer in time; it may have done what was asked"
            }
            Self::Client(Fault::Slow) => "the rest of the request did not come in time",
            Self::Client(Fault::Broken) => "the rest of the request did not come",
            Self::Loop => "this gateway's upstream is this gateway; the request was sent nowhere",
            Self::Hosts => "the request names more than one host",
            Self::Connect => "this gateway stands before one API, and makes no connections to others",
        }
    }

    /// Whether the same request may be sent again without anything happening twice.
    fn is_retryable(self, method: &Method, may_rerun: bool) -> bool {
        match self {
            Self::Loop | Self::Connect | Self::Hosts => false,
            Self::Unreachable | Self::Client(_) => true,
            Self::BrokeOff | Self::Slow => may_rerun || method.is_idempotent(),
        }
    }

    /// The answer to an enrolled request whose client was too slow: its body is read before anything is looked up or run.
    pub(super) fn too_slow() -> Response<Body> {
        let slow = Self::Client(Fault::Slow);
        let problem = Problem::new(slow.status(), slow.code(), slow.detail());
        problem.with("code", slow.code()).with("retryable", true).with("executed", "no").into_response()
    }

    /// The answer, with what the layer is to know where it answers for the request.
    pub(super) fn answer(self, method: &Method, enrolled: Option<&Enrolled>) -> Response<Body> {
        let may_rerun = enrolled.is_some_and(|route| route.may_rerun);
        let executed = if self.is_before_sending() { "no" } else { "unknown" };
        let problem = Problem::new(self.status(), self.code(), self.detail())
            .with("code", self.code())
            .with("retryable", self.is_retryable(method, may_rerun))
            .with("executed", executed);
        let mut response = problem.into_response();
        let headers = response.headers_mut();
        if self.is_before_sending() && enrolled.is_some() {
            headers.insert(OUTCOME, HeaderValue::from_static("none"));
        }
        if self == Self::Connect {
            headers.insert(ALLOW, HeaderValue::from_static("GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS"));
        }
        response
    }
}
