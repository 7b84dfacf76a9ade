//! Who asks, where nobody in front says so: whoever sends the same credentials.
//!
//! An answer is replayed without asking the API, so whoever counts as the same caller is given it. Which headers the API
//! lets callers in by is the API's matter and unknown here unless the settings name them, so the guess has to be on the
//! safe side: headers that are known to carry credentials, or are called so, count; and where a request has none of
//! those, all count that may say who asks. A header too many costs a repetition that is refused. One too few would give
//! one caller's answer to another.

use std::fmt::Write as _;
use std::sync::Arc;

use http::request::Parts;
use http::{HeaderMap, HeaderName, HeaderValue};

/// What a header that carries credentials is called, in parts.
const SECRETS: [&str; 14] = [
    "access-key",
    "apikey",
    "api-key",
    "assertion",
    "auth",
    "cert",
    "cookie",
    "credential",
    "jwt",
    "password",
    "secret",
    "session",
    "signature",
    "token",
];

/// What says nothing of who asks, or counts by itself, or is another with each try.
const NEUTRAL: [&str; 49] = [
    "accept",
    "accept-charset",
    "accept-encoding",
    "accept-language",
    "amz-sdk-request",
    "b3",
    "baggage",
    "cache-control",
    "cf-connecting-ip",
    "cf-ipcountry",
    "cf-ray",
    "cf-visitor",
    "connection",
    "content-digest",
    "content-encoding",
    "content-language",
    "content-length",
    "content-type",
    "date",
    "digest",
    "dnt",
    "expect",
    "forwarded",
    "host",
    "idempotency-key",
    "if-match",
    "if-modified-since",
    "if-none-match",
    "if-unmodified-since",
    "keep-alive",
    "origin",
    "pragma",
    "prefer",
    "priority",
    "proxy-connection",
    "referer",
    "repeatability-first-sent",
    "te",
    "traceparent",
    "tracestate",
    "trailer",
    "transfer-encoding",
    "upgrade",
    "user-agent",
    "via",
    "x-amzn-trace-id",
    "x-correlation-id",
    "x-real-ip",
    "x-request-id",
];

/// The same by how they begin.
const NEUTRAL_FAMILIES: [&str; 5] = ["sec-ch-", "sec-fetch-", "x-b3-", "x-datadog-", "x-forwarded-"];

/// Headers by which callers are told apart.
#[derive(Debug, Clone)]
pub(super) enum Credentials {
    /// These, and no others: a request without them is anybody's.
    Named(Arc<[HeaderName]>),
    /// Nobody said which.
    Guessed,
}

impl Credentials {
    /// Those that the settings name.
    ///
    /// # Errors
    /// Where one is no header.
    pub(super) fn of(names: &[String]) -> Result<Self, String> {
        let name = |name: &String| HeaderName::try_from(name).map_err(|_| format!("`{name}` is no header"));
        let names: Vec<HeaderName> = names.iter().map(name).collect::<Result<_, _>>()?;
        Ok(if names.is_empty() { Self::Guessed } else { Self::Named(names.into()) })
    }

    /// Credentials as they came. They go into the fingerprint alone, which is a hash: nothing of them is stored.
    pub(super) fn read(&self, parts: &Parts) -> Option<String> {
        match self {
            Self::Named(names) => told(&parts.headers, |name| names.iter().any(|known| known == name)),
            Self::Guessed => told(&parts.headers, |name| is_secret(name.as_str()))
                .or_else(|| told(&parts.headers, |name| !is_neutral(name.as_str()))),
        }
    }
}

/// The headers that count, in an order that is not the client's, so that none can be taken for another.
fn told(headers: &HeaderMap, counts: impl Fn(&HeaderName) -> bool) -> Option<String> {
    let mut found: Vec<&HeaderName> = headers.keys().filter(|name| counts(name)).collect();
    found.sort_unstable_by_key(|name| name.as_str());
    let mut all = String::new();
    for name in found {
        for value in headers.get_all(name).iter().map(HeaderValue::as_bytes) {
            let _ = write!(all, "{name} {}:{};", value.len(), value.escape_ascii());
        }
    }
    (!all.is_empty()).then_some(all)
}

fn is_secret(name: &str) -> bool {
    let name = name.replace('_', "-");
    !is_neutral(&name) && SECRETS.iter().any(|part| name.contains(part))
}

fn is_neutral(name: &str) -> bool {
    NEUTRAL.contains(&name) || NEUTRAL_FAMILIES.iter().any(|family| name.starts_with(family))
}

#[cfg(test)]
mod tests {
    use http::Request;

    use super::*;

    fn read(credentials: &Credentials, pairs: &[(&'static str, &'static str)]) -> Option<String> {
        let request =
            pairs.iter().fold(Request::builder(), |request, (name, value)| request.header(*name, *value));
        credentials.read(&request.body(()).expect("a request").into_parts().0)
    }

    #[test]
    fn credentials_never_run_together() {
        let one = read(&Credentials::Guessed, &[("authorization", "a"), ("cookie", "b")]);
        let other = read(&Credentials::Guessed, &[("authorization", "a;cookie 1:b")]);
        assert_ne!(one, other);
        // They are the same whatever their order.
        assert_eq!(one, read(&Credentials::Guessed, &[("cookie", "b"), ("authorization", "a")]));
    }

    #[test]
    fn what_is_called_a_secret_counts_and_else_all_that_is_not_known_to_say_nothing() {
        let guessed = |name, value| read(&Credentials::Guessed, &[(name, value)]);
        for name in
            ["authorization", "cookie", "x-api-key", "x_api_key", "x-auth-user", "x-session", "x-user", "x-a"]
        {
            assert_ne!(guessed(name, "one"), guessed(name, "two"), "{name}");
        }
        for name in ["accept", "idempotency-key", "traceparent", "x-forwarded-for", "sec-fetch-mode"] {
            assert_eq!(guessed(name, "one"), None, "{name}");
        }
        // What else changes from try to try does not count beside credentials.
        let tries =
            ["0", "1"].map(|n| read(&Credentials::Guessed, &[("authorization", "a"), ("x-tries", n)]));
        assert_eq!(tries[0], tries[1]);
    }

    #[test]
    fn where_they_are_named_no_others_count() {
        let named = Credentials::of(&["X-Caller".to_owned()]).expect("a header");
        assert_ne!(read(&named, &[("x-caller", "one")]), read(&named, &[("x-caller", "two")]));
        assert_eq!(read(&named, &[("authorization", "one")]), None);
        assert!(Credentials::of(&["a b".to_owned()]).is_err());
    }
}
