//! The meaning of a status or a client error. The first classifier that knows an error decides.

#[cfg(feature = "reqwest")]
mod reqwest;

#[cfg(feature = "reqwest")]
pub use self::reqwest::reqwest;

use http::StatusCode;
use redrive_core::Fault;

/// The meaning of a response status, by the default [`StatusMap`](crate::StatusMap). `None` for 2xx, which is not an
/// error.
///
/// For error types that carry a status: `.classify(|error: &MyError| classify::status(error.status))`.
///
/// ```
/// use http::StatusCode;
/// use redrive_http::classify;
///
/// assert!(classify::status(StatusCode::BAD_GATEWAY).unwrap().is_transient());
/// assert!(!classify::status(StatusCode::NOT_FOUND).unwrap().is_transient());
/// ```
#[must_use]
pub fn status(status: StatusCode) -> Option<Fault> {
    crate::status::by_default(status)
}
