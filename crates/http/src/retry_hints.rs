//! What clients and SDKs that others wrote read of an answer: whether to repeat it, when, and why it failed.
//!
//! | header | says | is read by |
//! |---|---|---|
//! | `Stripe-Should-Retry`, `x-should-retry` | `true`, `false` | SDKs of Stripe, and those generated in its manner |
//! | `retry-after-ms` | the wait in milliseconds | the same; others read `Retry-After`, in whole seconds |
//!
//! An SDK of that family also looks for an `error` member in the body, and takes a failure without one for a success.
//! So problem documents have it, with a `type` of the few that these SDKs tell apart ([`error_type`]).

use std::time::Duration;

use http::header::RETRY_AFTER;
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use redrive_core::names::header;

const SHOULD_RETRY: [HeaderName; 2] =
    [HeaderName::from_static(header::STRIPE_SHOULD_RETRY), HeaderName::from_static(header::X_SHOULD_RETRY)];
const RETRY_AFTER_MS: HeaderName = HeaderName::from_static(header::RETRY_AFTER_MS);

/// Whether an answer says by a header of its own that its request should be repeated.
#[must_use]
pub fn should_retry(headers: &HeaderMap) -> Option<bool> {
    SHOULD_RETRY.iter().filter_map(|name| headers.get(name)).find_map(|value| {
        let value = value.as_bytes();
        let is = |word: &[u8]| value.eq_ignore_ascii_case(word);
        if is(b"true") { Some(true) } else { is(b"false").then_some(false) }
    })
}

/// Whether an answer says that a request under the same key is still running: a 409 that asks to be repeated, by
/// `Retry-After` or by a header for SDKs. It is the answer of a moment, and not the request's.
///
/// ```
/// use http::{HeaderMap, StatusCode};
/// use redrive_http::retry_hints::is_in_progress;
///
/// let mut headers = HeaderMap::new();
/// assert!(!is_in_progress(StatusCode::CONFLICT, &headers));
/// headers.insert("stripe-should-retry", "true".parse().unwrap());
/// assert!(is_in_progress(StatusCode::CONFLICT, &headers));
/// assert!(!is_in_progress(StatusCode::GONE, &headers));
/// ```
#[must_use]
pub fn is_in_progress(status: StatusCode, headers: &HeaderMap) -> bool {
    let asks = || match should_retry(headers) {
        Some(said) => said,
        None => headers.contains_key(RETRY_AFTER) || headers.contains_key(RETRY_AFTER_MS),
    };
    status == StatusCode::CONFLICT && asks()
}

/// Says whether to repeat a request, where that is known, and after how long.
pub fn write(headers: &mut HeaderMap, retryable: Option<bool>, wait: Option<Duration>) {
    if let Some(retryable) = retryable {
        for name in SHOULD_RETRY {
            headers.insert(name, HeaderValue::from_static(if retryable { "true" } else { "false" }));
        }
    }
    if let Some(wait) = wait {
        headers.insert(RETRY_AFTER, HeaderValue::from(whole_seconds(wait)));
        let millis = u64::try_from(wait.as_millis()).unwrap_or(u64::MAX);
        headers.insert(RETRY_AFTER_MS, HeaderValue::from(millis.max(1)));
    }
}

/// Not a moment too early, and at least one.
#[must_use]
pub fn whole_seconds(wait: Duration) -> u64 {
    wait.as_secs().saturating_add(u64::from(wait.subsec_nanos() > 0)).max(1)
}

/// The `type` of an `error` member, in the words by which SDKs tell errors apart. `code` is the problem's.
#[must_use]
pub fn error_type(status: StatusCode, code: &str) -> &'static str {
    match status.as_u16() {
        401 => "authentication_error",
        429 => "rate_limit_error",
        _ if code.starts_with("key-") || matches!(code, "in-flight" | "outcome-unknown" | "id-reused") => {
            "idempotency_error"
        }
        500..=599 => "api_error",
        _ => "invalid_request_error",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_409_is_of_a_moment_where_it_asks_to_be_repeated() {
        let cases: [(&[(&str, &str)], bool); 7] = [
            (&[], false),
            (&[("retry-after", "1")], true),
            (&[("retry-after-ms", "50")], true),
            (&[("Stripe-Should-Retry", "TRUE")], true),
            (&[("x-should-retry", "true")], true),
            (&[("stripe-should-retry", "false"), ("retry-after", "1")], false),
            (&[("stripe-should-retry", "perhaps")], false),
        ];
        for (pairs, expected) in cases {
            let headers = pairs.iter().map(|(name, value)| {
                (HeaderName::try_from(*name).expect("a name"), HeaderValue::from_static(value))
            });
            let headers: HeaderMap = headers.collect();
            assert_eq!(is_in_progress(StatusCode::CONFLICT, &headers), expected, "{pairs:?}");
            assert!(!is_in_progress(StatusCode::OK, &headers), "{pairs:?}");
        }
    }

    #[test]
    fn waits_are_said_in_seconds_and_in_milliseconds() {
        for (wait, seconds, millis) in [(0, "1", "1"), (250, "1", "250"), (1500, "2", "1500")] {
            let mut headers = HeaderMap::new();
            write(&mut headers, Some(true), Some(Duration::from_millis(wait)));
            assert_eq!(
                (&headers["retry-after"], &headers["retry-after-ms"]),
                (&seconds.parse().expect("a value"), &millis.parse().expect("a value"))
            );
            assert_eq!(
                (&headers["stripe-should-retry"], &headers["x-should-retry"]),
                (&HeaderValue::from_static("true"), &HeaderValue::from_static("true"))
            );
        }
    }
}
