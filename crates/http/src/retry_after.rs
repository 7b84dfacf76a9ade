//! How long the other side asks to be left alone.

use std::time::{Duration, SystemTime};

use http::{HeaderMap, HeaderValue};
use redrive_core::names::header;

/// The wait that an answer's headers ask for: gRPC's push-back in milliseconds, or `Retry-After` in seconds
/// or as a date.
///
/// In gRPC, a negative or unreadable push-back means "do not retry"; here it becomes a wait that no policy accepts.
/// An unreadable `Retry-After` is ignored.
#[must_use]
pub fn from_headers(headers: &HeaderMap) -> Option<Duration> {
    if let Some(pushback) = headers.get(header::GRPC_PUSHBACK) {
        return Some(
            text(pushback).and_then(|ms| ms.parse().ok()).map_or(Duration::MAX, Duration::from_millis),
        );
    }
    headers.get(header::RETRY_AFTER).and_then(text).and_then(|value| parse(value, SystemTime::now()))
}

/// Reads a `Retry-After` value as of `now`. A date that has passed is no wait at all.
///
/// ```
/// use redrive_http::retry_after::parse;
/// use std::time::{Duration, SystemTime};
///
/// let now = SystemTime::UNIX_EPOCH;
/// assert_eq!(parse("120", now), Some(Duration::from_secs(120)));
/// assert_eq!(parse("Thu, 01 Jan 1970 00:01:00 GMT", now), Some(Duration::from_secs(60)));
/// assert_eq!(parse("soon", now), None);
/// ```
#[must_use]
pub fn parse(value: &str, now: SystemTime) -> Option<Duration> {
    let value = value.trim();
    if !value.is_empty() && value.bytes().all(|byte| byte.is_ascii_digit()) {
        // More digits than fit mean a wait longer than any policy accepts.
        return Some(value.parse().map_or(Duration::MAX, Duration::from_secs));
    }
    let date = httpdate::parse_http_date(value).ok()?;
    Some(date.duration_since(now).unwrap_or_default())
}

fn text(value: &HeaderValue) -> Option<&str> {
    value.to_str().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seconds_and_the_three_forms_of_a_date_are_read() {
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(784_111_777 - 30);
        for (value, want) in [
            ("0", Some(0)),
            (" 7 ", Some(7)),
            ("99999999999999999999999", Some(u64::MAX)),
            ("Sun, 06 Nov 1994 08:49:37 GMT", Some(30)),
            ("Sunday, 06-Nov-94 08:49:37 GMT", Some(30)),
            ("Sun Nov  6 08:49:37 1994", Some(30)),
            ("Sun, 06 Nov 1994 08:49:00 GMT", Some(0)),
            ("", None),
            ("-1", None),
            ("1.5", None),
            ("tomorrow", None),
        ] {
            assert_eq!(parse(value, now).map(|wait| wait.as_secs()), want, "{value:?}");
        }
    }

    #[test]
    fn grpc_pushback_goes_before_and_a_negative_one_is_never() {
        let mut headers = HeaderMap::new();
        headers.insert(header::RETRY_AFTER, HeaderValue::from_static("3"));
        assert_eq!(from_headers(&headers), Some(Duration::from_secs(3)));
        headers.insert(header::GRPC_PUSHBACK, HeaderValue::from_static("250"));
        assert_eq!(from_headers(&headers), Some(Duration::from_millis(250)));
        headers.insert(header::GRPC_PUSHBACK, HeaderValue::from_static("-1"));
        assert_eq!(from_headers(&headers), Some(Duration::MAX));
    }
}
