//! What a status or a client's error means. First that knows, decides.

#[cfg(feature = "reqwest")]
mod reqwest;

#[cfg(feature = "reqwest")]
pub use self::reqwest::reqwest;

use http::StatusCode;
use redrive_core::Fault;

/// What an answer with this status means, by the default [`StatusMap`](crate::StatusMap). `None` for 2xx,
/// which is no error.
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
