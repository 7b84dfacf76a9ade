//! Whose header names are whose.
//!
//! What an attempt says of itself is the server's to say, what a connection needs is the client's, and credentials
//! are the destination's: an event that could set them would borrow somebody's name.

use http::{HeaderName, HeaderValue};

/// What an attempt says of itself: name, or the beginning of one.
const OURS: &[&str] = &["redrive-", "webhook-", "idempotency-key"];

/// What belongs to a connection, and not to what is sent over it.
const CONNECTION: &[&str] = &[
    "connection",
    "content-length",
    "expect",
    "host",
    "http2-settings",
    "keep-alive",
    "proxy-",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
];

/// What says who sends, which events do not.
const CREDENTIALS: &[&str] =
    &["authorization", "cookie", "forwarded", "set-cookie", "x-forwarded-", "x-real-ip"];

/// What is never given again, or is the ledger's to say.
const REPLAYED: &[&str] = &["date", "idempotency-", "idempotent-", "set-cookie"];

/// Whether one of them is this name, or the beginning of it where it ends in a hyphen.
fn has(names: &[&str], name: &str) -> bool {
    names.iter().any(|known| if known.ends_with('-') { name.starts_with(known) } else { name == *known })
}

/// Whether an event may carry this header.
///
/// # Errors
/// With why it may not.
pub fn check_of_event(name: &str, value: &str) -> Result<(), String> {
    let known = check(name, value)?;
    let known = known.as_str();
    if known == "content-type" {
        return Err(format!("the header `{name}` is said with `content_type`"));
    }
    if has(CREDENTIALS, known) {
        return Err(format!("the header `{name}` is its destination's to set, and not an event's"));
    }
    Ok(())
}

/// Whether an operator may give an answer this header.
///
/// # Errors
/// With why not. The value is not in it.
pub fn check_of_answer(name: &str, value: &str) -> Result<(), String> {
    let known = check(name, value)?;
    if has(REPLAYED, known.as_str()) {
        return Err(format!("the header `{name}` is said anew whenever the answer is given"));
    }
    Ok(())
}

/// Whether a destination may set this header.
///
/// # Errors
/// With why it may not. The value is not in it.
pub fn check_of_destination(name: &str, value: &str) -> Result<(HeaderName, HeaderValue), String> {
    let name = check(name, value)?;
    let mut value = HeaderValue::from_str(value)
        .map_err(|_| format!("the value of the header `{name}` is not plain text"))?;
    value.set_sensitive(true);
    Ok((name, value))
}

fn check(name: &str, value: &str) -> Result<HeaderName, String> {
    let known = HeaderName::from_bytes(name.as_bytes())
        .map_err(|_| format!("`{}` is no name for a header", name.escape_debug()))?;
    if has(OURS, known.as_str()) {
        return Err(format!("the header `{name}` is the server's to set"));
    }
    if has(CONNECTION, known.as_str()) {
        return Err(format!("the header `{name}` belongs to the connection, and is nobody's to set"));
    }
    if HeaderValue::from_bytes(value.as_bytes()).is_err() {
        return Err(format!("the value of the header `{name}` has a control character in it"));
    }
    Ok(known)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_are_not_an_events_are_refused() {
        let refused = "redrive-id Redrive-Anything webhook-signature WEBHOOK-ID idempotency-key Idempotency-Key \
                       host Content-Length transfer-encoding connection keep-alive te trailer upgrade expect \
                       proxy-authorization proxy-connection authorization Cookie forwarded X-Forwarded-For \
                       x-real-ip content-type";
        for name in refused.split_whitespace() {
            assert!(check_of_event(name, "x").is_err(), "{name}");
        }
        for name in ["", "a b", "a:", "ä", "a\n"] {
            assert!(check_of_event(name, "x").is_err(), "{name}");
        }
        for name in ["traceparent", "tracestate", "x-shop", "content-encoding", "redriven", "hosts", "tea"] {
            assert_eq!(check_of_event(name, "x"), Ok(()), "{name}");
        }
        assert!(check_of_event("x-shop", "a\r\nhost: evil").is_err());
    }

    #[test]
    fn an_answer_has_no_headers_of_its_connection_or_of_the_ledger() {
        for name in
            ["Set-Cookie", "date", "content-length", "Redrive-Sealed", "Idempotency-Status", "te", "a b"]
        {
            assert!(check_of_answer(name, "x").is_err(), "{name}");
        }
        for name in ["content-type", "location", "etag", "x-request-id", "link"] {
            assert_eq!(check_of_answer(name, "x"), Ok(()), "{name}");
        }
        assert!(check_of_answer("x-a", "a\r\nb").is_err());
    }

    #[test]
    fn a_destination_may_set_credentials_and_they_are_not_told() {
        let (_, value) = check_of_destination("authorization", "Bearer abc").expect("it may");
        assert_eq!(format!("{value:?}"), "Sensitive");
        for name in ["host", "redrive-id", "webhook-id", "idempotency-key", "connection"] {
            assert!(check_of_destination(name, "x").is_err(), "{name}");
        }
        let told = check_of_destination("x-key", "geheim\u{7}").unwrap_err();
        assert!(!told.contains("geheim"), "{told}");
    }
}
