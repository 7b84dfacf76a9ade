//! Headers that belong to one connection and not to the message (RFC 9110, 7.6.1), in both directions.
//!
//! Everything is forwarded except the headers that the rules or the sender's own `Connection` assign to the
//! connection. The message is framed anew, so the original framing is never forwarded: two readers that disagree on
//! the length of a body allow request smuggling.

use http::header::{CONNECTION, HOST, TE, TRAILER, TRANSFER_ENCODING, UPGRADE};
use http::{HeaderMap, HeaderName, HeaderValue};

use super::trailers;
use super::upstream_error::UpstreamError;

/// The connection's by themselves.
const OF_THE_CONNECTION: [HeaderName; 9] = [
    CONNECTION,
    HeaderName::from_static("http2-settings"),
    HeaderName::from_static("keep-alive"),
    HeaderName::from_static("proxy-connection"),
    http::header::PROXY_AUTHENTICATE,
    http::header::PROXY_AUTHORIZATION,
    TE,
    TRANSFER_ENCODING,
    UPGRADE,
];

/// The protocols that a connection may change to, in lower case.
#[derive(Debug, Clone)]
pub(super) struct Upgrades(Vec<String>);

impl Upgrades {
    /// The configured protocols.
    ///
    /// # Errors
    /// If one is not a protocol, or is HTTP.
    pub(super) fn of(names: &[String]) -> Result<Self, String> {
        let name = |name: &String| {
            let lower = name.to_ascii_lowercase();
            // A token, with a version or without (RFC 9110, 7.8).
            if lower.is_empty()
                || !lower.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-._/".contains(&byte))
            {
                return Err(format!("`{name}` is not a protocol, such as \"websocket\""));
            }
            if is_http(&lower) {
                return Err(format!(
                    "`{name}` would carry HTTP past every route; no version of HTTP can be listed"
                ));
            }
            Ok(lower)
        };
        names.iter().map(name).collect::<Result<_, _>>().map(Self)
    }

    /// The one protocol that a message asks for, if it may.
    fn allowed(&self, headers: &HeaderMap) -> Option<&str> {
        let mut lines = headers.get_all(UPGRADE).iter();
        let (line, None) = (lines.next()?.to_str().ok()?, lines.next()) else { return None };
        let asked = line.trim_matches([' ', '\t']);
        self.0.iter().find(|known| known.eq_ignore_ascii_case(asked)).map(String::as_str)
    }
}

/// Checks the protocols that a connection may change to.
///
/// # Errors
/// With the first that may not.
pub fn check_upgrades(names: &[String]) -> Result<(), String> {
    Upgrades::of(names).map(drop)
}

/// Whether a protocol is HTTP, or carries it: `HTTP/2.0`, `h2c`, `h3`, `TLS/1.0` (RFC 2817).
fn is_http(protocol: &str) -> bool {
    let name = protocol.split('/').next().unwrap_or_default();
    name.starts_with("http") || name.starts_with("h2") || name.starts_with("h3") || name.starts_with("tls")
}

/// A request's wishes for its connection.
#[derive(Debug, Clone, PartialEq, Default)]
pub(super) struct ConnectionOptions {
    /// Upgrade to another protocol, one of those that may be.
    pub(super) upgrade: Option<String>,
    /// Trailers are understood.
    trailers: bool,
}

/// Refuses headers of the connection that are not ASCII: another reader may take the rest of such a value for one
/// that the gateway would not have let through.
///
/// # Errors
/// If there is one.
pub(super) fn check(headers: &HeaderMap) -> Result<(), UpstreamError> {
    let is_ascii = |name: HeaderName| headers.get_all(name).iter().all(|value| value.to_str().is_ok());
    let mut names = OF_THE_CONNECTION.into_iter().chain([TRAILER]);
    if names.all(is_ascii) { Ok(()) } else { Err(UpstreamError::Ambiguous) }
}

/// Removes the connection headers and returns the wishes among them.
pub(super) fn strip(headers: &mut HeaderMap, upgrades: &Upgrades) -> ConnectionOptions {
    let named: Vec<String> = tokens(headers, &CONNECTION).collect();
    let upgrade = named.iter().any(|name| name == "upgrade").then(|| upgrades.allowed(headers)).flatten();
    let wishes = ConnectionOptions {
        upgrade: upgrade.map(str::to_owned),
        trailers: tokens(headers, &TE).any(|coding| coding == "trailers"),
    };
    // `Host` is never the connection's: without it the API would see the gateway's upstream for a host.
    for name in named.iter().filter(|name| *name != HOST.as_str()) {
        headers.remove(name.as_str());
    }
    for name in OF_THE_CONNECTION {
        headers.remove(name);
    }
    trailers::sift(headers, |name| named.iter().any(|other| other == name));
    wishes
}

impl ConnectionOptions {
    /// Says them again, for the next connection: in the gateway's own words, never in the sender's bytes.
    pub(super) fn repeat(&self, headers: &mut HeaderMap) {
        if let Some(protocol) = self.upgrade.as_deref().and_then(|name| HeaderValue::try_from(name).ok()) {
            headers.append(CONNECTION, HeaderValue::from_static("upgrade"));
            headers.insert(UPGRADE, protocol);
        }
        if self.trailers {
            headers.append(CONNECTION, HeaderValue::from_static("te"));
            headers.insert(TE, HeaderValue::from_static("trailers"));
        }
    }
}

/// The tokens of a list header, in lower case and without parameters.
pub(super) fn tokens<'a>(headers: &'a HeaderMap, name: &HeaderName) -> impl Iterator<Item = String> + 'a {
    let values = headers.get_all(name).into_iter().filter_map(|value| value.to_str().ok());
    values.flat_map(|value| value.split(',')).filter_map(|word| {
        let word = word.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
        (!word.is_empty()).then_some(word)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        let pair = |(name, value): &(&'static str, &'static str)| {
            (HeaderName::from_static(name), HeaderValue::from_static(value))
        };
        pairs.iter().map(pair).fold(HeaderMap::new(), |mut headers, (name, value)| {
            headers.append(name, value);
            headers
        })
    }

    fn websocket() -> Upgrades {
        Upgrades::of(&["websocket".to_owned()]).expect("a protocol")
    }

    #[test]
    fn what_is_the_connections_stays_here() {
        let mut asked = headers(&[
            ("connection", "close, X-Mine"),
            ("connection", "x-other"),
            ("x-mine", "1"),
            ("x-other", "2"),
            ("keep-alive", "timeout=5"),
            ("proxy-connection", "keep-alive"),
            ("proxy-authorization", "Basic abc"),
            ("te", "gzip"),
            ("transfer-encoding", "chunked"),
            ("upgrade", "websocket"),
            ("trailer", "x-mine, x-sum, te"),
            ("x-end", "3"),
        ]);
        // No upgrade was requested: `Connection` does not name it.
        assert_eq!(strip(&mut asked, &websocket()), ConnectionOptions::default());
        assert_eq!(asked, headers(&[("trailer", "x-sum"), ("x-end", "3")]));
    }

    #[test]
    fn wishes_are_said_again_for_the_next_connection() {
        let mut asked = headers(&[
            ("connection", "keep-alive, Upgrade"),
            ("upgrade", "websocket"),
            ("te", "gzip;q=0.5, trailers"),
        ]);
        strip(&mut asked, &websocket()).repeat(&mut asked);
        let repeated = [("connection", "upgrade"), ("upgrade", "websocket")];
        let repeated = [&repeated[..], &[("connection", "te"), ("te", "trailers")]].concat();
        assert_eq!(asked, headers(&repeated));
    }

    #[test]
    fn only_a_protocol_of_the_list_is_passed_on_and_in_its_own_spelling() {
        for (asked, passed) in [
            ("WebSocket", Some("websocket")),
            ("websocket\t", Some("websocket")),
            ("h2c", None),
            ("websocket, h2c", None),
            ("websocket;h2c", None),
            ("chat", None),
            ("", None),
        ] {
            let mut asked_for = headers(&[("connection", "upgrade"), ("upgrade", asked)]);
            let wishes = strip(&mut asked_for, &websocket());
            assert_eq!(wishes.upgrade.as_deref(), passed, "{asked}");
        }
        let mut twice = headers(&[("connection", "upgrade"), ("upgrade", "websocket"), ("upgrade", "h2c")]);
        assert_eq!(strip(&mut twice, &websocket()).upgrade, None);
    }

    #[test]
    fn no_version_of_http_can_be_configured() {
        for name in ["h2c", "H2C", "HTTP/2.0", "h3", "TLS/1.0", "", "web socket", "h2c\u{a0}"] {
            assert!(Upgrades::of(&[name.to_owned()]).is_err(), "{name}");
        }
        assert!(Upgrades::of(&["websocket".to_owned(), "chat/2".to_owned()]).is_ok());
    }

    #[test]
    fn what_is_not_ascii_is_refused_in_every_header_of_the_connection() {
        for name in OF_THE_CONNECTION.into_iter().chain([TRAILER]) {
            let mut asked = HeaderMap::new();
            asked.insert(&name, HeaderValue::from_static("websocket"));
            assert_eq!(check(&asked), Ok(()), "{name}");
            asked.append(&name, HeaderValue::from_bytes(b"h2c\xa0").expect("a value"));
            assert_eq!(check(&asked), Err(UpstreamError::Ambiguous), "{name}");
        }
    }
}
