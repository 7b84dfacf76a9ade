//! Authentication and rights.
//!
//! A token is 32 random bytes, so its hash needs neither salt nor a slow function. The configuration contains only
//! the hash. A caller's token is hashed and compared with every known one in constant time, without stopping at the
//! first match.
//!
//! Without tokens the server listens on loopback only, and every client that reaches it has all rights. A page in a
//! browser reaches it too, so a request must then name a loopback host and must not have another page's `Origin`.
//! Browsers omit it from some `GET`s: those change nothing, and the page cannot read their responses.

use std::sync::Arc;
use std::time::SystemTime;

use axum::extract::{FromRef, FromRequestParts};
use http::header::{AUTHORIZATION, HOST, ORIGIN};
use http::request::Parts;
use http::uri::Authority;
use http::{HeaderMap, HeaderName, HeaderValue, Uri};
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

use crate::api::ApiProblem;
use crate::app::App;
use crate::config::TokenSettings;
use crate::listen::ConnectionPermit;

mod caller;

pub use caller::Caller;

/// The name of a caller without a token.
const LOCAL: &str = "local";

/// All known callers.
#[derive(Debug, Default)]
pub struct Callers(Vec<KnownToken>);

#[derive(Debug)]
struct KnownToken {
    caller: Caller,
    hash: [u8; 32],
    /// When it ends.
    expires: Option<SystemTime>,
}

/// Why a token is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TokenRefusal {
    /// There is no such token.
    Unknown,
    /// Its time is over.
    Expired,
}

/// The origin of a request, for the audit log: an address, or a program. Set by the listener and the command line.
#[derive(Debug, Clone)]
pub struct Origin(pub Arc<str>);

impl Callers {
    /// The tokens of a checked configuration. An invalid hash cannot occur, and would match no token.
    pub fn new<'a>(tokens: impl IntoIterator<Item = (&'a String, &'a TokenSettings)>) -> Self {
        let known = |(name, token): (&String, &TokenSettings)| {
            let hash = hash_of(&token.hash)?;
            Some(KnownToken { caller: Caller::new(name, token), hash, expires: token.expires })
        };
        Self(tokens.into_iter().filter_map(known).collect())
    }

    /// Whether there are no tokens, so that every local client has all rights.
    pub(crate) const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The caller with this token.
    fn find(&self, token: &str, now: SystemTime) -> Result<Caller, TokenRefusal> {
        self.by_hash(&token_hash(token), now)
    }

    /// The caller whose token has this hash.
    pub(crate) fn by_hash(&self, hash: &[u8; 32], now: SystemTime) -> Result<Caller, TokenRefusal> {
        let mut found = None;
        for known in &self.0 {
            if bool::from(known.hash.ct_eq(hash)) {
                found = Some(known);
            }
        }
        let known = found.ok_or(TokenRefusal::Unknown)?;
        match known.expires {
            Some(end) if end <= now => Err(TokenRefusal::Expired),
            _ => Ok(known.caller.clone()),
        }
    }
}

/// The hash by which a token is known.
pub(crate) fn token_hash(token: &str) -> [u8; 32] {
    Sha256::digest(token.as_bytes()).into()
}

/// The bytes of `sha256:…`.
fn hash_of(text: &str) -> Option<[u8; 32]> {
    let digits = text.strip_prefix("sha256:").filter(|digits| digits.len() == 64 && digits.is_ascii())?;
    let mut hash = [0; 32];
    for (at, byte) in hash.iter_mut().enumerate() {
        *byte = u8::from_str_radix(&digits[2 * at..2 * at + 2], 16).ok()?;
    }
    Some(hash)
}

impl<S> FromRequestParts<S> for Caller
where
    Arc<App>: FromRef<S>,
    S: Sync,
{
    type Rejection = ApiProblem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ApiProblem> {
        // The command line calls by itself, without a network in between.
        if let Some(caller) = parts.extensions.get::<Caller>() {
            return Ok(caller.clone());
        }
        let app = Arc::<App>::from_ref(state);
        let callers = &app.live().callers;
        if callers.0.is_empty() {
            let local = from_here(parts).then(|| Self::local(LOCAL));
            return local.inspect(|_| signed_in(parts)).ok_or_else(ApiProblem::not_from_here);
        }
        let bearer = only(&parts.headers, &AUTHORIZATION).and_then(|value| value.to_str().ok());
        let token = bearer.and_then(|value| value.split_once(' '));
        let token = token.filter(|(scheme, _)| scheme.eq_ignore_ascii_case("bearer"));
        let caller = token
            .map_or(Err(TokenRefusal::Unknown), |(_, token)| callers.find(token.trim(), SystemTime::now()));
        let caller = caller.map_err(|refusal| {
            // Without a token it is no attempt to guess one.
            if let (Some(_), Some(Origin(from))) = (token, parts.extensions.get()) {
                app.failed_sign_ins.count(from);
            }
            match refusal {
                TokenRefusal::Unknown => ApiProblem::unauthorized(),
                TokenRefusal::Expired => ApiProblem::expired_token(),
            }
        })?;
        signed_in(parts);
        // The next extractor, before the body is read, need not hash again.
        parts.extensions.insert(caller.clone());
        Ok(caller)
    }
}

/// Notes that the connection's caller is known, so that others make room first.
pub(crate) fn signed_in(parts: &Parts) {
    if let Some(connection) = parts.extensions.get::<ConnectionPermit>() {
        connection.is_of_a_known_caller();
    }
}

/// Whether a request names this machine, and was not sent by a page of another one.
fn from_here(parts: &Parts) -> bool {
    let is_loopback = |host: &str| {
        let host = host
            .strip_prefix('[')
            .and_then(|host| host.split(']').next())
            .unwrap_or_else(|| host.rsplit_once(':').map_or(host, |(host, _)| host));
        host.eq_ignore_ascii_case("localhost")
            || host.parse::<std::net::IpAddr>().is_ok_and(|address| address.is_loopback())
    };
    let origin = parts.headers.get(ORIGIN).map(|value| value.to_str().unwrap_or_default());
    let origin_host =
        |origin: &str| origin.split_once("://").map_or(String::new(), |(_, host)| host.to_owned());
    named_host(&parts.uri, &parts.headers).is_some_and(is_loopback)
        && origin.is_none_or(|origin| is_loopback(&origin_host(origin)))
}

/// The one host that a request names: the authority of an absolute target wins (RFC 9112, 3.2.2). `None` where the
/// header is missing, or there are several and another reader may go by another one.
pub(crate) fn named_host<'a>(uri: &'a Uri, headers: &'a HeaderMap) -> Option<&'a str> {
    let host = only(headers, &HOST)?.to_str().ok()?;
    Some(uri.authority().map_or(host, Authority::as_str))
}

/// The value of a header that is there once.
fn only<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Option<&'a HeaderValue> {
    let mut all = headers.get_all(name).iter();
    all.next().filter(|_| all.next().is_none())
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, UNIX_EPOCH};

    use super::*;
    use crate::config::Right;

    #[test]
    fn only_requests_that_name_this_machine_are_from_here() {
        let parts = |host: &str, origin: Option<&str>| {
            let mut request = http::Request::get("/").header("host", host);
            if let Some(origin) = origin {
                request = request.header("origin", origin);
            }
            request.body(()).expect("a request").into_parts().0
        };
        for host in ["localhost", "localhost:7070", "127.0.0.1:7070", "[::1]:7070", "127.9.9.9"] {
            assert!(from_here(&parts(host, None)), "{host}");
            assert!(from_here(&parts(host, Some("http://localhost:1"))), "{host}");
            assert!(!from_here(&parts(host, Some("https://evil.example"))), "{host}");
            assert!(!from_here(&parts(host, Some("null"))), "{host}");
        }
        for host in ["evil.example", "127.0.0.1.evil.example:7070", "10.0.0.1", ""] {
            assert!(!from_here(&parts(host, None)), "{host}");
        }
        // Two hosts, and a target that names another: which of them counts is for each reader to choose.
        let two = http::Request::get("/").header("host", "localhost").header("host", "evil.example");
        assert!(!from_here(&two.body(()).expect("a request").into_parts().0));
        let target = http::Request::get("http://evil.example/").header("host", "localhost");
        assert!(!from_here(&target.body(()).expect("a request").into_parts().0));
    }

    #[test]
    fn a_header_that_is_there_twice_names_no_caller() {
        let mut headers = HeaderMap::new();
        assert_eq!(only(&headers, &AUTHORIZATION), None);
        headers.append(AUTHORIZATION, HeaderValue::from_static("Bearer a"));
        assert_eq!(only(&headers, &AUTHORIZATION), Some(&HeaderValue::from_static("Bearer a")));
        headers.append(AUTHORIZATION, HeaderValue::from_static("Bearer b"));
        assert_eq!(only(&headers, &AUTHORIZATION), None);
    }

    fn token(text: &str) -> TokenSettings {
        let hash: String = Sha256::digest(text.as_bytes()).iter().map(|byte| format!("{byte:02x}")).collect();
        let hash = format!("sha256:{hash}");
        TokenSettings { hash, rights: vec![Right::Publish], tenant: None, queues: None, expires: None }
    }

    #[test]
    fn a_token_is_found_by_its_hash_alone() {
        let token = TokenSettings { tenant: Some("acme".to_owned()), ..token("secret") };
        let callers = Callers::new([(&"shop".to_owned(), &token)]);
        let caller = callers.find("secret", UNIX_EPOCH).expect("it is known");
        assert_eq!(&*caller.name, "shop");
        assert!(caller.may(Right::Publish).is_ok() && caller.may(Right::Read).is_err());
        assert_eq!(caller.tenant(None).expect("its own"), Some("acme"));
        assert!(caller.tenant(Some("other")).is_err());
        assert_eq!(callers.find("Secret", UNIX_EPOCH), Err(TokenRefusal::Unknown));
        assert_eq!(callers.find(&token.hash, UNIX_EPOCH), Err(TokenRefusal::Unknown));
    }

    #[test]
    fn a_token_ends_at_its_time() {
        let end = UNIX_EPOCH + Duration::from_secs(100);
        let token = TokenSettings { expires: Some(end), ..token("secret") };
        let callers = Callers::new([(&"shop".to_owned(), &token)]);
        assert!(callers.find("secret", end - Duration::from_secs(1)).is_ok());
        assert_eq!(callers.find("secret", end), Err(TokenRefusal::Expired));
    }
}
