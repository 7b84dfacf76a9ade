//! The forwarding headers: `Forwarded` (RFC 7239), `X-Forwarded-*`, `Via` and `Host`.
//!
//! A client's own forwarding headers are removed, whatever their spelling, unless the connection comes from a trusted
//! proxy: an upstream that logs, limits or admits by address would believe them. The same holds for the headers that
//! name tenants and principals, on every route, because the upstream believes them on all.

use std::net::IpAddr;

use http::header::{FORWARDED, HOST, VIA};
use http::{HeaderMap, HeaderName, HeaderValue};

use super::trailers;
use crate::config::HostWord;
use crate::push::network::Network;

const FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
const THE_HOST: HeaderName = HeaderName::from_static("x-forwarded-host");
const PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");

/// Headers that only a proxy may set, beside all that begin with `x-forwarded-`.
const CLAIMS: [&str; 4] = ["forwarded", "x-real-ip", "x-client-ip", "true-client-ip"];

/// Sets the forwarding headers of a request.
#[derive(Debug)]
pub(super) struct ForwardedHeaders {
    trusted: Vec<Network>,
    /// Headers by which proxies in front name tenants and principals, with dashes.
    names: Vec<String>,
    host: HostWord,
    upstream: HeaderValue,
    /// This gateway's name in `Via`, unique so that a loop is recognised.
    via: String,
}

impl ForwardedHeaders {
    pub(super) fn new(trusted: Vec<Network>, host: HostWord, upstream: HeaderValue, via: String) -> Self {
        Self { trusted, names: Vec::new(), host, upstream, via }
    }

    /// With further headers that only trusted proxies may send.
    #[must_use]
    pub(super) fn naming<'a>(mut self, headers: impl IntoIterator<Item = &'a str>) -> Self {
        self.names = headers.into_iter().map(dashed).collect();
        self
    }

    /// Whether this peer's forwarding headers are accepted.
    pub(super) fn trusts(&self, peer: Option<IpAddr>) -> bool {
        peer.is_some_and(|peer| self.trusted.iter().any(|network| network.contains(peer)))
    }

    /// The client behind a connection: its own address, or the last one in `X-Forwarded-For` that is no trusted
    /// proxy's.
    pub(super) fn client(&self, headers: &HeaderMap, peer: IpAddr) -> Option<IpAddr> {
        if !self.trusts(Some(peer)) {
            return Some(peer);
        }
        let values = headers.get_all(FOR).into_iter().filter_map(|value| value.to_str().ok());
        let named: Vec<&str> = values.flat_map(|value| value.split(',')).map(str::trim).collect();
        let mut hops = named.iter().rev().map_while(|hop| address(hop));
        hops.find(|hop| !self.trusts(Some(*hop)))
    }

    /// Whether the request has been here before: the upstream's address leads back to this gateway.
    pub(super) fn is_loop(&self, headers: &HeaderMap) -> bool {
        // In bytes: a value that is not text may hold the name all the same.
        let mut values = headers.get_all(VIA).into_iter().map(HeaderValue::as_bytes);
        values.any(|value| value.windows(self.via.len()).any(|name| name == self.via.as_bytes()))
    }

    /// Sets the headers for a request from `peer`.
    pub(super) fn tell(&self, headers: &mut HeaderMap, peer: Option<IpAddr>) {
        if !self.trusts(peer) {
            self.forget(headers);
        }
        // Never as trailers, from trusted proxies or not.
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

    /// Removes forwarding headers that no proxy set.
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

/// An address of `X-Forwarded-For`, with a port or without.
fn address(hop: &str) -> Option<IpAddr> {
    let with_port = || hop.parse::<std::net::SocketAddr>().map(|address| address.ip());
    let found = hop.parse().or_else(|_| with_port()).or_else(|_| hop.trim_matches(['[', ']']).parse());
    found.ok().map(|address| address.to_canonical())
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
    // Quoted because of its port; a host that contains quotes is invalid.
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

    fn teller(host: HostWord) -> ForwardedHeaders {
        let trusted = vec!["10.0.0.0/8".parse().expect("a network")];
        ForwardedHeaders::new(trusted, host, HeaderValue::from_static("api:8080"), "redrive-7".to_owned())
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
    fn a_client_is_its_connection_or_what_a_trusted_proxy_says() {
        let teller = teller(HostWord::Client);
        for (peer, told, client) in [
            ("192.0.2.7", "1.2.3.4", Some("192.0.2.7")),
            ("10.1.1.1", "1.2.3.4", Some("1.2.3.4")),
            ("10.1.1.1", "9.9.9.9, 1.2.3.4:81, 10.2.2.2", Some("1.2.3.4")),
            ("10.1.1.1", "9.9.9.9, [2001:db8::1]:81", Some("2001:db8::1")),
            ("10.1.1.1", "9.9.9.9, unknown", None),
            ("10.1.1.1", "", None),
        ] {
            let mut headers = HeaderMap::new();
            headers.insert(FOR, HeaderValue::from_str(told).expect("a value"));
            let found = teller.client(&headers, peer.parse().expect("an address"));
            assert_eq!(found.map(|address| address.to_string()).as_deref(), client, "{peer} {told}");
        }
    }

    #[test]
    fn a_request_that_comes_round_again_is_known() {
        let teller = teller(HostWord::Client);
        let mut headers = asked(&[("via", "1.0 fred, 1.1 redrive-8")]);
        assert!(!teller.is_loop(&headers));
        teller.tell(&mut headers, None);
        assert!(teller.is_loop(&headers));
        let value = HeaderValue::from_bytes(b"1.0 fr\xa0d, 1.1 redrive-7").expect("a value");
        assert!(teller.is_loop(&HeaderMap::from_iter([(VIA, value)])), "whatever else the value holds");
    }
}
