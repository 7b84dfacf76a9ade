//! What distinguishes callers if no proxy names them: the headers that may identify one.
//!
//! A replay does not ask the API, so every caller that counts as the same gets the reply. Only the API knows which
//! headers identify callers: a token, an account beside it (`Stripe-Account`), a tenant. Unless the settings name them,
//! every header counts but those on a list of neutral ones. A header too many costs a refused repetition. One too few
//! would give one caller's reply to another.

use std::fmt::Write as _;
use std::sync::Arc;

use http::request::Parts;
use http::{HeaderMap, HeaderName, HeaderValue};

use crate::config::{CredentialsSettings, CredentialsWord};

/// Headers that do not identify the caller, are covered otherwise, or change with each attempt.
const NEUTRAL: &[&str] = &[
    "accept",
    "accept-charset",
    "accept-encoding",
    "accept-language",
    "amz-sdk-invocation-id",
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
    "grpc-timeout",
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
    "sentry-trace",
    "te",
    "traceparent",
    "tracestate",
    "trailer",
    "transfer-encoding",
    "upgrade",
    "user-agent",
    "via",
    "x-amzn-trace-id",
    "x-cloud-trace-context",
    "x-correlation-id",
    "x-forwarded-for",
    "x-forwarded-host",
    "x-forwarded-port",
    "x-forwarded-prefix",
    "x-forwarded-proto",
    "x-forwarded-scheme",
    "x-forwarded-server",
    "x-forwarded-ssl",
    "x-real-ip",
    "x-request-id",
];

/// The same, by prefix.
const NEUTRAL_FAMILIES: &[&str] = &["redrive-", "sec-ch-", "sec-fetch-", "x-b3-", "x-datadog-"];

/// The same, by what counts attempts: at the end of a name, and anywhere in it.
const NEUTRAL_END: &str = "-retry-count";
const NEUTRAL_PART: &str = "-attempt";

/// Headers that distinguish callers.
#[derive(Debug, Clone)]
pub(super) enum Credentials {
    /// Exactly these: all requests without them count as one caller.
    Named(Arc<[HeaderName]>),
    /// Not configured.
    Guessed,
}

impl Credentials {
    /// The configured headers; without any, a guess.
    ///
    /// # Errors
    /// If one is invalid.
    pub(super) fn of(settings: Option<&CredentialsSettings>) -> Result<Self, String> {
        let name = |name: &String| {
            HeaderName::try_from(name).map_err(|_| format!("`{name}` is not a valid header name"))
        };
        match settings {
            None | Some(CredentialsSettings::Word(CredentialsWord::Guess)) => Ok(Self::Guessed),
            Some(CredentialsSettings::Headers(names)) => {
                Ok(Self::Named(names.iter().map(name).collect::<Result<_, _>>()?))
            }
        }
    }

    /// Credentials as they came. They go into the fingerprint alone, which is a hash: nothing of them is stored.
    pub(super) fn read(&self, parts: &Parts) -> Option<String> {
        match self {
            Self::Named(names) => told(&parts.headers, |name| names.iter().any(|known| known == name)),
            Self::Guessed => told(&parts.headers, |name| !is_neutral(name.as_str())),
        }
    }
}

/// The headers that count, in a canonical order, so that none can be taken for another.
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

/// As it is spelt: `x_request_id` may be another thing to the API.
fn is_neutral(name: &str) -> bool {
    NEUTRAL.contains(&name)
        || NEUTRAL_FAMILIES.iter().any(|family| name.starts_with(family))
        || name.ends_with(NEUTRAL_END)
        || name.contains(NEUTRAL_PART)
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
        // They are the same in any order.
        assert_eq!(one, read(&Credentials::Guessed, &[("cookie", "b"), ("authorization", "a")]));
    }

    #[test]
    fn every_header_counts_that_is_not_neutral_also_beside_a_token() {
        let guessed = |name, value| read(&Credentials::Guessed, &[("authorization", "a"), (name, value)]);
        let identifying =
            "host cookie x-api-key x_api_key x-session x-user stripe-account x-tries x-forwarded-user";
        for name in identifying.split(' ') {
            assert_ne!(guessed(name, "one"), guessed(name, "two"), "{name}");
            assert_ne!(
                guessed(name, "one"),
                read(&Credentials::Guessed, &[("authorization", "a")]),
                "{name}"
            );
        }
        for name in [
            "accept",
            "idempotency-key",
            "traceparent",
            "x-forwarded-for",
            "sec-fetch-mode",
            "redrive-attempt",
            "x-stainless-retry-count",
            "x-attempt-number",
        ] {
            assert_eq!(guessed(name, "one"), guessed(name, "two"), "{name}");
        }
    }

    #[test]
    fn where_they_are_named_no_others_count() {
        let named = |name: &str| Credentials::of(Some(&CredentialsSettings::Headers(vec![name.to_owned()])));
        let known = named("X-Caller").expect("a header");
        assert_ne!(read(&known, &[("x-caller", "one")]), read(&known, &[("x-caller", "two")]));
        assert_eq!(read(&known, &[("authorization", "one")]), None);
        assert!(named("a b").is_err());
    }
}
