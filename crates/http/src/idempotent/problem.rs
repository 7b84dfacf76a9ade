//! Answers of the layer's own, as problem documents (RFC 9457).
//!
//! Each has a `code` that clients may go by, whether it is `retryable`, after how long (`retry_after_ms`, and
//! `Retry-After` in whole seconds), and a `type` that leads to its paragraph below.
//!
//! ## key-missing
//! Status 400. The operation wants an `Idempotency-Key`. Mint one for each intent, before the first try, and keep it over all
//! tries.
//!
//! ## key-invalid
//! Status 400. The `Idempotency-Key` cannot be one; the detail says why. Nothing was looked up.
//!
//! ## first-sent-invalid
//! Status 400. `Repeatability-First-Outgoing` is not an HTTP date.
//!
//! ## body-ambiguous
//! Status 400. A name occurs twice in one object of the JSON body, and parsers differ in which value counts.
//!
//! ## body-broken
//! Status 400. The request's body broke off. Nothing was looked up or run.
//!
//! ## tenant-missing
//! Status 403. The request names no tenant. Layers in front of this one have to set it.
//!
//! ## principal-missing
//! Status 403. The request has a key and names no principal. Layers in front of this one have to set it.
//!
//! ## body-too-large
//! Status 413. The body is larger than this operation takes.
//!
//! ## key-too-old
//! Status 412. The request was first sent so long ago that its record may have expired. It was not run. Find out
//! whether it took effect; if not, send it as a new intent with a new key.
//!
//! ## key-reused
//! Status 422. The key was used for another request, or with other credentials. A new intent needs a new key.
//!
//! ## in-flight
//! Status 409, retryable. The first request is still running, or its possible effect is still settling. Repeat the
//! request after `Retry-After`.
//!
//! ## outcome-unknown
//! Status 409. The outcome is unknown. The request is not run again until an operator, or the late end of the first
//! run, resolves it.
//!
//! ## backing-off
//! Status 503, retryable. The first try failed and asked to be left alone until then.
//!
//! ## response-expired
//! Status 410. The request completed, but its reply has expired or was too large to store. `original_status` and
//! `Location` are kept. It is never run again.
//!
//! ## ledger-down
//! Status 503, retryable. The ledger does not answer, or cannot read the record, and without it nothing is run.
//!
//! ## too-busy
//! Status 503, retryable. The limit of concurrent runs is reached, and this request would have to run. Nothing was
//! claimed or run.
//!
//! ## shutting-down
//! Status 503. The server stops. Retryable where the operation may be run again.
//!
//! ## timed-out
//! Status 504. The handler exceeded its time limit and was ended. Retryable if the operation may run again.
//!
//! ## handler-failed
//! Status 500. The handler panicked, or its answer broke off. Retryable where the operation may be run again.
//!
//! ## not-committed
//! Status 500, retryable. The handler of a transactional operation reported a success that it had not committed: a mistake in
//! the server's code. Nothing happened.
//!
//! ## commit-unknown
//! Status 503. The outcome of the commit is unknown. Retryable under a key: repeat the request to learn it. Without a
//! key it would be a new request.
//!
//! ## no-such-key
//! Status 404. Nothing is remembered under this key.

use std::time::Duration;

use http::header::{CONTENT_TYPE, LINK, RETRY_AFTER};
use http::{HeaderName, HeaderValue, Response, StatusCode};

use super::body::Body;
use crate::json::{Json, NumberFormat};

/// Where the paragraphs above are found.
pub(super) const PAGE: &str =
    "https://docs.rs/redrive-http/latest/redrive_http/idempotent/problem/index.html";

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
        members.extend(self.more);
        let members = members.into_iter().map(|(name, value)| (name.to_owned(), value));
        let body = Json::Object(members.collect()).canonical(NumberFormat::Exact).unwrap_or_default();
        let mut response = Response::new(Body::from(body.into_bytes()));
        *response.status_mut() = self.status;
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
        if let Some(wait) = self.retry_after {
            headers.insert(RETRY_AFTER, HeaderValue::from(whole_seconds(wait)));
        }
        if self.linked
            && let Ok(value) = HeaderValue::try_from(format!("<{link}>; rel=\"describedby\""))
        {
            headers.insert(LINK, value);
        }
        headers.extend(self.headers);
        response
    }
}

/// Not a moment too early, and at least one.
pub(super) fn whole_seconds(wait: Duration) -> u64 {
    (wait.as_secs() + u64::from(wait.subsec_nanos() > 0)).max(1)
}
