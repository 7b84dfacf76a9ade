//! Who asked, told to the upstream: `Forwarded` (RFC 7239), `X-Forwarded-*`, `Via` and `Host`.
//!
//! What a client says of itself there is taken away, whatever its spelling, unless the connection comes from one of
//! the proxies that are trusted: an upstream that logs, limits or lets in by address would believe it. So is what only
//! those proxies may say of tenants and principals, on every route: an upstream believes it on all of them.

use std::net::IpAddr;

use http::header::{FORWARDED, HOST, VIA};
use http::{HeaderMap, HeaderName, HeaderValue};

use super::trailers;
use crate::config::HostWord;
use crate::push::address::Network;

const FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
const THE_HOST: HeaderName = HeaderName::from_static("x-forwarded-host");
const PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");

/// What only a proxy in front may say, beside all that begins with `x-forwarded-`.
const CLAIMS: [&str; 4] = ["forwarded", "x-real-ip", "x-client-ip", "true-client-ip"];

/// What the upstream is told of a request's way.
#[derive(Debug)]
pub(super) struct Teller {
    trusted: Vec<Network>,
    /// Headers by which proxies in front name tenants and principals, with dashes.
    names: Vec<String>,
    host: HostWord,
    upstream: HeaderValue,
    /// This gateway's name in `Via`: its own, so that a request that comes round again is known.
    via: String,
}

impl Teller {
    pub(super) fn new(trusted: Vec<Network>, host: HostWord, upstream: HeaderValue, via: String) -> Self {
        Self { trusted, names: Vec::new(), host, upstream, via }
    }

    /// With headers that nobody may send but those who are trusted.
    #[must_use]
    pub(super) fn naming<'a>(mut self, headers: impl IntoIterator<Item = &'a str>) -> Self {
        self.names = headers.into_iter().map(dashed).collect();
        self
    }

    /// Whether what this peer says of others is believed.
    pub(super) fn trusts(&self, peer: Option<IpAddr>) -> bool {
        peer.is_some_and(|peer| self.trusted.iter().any(|network| network.contains(peer)))
    }

    /// Whether the request has been here before: the upstream's address leads back to this gateway.
    pub(super) fn is_loop(&self, headers: &HeaderMap) -> bool {
        let values = headers.get_all(VIA).into_iter().filter_map(|value| value.to_str().ok());
        values.flat_map(|value| value.split(',')).any(|hop| hop.trim().ends_with(self.via.as_str()))
    }

    /// Tells of a request that came from `peer`.
    pub(super) fn tell(&self, headers: &mut HeaderMap, peer: Option<IpAddr>) {
        if !self.trusts(peer) {
            self.forget(headers);
        }
        // Nobody in front says it behind a body, trusted or not.
        trailers::sift(headers, |name| self.is_claim(name));
        let host = headers.get(HOST).cloned();
        if let Some(peer) = peer {
            append(headers, FOR, &peer.to_string());
            append(headers, FORWARDED, &element(peer, host.as_ref()));
        }
        if let Some(host) = &host {
            headers.entry(THE_HOST).or_insert_with(|| host.clone());
        }
        headers.entry(PROTO).or_insert(HeaderValue::from_static("http"));
        append(headers, VIA, &format!("1.1 {}", self.via));
        if host.is_none() || self.host == HostWord::Upstream {
            headers.insert(HOST, self.upstream.clone());
        }
    }

    /// Takes away what nobody in front could have said.
    fn forget(&self, headers: &mut HeaderMap) {
        let claims: Vec<HeaderName> =
            headers.keys().filter(|name| self.is_claim(name.as_str())).cloned().collect();
        for name in claims {
            headers.remove(name);
        }
    }

    /// Whether only a proxy in front may say it.
    fn is_claim(&self, name: &str) -> bool {
        let name = dashed(name);
        name.starts_with("x-forwarded-") || CLAIMS.contains(&name.as_str()) || self.names.contains(&name)
    }
}

/// Underscores count as dashes: many an upstream reads them so.
fn dashed(name: &str) -> String {
    name.to_ascii_lowercase().replace('_', "-")
}

/// One hop, as `Forwarded` writes it.
fn element(peer: IpAddr, host: Option<&HeaderValue>) -> String {
    let peer = match peer {
        IpAddr::V4(peer) => peer.to_string(),
        IpAddr::V6(peer) => format!("\"[{peer}]\""),
    };
    // In quotation marks, because of its port; a host with marks of its own is none.
    let host = host.and_then(|host| host.to_str().ok()).filter(|host| !host.contains(['"', '\\']));
    let host = host.map(|host| format!(";host=\"{host}\"")).unwrap_or_default();
    format!("for={peer}{host};proto=http")
}

/// At the end of a list header, in one line: many a reader looks at the first line alone.
fn append(headers: &mut HeaderMap, name: HeaderName, value: &str) {
    let before = headers.get_all(&name).into_iter().map(HeaderValue::as_bytes);
    let list = before.chain([value.as_bytes()]).collect::<Vec<_>>().join(&b", "[..]);
    if let Ok(list) = HeaderValue::from_bytes(&list) {
        headers.insert(name, list);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn teller(host: HostWord) -> Teller {
        let trusted = vec!["10.0.0.0/8".parse().expect("a network")];
        Teller::new(trusted, host, HeaderValue::from_static("api:8080"), "redrive-7".to_owned())
    }

    fn asked(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        pairs.iter().fold(HeaderMap::new(), |mut headers, (name, value)| {
            headers.append(HeaderName::from_static(name), HeaderValue::from_static(value));
            headers
        })
    }

    fn all<'a>(headers: &'a HeaderMap, name: &str) -> Vec<&'a str> {
        headers.get_all(name).into_iter().filter_map(|value| value.to_str().ok()).collect()
    }

    const CLAIMED: [(&str, &str); 6] = [
        ("host", "shop.example:81"),
        ("x-forwarded-for", "1.2.3.4"),
        ("x_forwarded_for", "1.2.3.4"),
        ("x-forwarded-proto", "https"),
        ("forwarded", "for=1.2.3.4"),
        ("x-real-ip", "1.2.3.4"),
    ];

    #[test]
    fn what_a_stranger_says_of_itself_is_not_passed_on() {
        let mut headers = asked(&CLAIMED);
        teller(HostWord::Client).tell(&mut headers, "192.0.2.7".parse().ok());
        assert_eq!(all(&headers, "x-forwarded-for"), ["192.0.2.7"]);
        assert_eq!(all(&headers, "forwarded"), ["for=192.0.2.7;host=\"shop.example:81\";proto=http"]);
        assert_eq!(all(&headers, "x-forwarded-host"), ["shop.example:81"]);
        assert_eq!(all(&headers, "x-forwarded-proto"), ["http"]);
        assert_eq!(all(&headers, "host"), ["shop.example:81"]);
        assert_eq!(all(&headers, "via"), ["1.1 redrive-7"]);
        assert!(!headers.contains_key("x_forwarded_for") && !headers.contains_key("x-real-ip"));
    }

    #[test]
    fn what_a_trusted_proxy_says_is_passed_on_and_added_to() {
        let mut headers = asked(&CLAIMED);
        teller(HostWord::Client).tell(&mut headers, "10.1.1.1".parse().ok());
        assert_eq!(all(&headers, "x-forwarded-for"), ["1.2.3.4, 10.1.1.1"]);
        assert!(all(&headers, "forwarded")[0].starts_with("for=1.2.3.4, for=10.1.1.1;"), "{headers:?}");
        assert_eq!(all(&headers, "x-forwarded-proto"), ["https"]);
        assert_eq!(all(&headers, "x-real-ip"), ["1.2.3.4"]);
    }

    #[test]
    fn tenants_and_principals_are_named_by_those_who_are_trusted_alone() {
        let teller = teller(HostWord::Client).naming(["X_Tenant", "X-User"]);
        let claimed = [("x-tenant", "a"), ("x-user", "b"), ("x_user", "c"), ("x-username", "d")];
        let mut headers = asked(&claimed);
        teller.tell(&mut headers, "192.0.2.7".parse().ok());
        let left: Vec<_> = claimed.iter().filter(|(name, _)| headers.contains_key(*name)).collect();
        assert_eq!(left, [&("x-username", "d")]);
        let mut headers = asked(&claimed);
        teller.tell(&mut headers, "10.1.1.1".parse().ok());
        assert!(claimed.iter().all(|(name, value)| all(&headers, name) == [*value]), "{headers:?}");
    }

    #[test]
    fn the_host_is_the_clients_or_the_upstreams() {
        for (word, given, told) in [
            (HostWord::Client, Some("shop.example"), "shop.example"),
            (HostWord::Client, None, "api:8080"),
            (HostWord::Upstream, Some("shop.example"), "api:8080"),
        ] {
            let mut headers = HeaderMap::new();
            headers.extend(given.map(|host| (HOST, HeaderValue::from_static(host))));
            teller(word).tell(&mut headers, "fd00::1".parse().ok());
            assert_eq!(all(&headers, "host"), [told]);
            assert!(all(&headers, "forwarded")[0].starts_with("for=\"[fd00::1]\""), "{headers:?}");
        }
    }

    #[test]
    fn a_request_that_comes_round_again_is_known() {
        let teller = teller(HostWord::Client);
        let mut headers = asked(&[("via", "1.0 fred, 1.1 redrive-8")]);
        assert!(!teller.is_loop(&headers));
        teller.tell(&mut headers, None);
        assert!(teller.is_loop(&headers));
    }
}
