//! Which requests may be repeated, and how they are copied.
//!
//! Sending twice what must happen once is the one mistake that a retry layer must not make. So
//! [`IdempotentRequests`], which is for HTTP, repeats only the methods that the standard calls idempotent (GET, HEAD,
//! OPTIONS, TRACE, PUT, DELETE) and whatever carries an `Idempotency-Key`. Everything else gets one attempt.

use http::{HeaderMap, Method, Request};
use redrive_core::names::header;
use redrive_retry::Attempt;

use crate::{idempotency_key, propagation};

/// Decides whether a request may be repeated, by making the copy.
///
/// ```
/// use redrive_http::RequestCopy;
///
/// /// Only what reads may be repeated.
/// struct Reads;
/// impl RequestCopy<&'static str> for Reads {
///     fn copy(&self, request: &&'static str) -> Option<&'static str> {
///         request.starts_with("read").then_some(request)
///     }
/// }
/// assert!(Reads.copy(&"read 17").is_some());
/// assert!(Reads.copy(&"write 17").is_none());
/// ```
pub trait RequestCopy<Request> {
    /// Before the first attempt, once for each logical call.
    fn prepare(&self, request: &mut Request) {
        let _ = request;
    }

    /// A copy to send later; `None` if the request may not or cannot be repeated.
    fn copy(&self, request: &Request) -> Option<Request>;

    /// Before every attempt.
    fn stamp(&self, request: &mut Request, attempt: Attempt) {
        let _ = (request, attempt);
    }
}

/// Every request may be repeated. For services whose operations are all idempotent.
#[derive(Debug, Clone, Copy, Default)]
pub struct CloneAll;

impl<R: Clone> RequestCopy<R> for CloneAll {
    fn copy(&self, request: &R) -> Option<R> {
        Some(request.clone())
    }
}

/// HTTP requests that are safe to repeat, with clonable bodies. A streamed body does not compile here; it must not be
/// retried.
#[derive(Debug, Clone, Copy, Default)]
pub struct IdempotentRequests {
    mint: bool,
}

impl IdempotentRequests {
    /// Gives every request with a non-idempotent method and without an `Idempotency-Key` a fresh one: once per
    /// logical call, kept for all its attempts. For servers that honour the header.
    #[must_use]
    pub const fn minting_keys(mut self) -> Self {
        self.mint = true;
        self
    }
}

impl<B: Clone> RequestCopy<Request<B>> for IdempotentRequests {
    fn prepare(&self, request: &mut Request<B>) {
        if self.mint && !is_idempotent(request.method()) && !has_key(request.headers()) {
            request.headers_mut().insert(header::IDEMPOTENCY_KEY, idempotency_key::mint());
        }
    }

    fn copy(&self, request: &Request<B>) -> Option<Request<B>> {
        let safe = is_idempotent(request.method()) || has_key(request.headers());
        safe.then(|| request.clone())
    }

    fn stamp(&self, request: &mut Request<B>, _: Attempt) {
        propagation::inject(request.headers_mut());
    }
}

/// Whether a request has a key. An empty one does not count.
pub(crate) fn has_key(headers: &HeaderMap) -> bool {
    headers.get(header::IDEMPOTENCY_KEY).is_some_and(|key| !key.is_empty())
}

/// Whether the standard (RFC 9110) calls a method idempotent.
#[must_use]
pub fn is_idempotent(method: &Method) -> bool {
    matches!(
        *method,
        Method::GET | Method::HEAD | Method::OPTIONS | Method::TRACE | Method::PUT | Method::DELETE
    )
}
