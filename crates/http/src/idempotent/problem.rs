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
//! Status 400. `Repeatability-First-Sent` is not an HTTP date.
//!
//! ## body-ambiguous
//! Status 400. A name stands twice in one object of the JSON body, and readers differ in which one counts.
//!
//! ## body-broken
//! Status 400. The request's body broke off. Nothing was looked up or run.
//!
//! ## tenant-missing
//! Status 403. The request does not say whose it is. The server's own layers before this one have to.
//!
//! ## body-too-large
//! Status 413. The body is larger than this operation takes.
//!
//! ## key-too-old
//! Status 412. The request was first sent so long ago that its first try may have been forgotten. It was not run. Find out
//! whether it happened; if not, it is a new intent with a new key.
//!
//! ## key-reused
//! Status 422. The key was used for something else, or by somebody else. A new intent needs a new key.
//!
//! ## in-flight
//! Status 409, retryable. The first try is still running, or what it may have done settles before it is looked for. The
//! same request again, after `Retry-After`.
//!
//! ## outcome-unknown
//! Status 409. The request may have happened, and nobody knows. It is not run again until an operator, or the late end of its
//! first try, says how it was.
//!
//! ## backing-off
//! Status 503, retryable. The first try failed and asked to be left alone until then.
//!
//! ## response-expired
//! Status 410. It happened, and its answer is not kept any more, or was too large to be. `original_status` and `Location` say
//! what there is to say. It is never run again.
//!
//! ## ledger-down
//! Status 503, retryable. The ledger does not answer, or cannot read the record, and without it nothing is run.
//!
//! ## too-busy
//! Status 503, retryable. As many requests run as may, and this one would have to run. Nothing was claimed or run.
//!
//! ## shutting-down
//! Status 503. The server stops. Retryable where the operation may be run again.
//!
//! ## timed-out
//! Status 504. The handler ran for longer than it may and was ended. Retryable where the operation may be run again.
//!
//! ## handler-failed
//! Status 500. The handler panicked, or its answer broke off. Retryable where the operation may be run again.
//!
//! ## not-committed
//! Status 500, retryable. The handler of a transactional operation reported a success that it had not committed: a mistake in
//! the server's code. Nothing happened.
//!
//! ## commit-unknown
//! Status 503. The commit failed in a way that leaves its fate open. Retryable under a key: the same request again finds
//! out. Without a key it is another request, and nobody does.
//!
//! ## no-such-key
//! Status 404. Nothing is remembered under this key.

use std::time::Duration;

use http::header::{CONTENT_TYPE, LINK, RETRY_AFTER};
use http::{HeaderName, HeaderValue, Response, StatusCode};

use super::body::Body;
use crate::json::{Json, Numbers};

/// Where the paragraphs above are found.
pub(super) const PAGE: &str =
    "https://docs.rs/redrive-http/latest/redrive_http/idempotent/problem/index.html";

/// An answer that is no success.
#[derive(Debug, Clone, PartialEq)]
pub struct Problem {
    /// The status.
    pub status: StatusCode,
    /// What clients may go by.
    pub code: &'static str,
    /// What is wrong this time, and what to do.
    pub detail: String,
    /// Whether the same request may help, later.
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

    /// One that another try may solve, after so long.
    #[must_use]
    pub fn after(mut self, wait: Duration) -> Self {
        self.retryable = true;
        self.retry_after = Some(wait);
        self
    }

    /// One that another try may solve, if so.
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

    /// With a link to what is expected.
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
        let body = Json::Object(members.collect()).canonical(Numbers::Exact).unwrap_or_default();
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
