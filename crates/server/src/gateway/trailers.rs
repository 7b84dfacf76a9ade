//! Trailers, in both directions (RFC 9110, 6.5.1).
//!
//! Trailers arrive after everything was decided by the headers: identity, target, length, route. Many servers merge
//! trailers into the headers all the same, so a field that a header decides, or that is stripped as a header, may not
//! come as a trailer either.
//!
//! The HTTP library forwards only trailers announced by `Trailer`, so the announcement is filtered.

use http::header::TRAILER;
use http::{HeaderMap, HeaderValue};

use super::hop_headers::tokens;

/// Fields that frame, route or authenticate a message, make requests of its reader, or describe its body. A name that
/// ends in a hyphen is a prefix.
const NEVER: &[&str] = &[
    "age",
    "allow",
    "authentication-info",
    "authorization",
    "cache-control",
    "connection",
    "content-",
    "cookie",
    "date",
    "expect",
    "expires",
    "forwarded",
    "host",
    "http2-settings",
    "idempotency-",
    "idempotent-",
    "if-",
    "keep-alive",
    "location",
    "max-forwards",
    "pragma",
    "prefer",
    "proxy-",
    "range",
    "redrive-",
    "repeatability-",
    "retry-after",
    "sec-",
    "set-cookie",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
    "vary",
    "via",
    "warning",
    "www-authenticate",
    "x-forwarded-",
];

/// Removes forbidden and `refused` names from the announcement.
pub(super) fn sift(headers: &mut HeaderMap, refused: impl Fn(&str) -> bool) {
    if !headers.contains_key(TRAILER) {
        return;
    }
    let kept: Vec<String> =
        tokens(headers, &TRAILER).filter(|name| !is_never(name) && !refused(name)).collect();
    headers.remove(TRAILER);
    if let Ok(kept) = HeaderValue::try_from(kept.join(", "))
        && !kept.is_empty()
    {
        headers.insert(TRAILER, kept);
    }
}

/// Underscores count as dashes: many a server reads them so.
fn is_never(name: &str) -> bool {
    let name = name.replace('_', "-");
    // What says something of the content, after the fact, is what trailers are for.
    if name == "content-digest" {
        return false;
    }
    NEVER.iter().any(|never| if never.ends_with('-') { name.starts_with(never) } else { name == *never })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sifted(announced: &[&'static str]) -> Option<String> {
        let mut headers = HeaderMap::new();
        for names in announced {
            headers.append(TRAILER, HeaderValue::from_static(names));
        }
        sift(&mut headers, |name| name == "x-mine");
        assert!(headers.get_all(TRAILER).iter().count() <= 1);
        Some(headers.get(TRAILER)?.to_str().unwrap().to_owned())
    }

    #[test]
    fn only_what_says_nothing_that_headers_decide_may_follow_a_body() {
        assert_eq!(sifted(&[]), None);
        assert_eq!(sifted(&["X-Sum, Host", "Server-Timing"]).as_deref(), Some("x-sum, server-timing"));
        assert_eq!(sifted(&["Content-Digest, Content-Type"]).as_deref(), Some("content-digest"));
        for never in [
            "Content-Length, Transfer-Encoding",
            "Authorization",
            "Cookie",
            "X-Forwarded-For",
            "X_Forwarded_For",
            "Idempotency-Key",
            "Connection",
            "If-Match",
            "x-mine",
            "",
        ] {
            assert_eq!(sifted(&[never]), None, "{never}");
        }
    }
}
