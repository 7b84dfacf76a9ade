//! Answers of the layer's own, as problem documents (RFC 9457).
//!
//! Each has a `code` that clients may go by, whether it is `retryable`, after how long (`retry_after_ms`, and
//! `Retry-After` in whole seconds), and a `type` that leads to its paragraph on [`PAGE`]. For SDKs that others wrote, the
//! same is in an `error` member and in headers ([`retry_hints`]).

use std::time::Duration;

use http::header::{CONTENT_TYPE, LINK};
use http::{HeaderName, HeaderValue, Response, StatusCode};

use super::body::Body;
use crate::json::{Json, NumberFormat};
use crate::retry_hints;

/// The page on which every problem has a heading of its code: of this layer, of the server and of the gateway. Its text
/// is `docs/reference/problems.md`.
pub const PAGE: &str = "https://docs.rs/redrive/latest/redrive/problems/index.html";

/// An unsuccessful response.
#[derive(Debug, Clone, PartialEq)]
pub struct Problem {
    /// The status.
    pub status: StatusCode,
    /// What clients may go by.
    pub code: &'static str,
    /// What went wrong, and what to do.
    pub detail: String,
    /// Whether the same request may succeed later.
    pub retryable: bool,
    /// How much later.
    pub retry_after: Option<Duration>,
    more: Vec<(&'static str, Json)>,
    headers: Vec<(HeaderName, HeaderValue)>,
    linked: bool,
}

impl Problem {
    /// A problem that another try does not solve.
    pub fn new(status: StatusCode, code: &'static str, detail: impl Into<String>) -> Self {
        Self {
            status,
            code,
            detail: detail.into(),
            retryable: false,
            retry_after: None,
            more: Vec::new(),
            headers: Vec::new(),
            linked: false,
        }
    }

    /// Retryable after `wait`.
    #[must_use]
    pub fn after(mut self, wait: Duration) -> Self {
        self.retryable = true;
        self.retry_after = Some(wait);
        self
    }

    /// Sets whether the request is retryable.
    #[must_use]
    pub fn retryable(mut self, retryable: bool) -> Self {
        self.retryable = retryable;
        self
    }

    pub(super) fn with(mut self, name: &'static str, value: Json) -> Self {
        self.more.push((name, value));
        self
    }

    pub(super) fn header(mut self, name: HeaderName, value: HeaderValue) -> Self {
        self.headers.push((name, value));
        self
    }

    /// Links to the documentation of the requirement.
    pub(super) fn linked(mut self) -> Self {
        self.linked = true;
        self
    }

    /// The answer; `page` is where problems are explained.
    #[must_use]
    pub fn response(self, page: &str) -> Response<Body> {
        let link = format!("{page}#{}", self.code);
        let text = |text: &str| Json::Text(text.to_owned());
        let number = |number: u128| Json::Number(number.to_string());
        let mut members = vec![
            ("type", text(&link)),
            ("title", text(self.status.canonical_reason().unwrap_or("problem"))),
            ("status", number(self.status.as_u16().into())),
            ("code", text(self.code)),
            ("detail", text(&self.detail)),
            ("retryable", Json::Bool(self.retryable)),
        ];
        if let Some(wait) = self.retry_after {
            members.push(("retry_after_ms", number(wait.as_millis())));
        }
        let error = [
            ("type", retry_hints::error_type(self.status, self.code)),
            ("code", self.code),
            ("message", self.detail.as_str()),
        ];
        let error = error.into_iter().map(|(name, value)| (name.to_owned(), text(value)));
        members.push(("error", Json::Object(error.collect())));
        members.extend(self.more);
        let members = members.into_iter().map(|(name, value)| (name.to_owned(), value));
        let body = Json::Object(members.collect()).canonical(NumberFormat::Exact).unwrap_or_default();
        let mut response = Response::new(Body::from(body.into_bytes()));
        *response.status_mut() = self.status;
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
        retry_hints::write(headers, Some(self.retryable), self.retry_after);
        if self.linked
            && let Ok(value) = HeaderValue::try_from(format!("<{link}>; rel=\"describedby\""))
        {
            headers.insert(LINK, value);
        }
        headers.extend(self.headers);
        response
    }
}
