//! Which headers events and destinations may set.
//!
//! The server describes the attempt, the client manages the connection, and the destination has the credentials: an
//! event that could set them would impersonate another sender.

use http::{HeaderName, HeaderValue};

/// Headers that describe an attempt: names, or prefixes.
const OURS: &[&str] = &["redrive-", "webhook-", "idempotency-key"];

/// Headers of the connection.
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

/// Credentials, which events may not set.
const CREDENTIALS: &[&str] =
    &["authorization", "cookie", "forwarded", "set-cookie", "x-forwarded-", "x-real-ip"];

/// Headers that are never replayed, or belong to the ledger.
const REPLAYED: &[&str] = &["date", "idempotency-", "idempotent-", "set-cookie"];

/// Whether a name is listed, or matches a prefix that ends in a hyphen.
fn has(names: &[&str], name: &str) -> bool {
    names.iter().any(|known| if known.ends_with('-') { name.starts_with(known) } else { name == *known })
}

/// Whether an event may carry this header.
///
/// # Errors
/// With why it may not.
pub fn check_of_event(name: &str, value: &str) -> Result<(), String> {
    let known = folded(&check(name, value)?);
    if known == "content-type" {
        return Err(format!("set the header `{name}` with `content_type`"));
    }
    if has(CREDENTIALS, &known) {
        return Err(format!("the header `{name}` can be set by the destination only, not by an event"));
    }
    Ok(())
}

/// Whether an operator may give an answer this header.
///
/// # Errors
/// With why not. The value is not in it.
pub fn check_of_answer(name: &str, value: &str) -> Result<(), String> {
    let known = check(name, value)?;
    if has(REPLAYED, &folded(&known)) {
        return Err(format!("the header `{name}` is generated for each response and cannot be stored"));
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

/// A name as many receivers read it: CGI and its successors take an underscore for a hyphen.
fn folded(name: &HeaderName) -> String {
    name.as_str().replace('_', "-")
}

fn check(name: &str, value: &str) -> Result<HeaderName, String> {
    let known = HeaderName::from_bytes(name.as_bytes())
        .map_err(|_| format!("`{}` is not a valid header name", name.escape_debug()))?;
    let name_read = folded(&known);
    if has(OURS, &name_read) {
        return Err(format!("the header `{name}` is set by the server"));
    }
    if has(CONNECTION, &name_read) {
        return Err(format!("the header `{name}` belongs to the connection and cannot be set"));
    }
    if HeaderValue::from_bytes(value.as_bytes()).is_err() {
        return Err(format!("the value of the header `{name}` contains a control character"));
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
                       x-real-ip content-type redrive_tenant Idempotency_Key X_Forwarded_For content_type";
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
