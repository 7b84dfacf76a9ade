//! Which requests may be sent again, and what they carry when they are.
//!
//! Sending twice what must happen once is the one mistake that a retry layer must not make. So
//! [`Repeatable`], which is for HTTP, repeats only the methods that the standard calls idempotent (GET, HEAD,
//! OPTIONS, TRACE, PUT, DELETE) and whatever carries an `Idempotency-Key`. Everything else gets one attempt.

use http::{HeaderMap, Method, Request};
use redrive_core::names::header;
use redrive_retry::Attempt;

use crate::{key, travel};

/// Says whether a request may be sent again, by making the copy that would be.
///
/// ```
/// use redrive_http::Repeat;
///
/// /// Only what reads may be repeated.
/// struct Reads;
/// impl Repeat<&'static str> for Reads {
///     fn copy(&self, request: &&'static str) -> Option<&'static str> {
///         request.starts_with("read").then_some(request)
///     }
/// }
/// assert!(Reads.copy(&"read 17").is_some());
/// assert!(Reads.copy(&"write 17").is_none());
/// ```
pub trait Repeat<Request> {
    /// Before the first attempt, once for each logical call.
    fn prepare(&self, request: &mut Request) {
        let _ = request;
    }

    /// A copy to be sent later; `None` where it may not be, or cannot be, sent again.
    fn copy(&self, request: &Request) -> Option<Request>;

    /// Before every attempt.
    fn stamp(&self, request: &mut Request, attempt: Attempt) {
        let _ = (request, attempt);
    }
}

/// Every request may be sent again. For services whose every operation is idempotent: you say so.
#[derive(Debug, Clone, Copy, Default)]
pub struct Cloned;

impl<R: Clone> Repeat<R> for Cloned {
    fn copy(&self, request: &R) -> Option<R> {
        Some(request.clone())
    }
}

/// HTTP requests that are safe to repeat, for bodies that can be cloned. A streamed body cannot, and does not
/// compile here; it has no business under a retry.
#[derive(Debug, Clone, Copy, Default)]
pub struct Repeatable {
    mint: bool,
}

impl Repeatable {
    /// Gives every request that is not idempotent by its method, and has no `Idempotency-Key`, a fresh one:
    /// once for each logical call, kept over all its attempts. For servers that honour the header.
    #[must_use]
    pub const fn minting_keys(mut self) -> Self {
        self.mint = true;
        self
    }
}

impl<B: Clone> Repeat<Request<B>> for Repeatable {
    fn prepare(&self, request: &mut Request<B>) {
        if self.mint && !is_idempotent(request.method()) && !has_key(request.headers()) {
            request.headers_mut().insert(header::IDEMPOTENCY_KEY, key::mint());
        }
    }

    fn copy(&self, request: &Request<B>) -> Option<Request<B>> {
        let safe = is_idempotent(request.method()) || has_key(request.headers());
        safe.then(|| request.clone())
    }

    fn stamp(&self, request: &mut Request<B>, _: Attempt) {
        travel::stamp(request.headers_mut());
    }
}

/// Whether a request has an identity. An empty one is none.
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
