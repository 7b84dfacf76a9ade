//! What may follow a body, in both directions (RFC 9110, 6.5.1).
//!
//! A trailer comes when everything was decided by the headers: who asks, for what, how long it is, by which way. Many a
//! server puts trailers among the headers all the same, so what is decided by a header, and what would have been taken
//! away as one, does not come behind the body either.
//!
//! Only what `Trailer` announces is sent on, by the HTTP library itself; so the announcement is what is sifted.

use http::header::TRAILER;
use http::{HeaderMap, HeaderValue};

use super::hops::tokens;

/// What frames a message, routes it, says who sends it, asks something of whoever reads it, or says how its body is to be
/// read. What ends in a hyphen is how names begin.
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

/// Announces only what may be a trailer, and is none of those that are `refused` for another reason.
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
