//! What travels from process to process, so that layers do not multiply there either.
//!
//! | header | with | says |
//! |---|---|---|
//! | `redrive-attempt` | a request whose sender retries | the attempt number; the receiver makes a single attempt |
//! | `redrive-deadline` | a request with a deadline | after this moment (RFC 3339, UTC) the sender no longer waits |
//! | `redrive-no-retry: 1` | a response | do not retry: the inner budget is spent, the breaker is open, or inner retries were exhausted |
//!
//! `redrive-attempt` is absent if the sender does not retry, so that the next layer may.
//!
//! With these headers a sender can only shorten its own retries: a deadline from outside counts against no breaker.
//! Still, they are meant for services of one organisation; an edge that faces the internet may strip them.
//!
//! A deadline is a time of day, so it is as accurate as the two clocks agree; if they differ by more than the
//! remaining time, the receiver's retries stop early or late by that much. gRPC's `grpc-timeout`, a duration, is read
//! as well.

use std::time::{Duration, SystemTime};

use http::{HeaderMap, HeaderValue};
use redrive_core::names::header;
use redrive_retry::scope::{self, RetryScope};
use redrive_retry::{Attempt, clock};

/// Writes attempt and deadline of the current attempt to an outgoing request.
pub fn inject(headers: &mut HeaderMap) {
    let Some(scope) = scope::current() else { return };
    if scope.repeats() {
        headers.insert(header::ATTEMPT, HeaderValue::from(scope.attempt().overall()));
    } else {
        headers.remove(header::ATTEMPT);
    }
    if let Some(deadline) = deadline(scope.attempt(), SystemTime::now()) {
        headers.insert(header::DEADLINE, deadline);
    }
}

/// A century: a later deadline is none.
const LONGEST: Duration = Duration::from_secs(100 * 365 * 24 * 60 * 60);

fn deadline(attempt: Attempt, now: SystemTime) -> Option<HeaderValue> {
    // The format ends with the year 9999; a later deadline is none.
    let left = attempt.remaining().filter(|left| *left < LONGEST)?;
    let at = now.checked_add(left)?;
    HeaderValue::try_from(humantime::format_rfc3339_millis(at).to_string()).ok()
}

/// Reads the sender's attempt and deadline. Unreadable values count as absent.
///
/// ```
/// use redrive_http::propagation;
///
/// let mut headers = http::HeaderMap::new();
/// headers.insert("redrive-attempt", "2".parse().unwrap());
/// assert!(propagation::extract(&headers).repeats());
/// ```
#[must_use]
pub fn extract(headers: &HeaderMap) -> RetryScope {
    let attempt =
        text(headers, header::ATTEMPT).and_then(|value| value.parse().ok()).filter(|number| *number > 0);
    RetryScope::incoming(attempt, remaining(headers, SystemTime::now()).map(|left| clock() + left))
}

/// How much time the sender leaves.
fn remaining(headers: &HeaderMap, now: SystemTime) -> Option<Duration> {
    let by_date = text(headers, header::DEADLINE)
        .and_then(|value| humantime::parse_rfc3339(value).ok())
        .map(|at| at.duration_since(now).unwrap_or_default());
    by_date.or_else(|| text(headers, header::GRPC_TIMEOUT).and_then(grpc_timeout))
}

/// At most eight digits and a unit, as gRPC writes it.
fn grpc_timeout(value: &str) -> Option<Duration> {
    let (digits, unit) = value.split_at_checked(value.len().checked_sub(1)?)?;
    let number: u64 = digits.parse().ok().filter(|_| digits.len() <= 8)?;
    match unit {
        "H" => Some(Duration::from_secs(number * 3600)),
        "M" => Some(Duration::from_secs(number * 60)),
        "S" => Some(Duration::from_secs(number)),
        "m" => Some(Duration::from_millis(number)),
        "u" => Some(Duration::from_micros(number)),
        "n" => Some(Duration::from_nanos(number)),
        _ => None,
    }
}

/// Whether an answer asks not to be tried again.
#[must_use]
pub fn forbids_retry(headers: &HeaderMap) -> bool {
    text(headers, header::NO_RETRY).is_some_and(|value| value.trim() == "1")
}

fn text<'h>(headers: &'h HeaderMap, name: &str) -> Option<&'h str> {
    headers.get(name)?.to_str().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(&'static str, &str)]) -> HeaderMap {
        pairs.iter().map(|(name, value)| ((*name).parse().unwrap(), value.parse().unwrap())).collect()
    }

    #[test]
    fn a_sender_who_counts_is_taken_to_repeat() {
        for (pairs, repeats, number) in [
            (&[][..], false, 1),
            (&[("redrive-attempt", "1")], true, 1),
            (&[("redrive-attempt", "3")], true, 3),
            (&[("redrive-attempt", "0")], false, 1),
            (&[("redrive-attempt", "many")], false, 1),
            (&[("redrive-attempt", "-1")], false, 1),
            (&[("redrive-attempt", "99999999999")], false, 1),
        ] {
            let scope = extract(&headers(pairs));
            assert_eq!((scope.repeats(), scope.attempt().number()), (repeats, number), "{pairs:?}");
        }
    }

    #[test]
    fn the_time_left_is_read_from_either_header() {
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(1_700_000_000);
        for (pairs, want) in [
            (&[("redrive-deadline", "2023-11-14T22:13:30Z")][..], Some(10_000)),
            (&[("redrive-deadline", "2023-11-14T22:13:20.250Z")], Some(250)),
            (&[("redrive-deadline", "2020-01-01T00:00:00Z")], Some(0)),
            (&[("redrive-deadline", "soon")], None),
            (&[("grpc-timeout", "250m")], Some(250)),
            (&[("grpc-timeout", "2S")], Some(2_000)),
            (&[("grpc-timeout", "123456789S")], None),
            (&[("grpc-timeout", "S")], None),
            (&[("grpc-timeout", "é")], None),
            (&[], None),
        ] {
            let left = remaining(&headers(pairs), now).map(|left| left.as_millis());
            assert_eq!(left, want, "{pairs:?}");
        }
    }
}
