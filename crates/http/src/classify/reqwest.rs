//! `reqwest` errors.

use std::error::Error;

use redrive_core::Fault;

use crate::status::by_default;

/// Knows what [`reqwest::Error`] says of itself.
///
/// | error | means |
/// |---|---|
/// | could not connect, also when that timed out | retry, not executed |
/// | timed out | retry, unknown |
/// | failed while sending or waiting for the answer | retry, unknown |
/// | failed while reading the answer's body | retry, unknown |
/// | a status turned into an error | as [`status`](super::status) has it |
/// | misconfigured request, redirect loop, refused upgrade | permanent |
/// | body that does not decode | permanent: the next one will not either |
///
/// ```
/// use redrive_http::classify;
///
/// # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
/// let nonsense = reqwest::get("no address").await.unwrap_err();
/// assert!(!classify::reqwest(&nonsense).unwrap().is_transient());
/// # });
/// ```
#[must_use]
pub fn reqwest(error: &::reqwest::Error) -> Option<Fault> {
    if error.is_builder() {
        Some(Fault::permanent().not_executed())
    } else if error.is_decode() && was_cut(error) {
        Some(Fault::transient())
    } else if error.is_redirect() || error.is_decode() || error.is_upgrade() {
        Some(Fault::permanent())
    } else if error.is_connect() {
        Some(Fault::transient().not_executed())
    } else if let Some(status) = error.status() {
        by_default(status)
    } else if error.is_timeout() || error.is_request() || error.is_body() {
        Some(Fault::transient())
    } else {
        None
    }
}

/// Whether the body could not be read, rather than not be understood. `reqwest` calls both "decode".
fn was_cut(error: &::reqwest::Error) -> bool {
    let mut cause = error.source();
    while let Some(error) = cause {
        if error.is::<hyper::Error>() || error.is::<std::io::Error>() {
            return true;
        }
        cause = error.source();
    }
    false
}
