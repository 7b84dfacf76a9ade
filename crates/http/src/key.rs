//! Idempotency keys: one for each intent, the same over all its attempts.

use http::HeaderValue;

/// A fresh key, as a structured-field string (RFC 9651): a UUID of version 7 in quotation marks.
///
/// ```
/// let key = redrive_http::key::mint();
/// assert_eq!(key.to_str().unwrap().len(), 38);
/// assert_ne!(key, redrive_http::key::mint());
/// ```
#[must_use]
pub fn mint() -> HeaderValue {
    let text = format!("\"{}\"", uuid::Uuid::now_v7());
    HeaderValue::try_from(text).unwrap_or_else(|_| HeaderValue::from_static(""))
}

/// The caller's own key as a structured-field string; `None` where it cannot be one: empty, over 255
/// characters, or not visible ASCII.
///
/// ```
/// use redrive_http::key::quoted;
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
