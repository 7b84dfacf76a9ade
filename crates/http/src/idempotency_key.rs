//! Idempotency keys: one per intent, the same for all its attempts.

use http::{HeaderMap, HeaderName, HeaderValue};

/// How many characters a key has, at most.
const LENGTH_MAX: usize = 255;

/// Where keys travel.
const HEADER: HeaderName = HeaderName::from_static(redrive_core::names::header::IDEMPOTENCY_KEY);

/// Why a key is invalid.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum KeyError {
    /// The header occurs more than once.
    #[error("the header `Idempotency-Key` occurs more than once")]
    Repeated,
    /// Nothing is in it.
    #[error("the key is empty")]
    Empty,
    /// It is too long.
    #[error("the key has more than 255 characters")]
    TooLong,
    /// It has characters that no key has.
    #[error(
        "an idempotency key consists of visible ASCII characters; quotation marks and commas are allowed only in a quoted string"
    )]
    Characters,
    /// It begins as a quoted string but is not one.
    #[error("the key begins with a quotation mark but is not a structured-field string (RFC 9651)")]
    Unquoted,
}

/// The key that a request has, if it has one.
///
/// A value that begins with a quotation mark is a structured-field string; any other value is taken literally, as
/// most clients send it. `"a"` and `a` are the same key.
///
/// ```
/// use http::HeaderMap;
/// use redrive_http::idempotency_key::of;
///
/// let mut headers = HeaderMap::new();
/// assert_eq!(of(&headers), Ok(None));
/// headers.insert("idempotency-key", "order-17".parse().unwrap());
/// let plain = of(&headers);
/// headers.insert("idempotency-key", "\"order-17\"".parse().unwrap());
/// assert_eq!(plain, of(&headers));
/// ```
///
/// # Errors
/// If the header is present but invalid.
pub fn of(headers: &HeaderMap) -> Result<Option<String>, KeyError> {
    let mut values = headers.get_all(HEADER).iter();
    let Some(value) = values.next() else { return Ok(None) };
    if values.next().is_some() {
        return Err(KeyError::Repeated);
    }
    parse(value.as_bytes()).map(Some)
}

/// Parses a key.
///
/// # Errors
/// If it is invalid.
pub fn parse(value: &[u8]) -> Result<String, KeyError> {
    let value = value.trim_ascii();
    let key = match value.strip_prefix(b"\"") {
        Some(rest) => unquoted(rest)?,
        None if value.iter().all(|byte| byte.is_ascii_graphic() && !matches!(byte, b'"' | b',')) => {
            String::from_utf8_lossy(value).into_owned()
        }
        None => return Err(KeyError::Characters),
    };
    match key.len() {
        0 => Err(KeyError::Empty),
        length if length > LENGTH_MAX => Err(KeyError::TooLong),
        _ => Ok(key),
    }
}

/// The content of a structured-field string, after its first quotation mark.
fn unquoted(text: &[u8]) -> Result<String, KeyError> {
    let mut key = String::new();
    let mut bytes = text.iter();
    loop {
        match bytes.next() {
            Some(b'"') if bytes.as_slice().is_empty() => return Ok(key),
            Some(b'\\') => match bytes.next() {
                Some(byte @ (b'"' | b'\\')) => key.push(char::from(*byte)),
                _ => return Err(KeyError::Unquoted),
            },
            Some(b'"') | None => return Err(KeyError::Unquoted),
            Some(byte @ 0x20..=0x7e) => key.push(char::from(*byte)),
            Some(_) => return Err(KeyError::Characters),
        }
    }
}

/// A fresh key, as a structured-field string (RFC 9651): a UUID of version 7 in quotation marks.
///
/// ```
/// let key = redrive_http::idempotency_key::mint();
/// assert_eq!(key.to_str().unwrap().len(), 38);
/// assert_ne!(key, redrive_http::idempotency_key::mint());
/// ```
#[must_use]
pub fn mint() -> HeaderValue {
    let text = format!("\"{}\"", uuid::Uuid::now_v7());
    HeaderValue::try_from(text).unwrap_or_else(|_| HeaderValue::from_static(""))
}

/// The caller's own key as a structured-field string; `None` if it is invalid: empty, over 255 characters, or not
/// visible ASCII.
///
/// ```
/// use redrive_http::idempotency_key::quoted;
///
/// assert_eq!(quoted("order-17").unwrap(), "\"order-17\"");
/// assert_eq!(quoted("a\"b").unwrap(), r#""a\"b""#);
/// assert!(quoted("").is_none());
/// ```
#[must_use]
pub fn quoted(key: &str) -> Option<HeaderValue> {
    let fits = !key.is_empty() && key.len() <= 255 && key.bytes().all(|byte| (0x20..0x7f).contains(&byte));
    let escaped = key.replace('\\', r"\\").replace('"', "\\\"");
    fits.then(|| HeaderValue::try_from(format!("\"{escaped}\"")).ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_read_as_the_contract_says() {
        let long = "k".repeat(LENGTH_MAX);
        for (value, key) in [
            ("order-17", "order-17"),
            (" order-17 ", "order-17"),
            (r#""order-17""#, "order-17"),
            (r#""a b, c""#, "a b, c"),
            (r#""a\"b\\c""#, r#"a"b\c"#),
            (&long, &long),
        ] {
            assert_eq!(parse(value.as_bytes()).as_deref(), Ok(key), "{value}");
        }
        let too_long = format!("{long}k");
        for (value, why) in [
            ("", KeyError::Empty),
            ("  ", KeyError::Empty),
            (r#""""#, KeyError::Empty),
            (too_long.as_str(), KeyError::TooLong),
            ("a b", KeyError::Characters),
            ("a,b", KeyError::Characters),
            ("a\"b", KeyError::Characters),
            ("ä", KeyError::Characters),
            ("\"ä\"", KeyError::Characters),
            ("a\u{1}", KeyError::Characters),
            ("\"a", KeyError::Unquoted),
            ("\"a\"b", KeyError::Unquoted),
            ("\"a\\b\"", KeyError::Unquoted),
            ("\"a\";p=1", KeyError::Unquoted),
        ] {
            assert_eq!(parse(value.as_bytes()), Err(why), "{value}");
        }
    }

    #[test]
    fn what_we_write_we_read() {
        for key in ["order-17", "a\"b\\c, d"] {
            assert_eq!(parse(quoted(key).expect("a key").as_bytes()).as_deref(), Ok(key));
        }
        let mut headers = HeaderMap::new();
        headers.append("idempotency-key", HeaderValue::from_static("a"));
        headers.append("idempotency-key", HeaderValue::from_static("a"));
        assert_eq!(of(&headers), Err(KeyError::Repeated));
    }
}
