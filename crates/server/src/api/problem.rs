//! Unsuccessful responses, as problem documents (RFC 9457).

use std::time::Duration;

use axum::response::{IntoResponse, Response};
use http::header::{CONTENT_TYPE, WWW_AUTHENTICATE};
use http::{HeaderName, HeaderValue, StatusCode};
use redrive::desk::DeskError;
use redrive::http::idempotent::problem::PAGE;
use redrive::http::retry_hints;
use redrive::{PublishError, StoreError};
use serde_json::{Map, Value, json};

use crate::config::Right;

/// An unsuccessful response.
#[derive(Debug, Clone, PartialEq)]
pub struct ApiProblem {
    /// The status.
    pub status: StatusCode,
    /// Its `code`: what clients may go by.
    pub kind: &'static str,
    /// What went wrong, and what to do.
    pub detail: String,
    /// Further members.
    more: Map<String, Value>,
    headers: Vec<(HeaderName, HeaderValue)>,
    wait: Option<Duration>,
}

impl ApiProblem {
    /// A problem of a kind, said in words.
    pub fn new(status: StatusCode, kind: &'static str, detail: impl Into<String>) -> Self {
        Self { status, kind, detail: detail.into(), more: Map::new(), headers: Vec::new(), wait: None }
    }

    /// With another member of the document.
    #[must_use]
    pub fn with(mut self, name: &str, value: impl Into<Value>) -> Self {
        self.more.insert(name.to_owned(), value.into());
        self
    }

    /// Retryable, with `Retry-After` in whole seconds and at least one.
    #[must_use]
    pub fn retry_after(mut self, wait: Duration) -> Self {
        self.wait = Some(wait);
        self
    }

    /// Whether the same request may succeed later. `None` if that is not known: of a failure of the server's own.
    fn is_retryable(&self) -> Option<bool> {
        let said = self.more.get("retryable").and_then(Value::as_bool);
        said.or(self.wait.map(|_| true)).or((!self.status.is_server_error()).then_some(false))
    }

    /// 400: the request makes no sense.
    pub fn bad_request(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "bad-request", detail)
    }

    /// 404.
    pub fn not_found(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_FOUND, "not-found", detail)
    }

    /// 404: there is no such queue.
    #[must_use]
    pub fn no_queue(queue: &str) -> Self {
        let detail = format!("there is no queue `{queue}`; queues are set up in the server's configuration");
        Self::new(StatusCode::NOT_FOUND, "no-such-queue", detail)
    }

    pub(super) fn method_not_allowed() -> Self {
        Self::new(
            StatusCode::METHOD_NOT_ALLOWED,
            "method-not-allowed",
            "this path does not support the method",
        )
    }

    /// 401.
    #[must_use]
    pub fn unauthorized() -> Self {
        let detail = "missing or unknown token; send `Authorization: Bearer …`, once";
        let mut problem = Self::new(StatusCode::UNAUTHORIZED, "unauthorized", detail);
        problem.headers.push((WWW_AUTHENTICATE, HeaderValue::from_static("Bearer")));
        problem
    }

    /// 401: the token has ended.
    #[must_use]
    pub fn expired_token() -> Self {
        let detail = "this token has expired; create one with `redrive token new`";
        Self { detail: detail.to_owned(), ..Self::unauthorized() }
    }

    /// 403: the token lacks a right.
    #[must_use]
    pub fn forbidden(right: Right) -> Self {
        let right = format!("{right:?}").to_lowercase();
        let detail = format!("this token may not {right}");
        Self::new(StatusCode::FORBIDDEN, "forbidden", detail).with("right", right)
    }

    /// 403: another tenant's events.
    #[must_use]
    pub fn other_tenant(tenant: &str) -> Self {
        let detail = format!("this token has no access to the tenant `{tenant}`");
        Self::new(StatusCode::FORBIDDEN, "other-tenant", detail)
    }

    /// 403: another queue than those of the token.
    #[must_use]
    pub fn other_queue(queue: &str) -> Self {
        let detail = format!("this token has no access to the queue `{queue}`");
        Self::new(StatusCode::FORBIDDEN, "other-queue", detail)
    }

    /// 403: without tokens, only this machine is served.
    #[must_use]
    pub fn not_from_here() -> Self {
        let detail = "without tokens this server accepts only requests to its loopback address and none from other web origins; call it as 127.0.0.1 or localhost, or configure tokens";
        Self::new(StatusCode::FORBIDDEN, "not-from-here", detail)
    }

    /// 503: retry the same request later.
    pub fn busy(detail: impl Into<String>, wait: Duration) -> Self {
        Self::new(StatusCode::SERVICE_UNAVAILABLE, "busy", detail).retry_after(wait)
    }

    /// As a JSON document.
    #[must_use]
    pub fn document(&self) -> Value {
        let mut document = json!({
            "type": format!("{PAGE}#{}", self.kind),
            "title": self.status.canonical_reason().unwrap_or_default(),
            "status": self.status.as_u16(),
            "code": self.kind,
            "retryable": self.is_retryable().unwrap_or(false),
            "detail": self.detail,
        });
        if let Value::Object(members) = &mut document {
            members.extend(self.more.clone());
        }
        document
    }
}

impl IntoResponse for ApiProblem {
    fn into_response(self) -> Response {
        let retryable = self.is_retryable();
        let mut document = self.document();
        if let Some(wait) = self.wait {
            document["retry_after_ms"] = u64::try_from(wait.as_millis()).unwrap_or(u64::MAX).into();
        }
        // SDKs that others wrote take a failure without an `error` for a success.
        let code = self.more.get("code").and_then(Value::as_str).unwrap_or(self.kind);
        let kind = retry_hints::error_type(self.status, code);
        document["code"] = code.into();
        document["error"] = json!({ "type": kind, "code": code, "message": self.detail });
        let mut response = (self.status, document.to_string()).into_response();
        response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
        retry_hints::write(response.headers_mut(), retryable, self.wait);
        for (name, value) in self.headers {
            response.headers_mut().insert(name, value);
        }
        response
    }
}

impl From<StoreError> for ApiProblem {
    fn from(error: StoreError) -> Self {
        let detail = error.to_string();
        match error {
            StoreError::DiskLow { .. } => Self::new(StatusCode::SERVICE_UNAVAILABLE, "disk-low", detail)
                .retry_after(Duration::from_secs(10)),
            StoreError::Unknown { .. } | StoreError::Unanswered { .. } => {
                Self::new(StatusCode::SERVICE_UNAVAILABLE, "outcome-unknown", detail)
                    .retry_after(Duration::from_secs(1))
            }
            error if error.is_transient() => Self::busy(detail, Duration::from_secs(1)),
            StoreError::Closed | StoreError::Poisoned { .. } => {
                Self::new(StatusCode::SERVICE_UNAVAILABLE, "stopping", detail)
                    .retry_after(Duration::from_secs(1))
            }
            _ => Self::new(StatusCode::INTERNAL_SERVER_ERROR, "store", detail),
        }
    }
}

impl From<PublishError> for ApiProblem {
    fn from(error: PublishError) -> Self {
        let detail = error.to_string();
        match error {
            PublishError::IdReused { .. } => Self::new(StatusCode::UNPROCESSABLE_ENTITY, "id-reused", detail),
            PublishError::Event(_) | PublishError::Window { .. } | PublishError::Handler { .. } => {
                Self::new(StatusCode::UNPROCESSABLE_ENTITY, "not-an-event", detail)
            }
            PublishError::NoQueue { queue, .. } => Self::no_queue(&queue),
            PublishError::Store(error) => error.into(),
            _ => Self::new(StatusCode::INTERNAL_SERVER_ERROR, "publish", detail),
        }
    }
}

impl From<DeskError> for ApiProblem {
    fn from(error: DeskError) -> Self {
        let detail = error.to_string();
        match error {
            DeskError::Refused(refusal) => super::wire::refused(&refusal),
            DeskError::Event(_) => Self::new(StatusCode::UNPROCESSABLE_ENTITY, "not-an-event", detail),
            DeskError::Store(error) => error.into(),
            _ => Self::new(StatusCode::INTERNAL_SERVER_ERROR, "desk", detail),
        }
    }
}
