//! What went wrong on the way to the upstream, as its answer: 502 and 504, as problem documents.
//!
//! The main question is what is known of the effect. A connection that was never made carried nothing, which is
//! proof; everything later may have arrived.

use std::time::Duration;

use axum::body::Body;
use axum::response::IntoResponse as _;
use http::header::{ALLOW, CONNECTION};
use http::{HeaderValue, Method, Response, StatusCode};

use super::body::ClientFault;
use super::proxy::EnrolledRequest;
use super::unknown_budget::Exceeded;
use crate::api::ApiProblem;

/// How a handler reports the outcome to the layer; removed before the client sees it.
pub(super) const OUTCOME: &str = "idempotency-outcome";

/// How long a client should wait for unknown outcomes to be resolved.
const UNKNOWN_WAIT: Duration = Duration::from_secs(60);

const NO_ROOM: &str = "too many request bodies are in memory; nothing was looked up or run";

/// Why the upstream gave no response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum UpstreamError {
    /// No connection could be made.
    Unreachable,
    /// It closed the connection, or sent something other than HTTP.
    BrokeOff,
    /// It did not answer in time.
    Slow,
    /// The client did not send its request whole.
    Client(ClientFault),
    /// The request has been here before.
    Loop,
    /// A tunnel to somewhere else is asked for.
    Connect,
    /// It names several hosts, or one that is none.
    Hosts,
    /// It names no host.
    HostMissing,
    /// Its headers for the connection could be read in two ways.
    Ambiguous,
    /// Its target is neither a path nor the address of one.
    Target,
    /// It is no request of a route, and the API may take it for one.
    Lookalike,
}

impl UpstreamError {
    /// Whether it is proven that the upstream did nothing.
    pub(super) const fn is_before_sending(self) -> bool {
        matches!(
            self,
            Self::Unreachable
                | Self::Loop
                | Self::Connect
                | Self::Hosts
                | Self::HostMissing
                | Self::Ambiguous
                | Self::Target
                | Self::Lookalike
        )
    }

    /// Its word, for clients and for the log.
    pub(super) const fn code(self) -> &'static str {
        match self {
            Self::Unreachable => "upstream-unreachable",
            Self::BrokeOff => "upstream-broke-off",
            Self::Slow => "upstream-slow",
            Self::Client(ClientFault::Slow) => "request-slow",
            Self::Client(ClientFault::Broken) => "request-broken",
            Self::Client(ClientFault::NoRoom) => "busy",
            Self::Loop => "loop",
            Self::Connect => "no-tunnels",
            Self::Hosts => "host-ambiguous",
            Self::HostMissing => "host-missing",
            Self::Ambiguous => "headers-ambiguous",
            Self::Target => "target-invalid",
            Self::Lookalike => "path-ambiguous",
        }
    }

    const fn status(self) -> StatusCode {
        match self {
            Self::Unreachable | Self::BrokeOff => StatusCode::BAD_GATEWAY,
            Self::Slow => StatusCode::GATEWAY_TIMEOUT,
            Self::Client(ClientFault::Slow) => StatusCode::REQUEST_TIMEOUT,
            Self::Client(ClientFault::NoRoom) => StatusCode::SERVICE_UNAVAILABLE,
            Self::Client(ClientFault::Broken)
            | Self::Hosts
            | Self::HostMissing
            | Self::Ambiguous
            | Self::Target
            | Self::Lookalike => StatusCode::BAD_REQUEST,
            Self::Loop => StatusCode::LOOP_DETECTED,
            Self::Connect => StatusCode::METHOD_NOT_ALLOWED,
        }
    }

    const fn detail(self) -> &'static str {
        match self {
            Self::Unreachable => "the upstream API cannot be reached; nothing was sent to it",
            Self::BrokeOff => "the upstream API closed the connection; the outcome is unknown",
            Self::Slow => "the upstream API did not respond in time; the outcome is unknown",
            Self::Client(ClientFault::Slow) => "the client did not send the rest of the request in time",
            Self::Client(ClientFault::Broken) => "the client did not send the rest of the request",
            Self::Client(ClientFault::NoRoom) => NO_ROOM,
            Self::Loop => "the gateway's upstream is the gateway itself; the request was not forwarded",
            Self::Hosts => "the request must name one host, as HOST or HOST:PORT, and nothing else",
            Self::HostMissing => "the request names no host; send the header Host",
            Self::Ambiguous => "a header of the connection, such as Upgrade or Connection, is not ASCII",
            Self::Target => "the target must be a path, such as /orders, or an address with one",
            Self::Lookalike => {
                "the method or the path is another spelling of one that needs care; send it without escapes, case, slashes, dots and semicolons that it can do without"
            }
            Self::Connect => "this gateway does not support CONNECT",
        }
    }

    /// Whether the request may be repeated without a second effect.
    fn is_retryable(self, method: &Method, may_rerun: bool) -> bool {
        match self {
            Self::Loop
            | Self::Connect
            | Self::Hosts
            | Self::HostMissing
            | Self::Ambiguous
            | Self::Target
            | Self::Lookalike => false,
            Self::Unreachable | Self::Client(_) => true,
            Self::BrokeOff | Self::Slow => may_rerun || method.is_idempotent(),
        }
    }

    /// The response to an enrolled request of which not all came: its body is read before any lookup or run. The
    /// connection ends, for the rest is not read.
    pub(super) fn unread(fault: ClientFault) -> Response<Body> {
        let error = Self::Client(fault);
        let problem = match fault {
            ClientFault::NoRoom => ApiProblem::busy(NO_ROOM, Duration::from_secs(1)),
            ClientFault::Slow | ClientFault::Broken => {
                ApiProblem::new(error.status(), error.code(), error.detail())
            }
        };
        let problem = problem.with("code", error.code()).with("retryable", true).with("executed", "no");
        let mut response = problem.into_response();
        response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
        response
    }

    /// The response to a request that is not sent, because too many like it have an unknown outcome.
    pub(super) fn too_many_unknown(exceeded: Exceeded) -> Response<Body> {
        let detail = match exceeded {
            Exceeded::Tenant => {
                "too many requests of this tenant have an unknown outcome (gateway.unknown_max); nothing was sent; an operator resolves them with `redrive ledger resolve-all`"
            }
            Exceeded::Client => {
                "too many requests from this address had an unknown outcome within the hour (gateway.client_unknown_max); nothing was sent"
            }
        };
        let problem = ApiProblem::new(StatusCode::TOO_MANY_REQUESTS, "too-many-unknown", detail);
        let problem = problem.with("code", "too-many-unknown").with("retryable", true).with("executed", "no");
        let mut response = problem.retry_after(UNKNOWN_WAIT).into_response();
        response.headers_mut().insert(OUTCOME, HeaderValue::from_static("none"));
        response
    }

    /// The response to a repetition of which the API did not say whether the caller may have the stored reply.
    pub(super) fn not_authorised() -> Response<Body> {
        let detail = "the API did not say whether this caller may have the stored reply; try again";
        let problem = ApiProblem::new(StatusCode::SERVICE_UNAVAILABLE, "not-authorised", detail)
            .retry_after(Duration::from_secs(1));
        problem.with("retryable", true).with("executed", "no").into_response()
    }

    /// The response to a repetition whose stored reply finds no room. Nothing is lost.
    pub(super) fn no_room_for_reply() -> Response<Body> {
        let detail = "too many replies are in memory; try again";
        let problem = ApiProblem::busy(detail, Duration::from_secs(1)).with("code", "busy");
        problem.with("retryable", true).with("executed", "no").into_response()
    }

    /// The response to a request that is refused as it comes, after which its connection ends.
    pub(super) fn refusal(self, method: &Method) -> Response<Body> {
        let mut response = self.answer(method, None);
        response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
        response
    }

    /// The response, with the outcome for the layer if the request is enrolled.
    pub(super) fn answer(self, method: &Method, enrolled: Option<&EnrolledRequest>) -> Response<Body> {
        let may_rerun = enrolled.is_some_and(|route| route.may_rerun);
        let executed = if self.is_before_sending() { "no" } else { "unknown" };
        let problem = ApiProblem::new(self.status(), self.code(), self.detail())
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
