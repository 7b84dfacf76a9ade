//! Who calls, and what they may do.
//!
//! A token is 32 random bytes, so its hash needs no salt and no slow function: nobody tries 2^256. The
//! configuration has the hash alone. A caller's token is hashed and compared with every one there is, each in
//! constant time, and without leaving off at the first that fits.
//!
//! Where there are no tokens the server listens on loopback only, and whoever reaches it may do everything. A page
//! in somebody's browser reaches it too; so a request then has to name a loopback host, and none with another
//! page's `Origin` is served. A browser leaves it out of some `GET`s: those change nothing, and their answers are not
//! for that page to read.

use std::sync::Arc;

use axum::extract::{FromRef, FromRequestParts};
use http::header::{AUTHORIZATION, HOST, ORIGIN};
use http::request::Parts;
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

use crate::api::Problem;
use crate::app::App;
use crate::config::{Right, TokenSettings};

/// The name of whoever calls where nobody has to say it.
const LOCAL: &str = "local";

/// Everybody who may call.
#[derive(Debug, Default)]
pub struct Callers(Vec<(Caller, [u8; 32])>);

/// Who calls.
#[derive(Debug, Clone, PartialEq)]
pub struct Caller {
    /// The token's name, for the audit.
    pub name: Arc<str>,
    /// Whose events alone they may touch.
    pub tenant: Option<Arc<str>>,
    rights: Arc<[Right]>,
}

/// From where a request came, for the audit: an address, or a program. The listener and the command line say it.
#[derive(Debug, Clone)]
pub struct Origin(pub Arc<str>);

impl Callers {
    /// Those of the configuration. It has been checked, so a hash that is none does not occur, and fits nobody.
    pub fn new<'a>(tokens: impl IntoIterator<Item = (&'a String, &'a TokenSettings)>) -> Self {
        let caller = |(name, token): (&String, &TokenSettings)| {
            let caller = Caller {
                name: name.as_str().into(),
                tenant: token.tenant.as_deref().map(Into::into),
                rights: token.rights.as_slice().into(),
            };
            Some((caller, hash_of(&token.hash)?))
        };
        Self(tokens.into_iter().filter_map(caller).collect())
    }

    /// Who has this token.
    fn find(&self, token: &str) -> Option<Caller> {
        let hash: [u8; 32] = Sha256::digest(token.as_bytes()).into();
        let mut found = None;
        for (caller, known) in &self.0 {
            if bool::from(known.ct_eq(&hash)) {
                found = Some(caller);
            }
        }
        found.cloned()
    }
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

impl Caller {
    /// Whoever is at this machine, and may do everything.
    #[must_use]
    pub fn local(name: &str) -> Self {
        let rights = [Right::Publish, Right::Consume, Right::Read, Right::Operate];
        Self { name: name.into(), tenant: None, rights: rights.into() }
    }

    /// Whether they may do this.
    ///
    /// # Errors
    /// 403 where they may not.
    pub fn may(&self, right: Right) -> Result<(), Problem> {
        if self.rights.contains(&right) { Ok(()) } else { Err(Problem::forbidden(right)) }
    }

    /// The tenant that a request is about: the caller's own, or the one that is asked for.
    ///
    /// # Errors
    /// 403 where it is somebody else's.
    pub fn tenant<'a>(&'a self, asked: Option<&'a str>) -> Result<Option<&'a str>, Problem> {
        match (self.tenant.as_deref(), asked) {
            (Some(own), Some(asked)) if own != asked => Err(Problem::other_tenant(asked)),
            (Some(own), _) => Ok(Some(own)),
            (None, asked) => Ok(asked),
        }
    }
}

impl<S> FromRequestParts<S> for Caller
where
    Arc<App>: FromRef<S>,
    S: Sync,
{
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        // The command line calls by itself, without a network in between.
        if let Some(caller) = parts.extensions.get::<Caller>() {
            return Ok(caller.clone());
        }
        let app = Arc::<App>::from_ref(state);
        let callers = &app.live().callers;
        if callers.0.is_empty() {
            return from_here(parts).then(|| Self::local(LOCAL)).ok_or_else(Problem::not_from_here);
        }
        let bearer = parts.headers.get(AUTHORIZATION).and_then(|value| value.to_str().ok());
        let token = bearer.and_then(|value| value.split_once(' '));
        let token = token.filter(|(scheme, _)| scheme.eq_ignore_ascii_case("bearer"));
        let caller = token.and_then(|(_, token)| callers.find(token.trim()));
        let caller = caller.ok_or_else(Problem::unauthorized)?;
        // Whoever asks next, before the body is read, need not hash again.
        parts.extensions.insert(caller.clone());
        Ok(caller)
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
    let text = |name| parts.headers.get(name).map(|value| value.to_str().unwrap_or_default());
    let origin_host =
        |origin: &str| origin.split_once("://").map_or(String::new(), |(_, host)| host.to_owned());
    text(HOST).is_some_and(is_loopback) && text(ORIGIN).is_none_or(|origin| is_loopback(&origin_host(origin)))
}

#[cfg(test)]
mod tests {
    use super::*;

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
    }

    #[test]
    fn a_token_is_found_by_its_hash_alone() {
        let hash: String = Sha256::digest(b"secret").iter().map(|byte| format!("{byte:02x}")).collect();
        let token = TokenSettings {
            hash: format!("sha256:{hash}"),
            rights: vec![Right::Publish],
            tenant: Some("acme".to_owned()),
        };
        let callers = Callers::new([(&"shop".to_owned(), &token)]);
        let caller = callers.find("secret").expect("it is known");
        assert_eq!(&*caller.name, "shop");
        assert!(caller.may(Right::Publish).is_ok() && caller.may(Right::Read).is_err());
        assert_eq!(caller.tenant(None).expect("its own"), Some("acme"));
        assert!(caller.tenant(Some("other")).is_err());
        assert_eq!(callers.find("Secret"), None);
        assert_eq!(callers.find(&token.hash), None);
    }
}
