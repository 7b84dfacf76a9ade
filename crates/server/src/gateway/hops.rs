//! Headers that belong to one connection and not to the message (RFC 9110, 7.6.1), in both directions.
//!
//! What is passed on is what neither the rules nor the sender's own `Connection` name as the connection's. A message
//! is framed anew on the other side, so how its body was delimited here is never passed on: that two readers count
//! the bytes of a body differently is how requests are smuggled.

use http::header::{CONNECTION, TE, TRANSFER_ENCODING, UPGRADE};
use http::{HeaderMap, HeaderName, HeaderValue};

use super::trailers;

/// The connection's by themselves.
const OF_THE_CONNECTION: [HeaderName; 8] = [
    CONNECTION,
    HeaderName::from_static("keep-alive"),
    HeaderName::from_static("proxy-connection"),
    http::header::PROXY_AUTHENTICATE,
    http::header::PROXY_AUTHORIZATION,
    TE,
    TRANSFER_ENCODING,
    UPGRADE,
];

/// The protocol that only looks like another connection: over it the same API is reached past every route here.
const HTTP2: &str = "h2c";

/// What a request asks of the connection, for itself.
#[derive(Debug, Clone, PartialEq, Default)]
pub(super) struct Wishes {
    /// To go on with another protocol.
    pub(super) upgrade: Option<HeaderValue>,
    /// Trailers are understood.
    trailers: bool,
}

/// Takes away what is the connection's, and says what was wished for with it.
pub(super) fn strip(headers: &mut HeaderMap) -> Wishes {
    let named: Vec<String> = tokens(headers, &CONNECTION).collect();
    let upgrade = named.iter().any(|name| name == "upgrade").then(|| headers.get(UPGRADE).cloned()).flatten();
    let wishes = Wishes {
        upgrade: upgrade.filter(|_| !tokens(headers, &UPGRADE).any(|protocol| protocol == HTTP2)),
        trailers: tokens(headers, &TE).any(|coding| coding == "trailers"),
    };
    for name in named.iter().filter_map(|name| HeaderName::try_from(name.as_str()).ok()) {
        headers.remove(name);
    }
    for name in OF_THE_CONNECTION {
        headers.remove(name);
    }
    trailers::sift(headers, |name| named.iter().any(|other| other == name));
    wishes
}

impl Wishes {
    /// Says them again, for the next connection.
    pub(super) fn repeat(&self, headers: &mut HeaderMap) {
        if let Some(protocol) = &self.upgrade {
            headers.append(CONNECTION, HeaderValue::from_static("upgrade"));
            headers.insert(UPGRADE, protocol.clone());
        }
        if self.trailers {
            headers.append(CONNECTION, HeaderValue::from_static("te"));
            headers.insert(TE, HeaderValue::from_static("trailers"));
        }
    }
}

/// The words of a list header, in small letters and without their parameters.
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
        // Nobody asked for the upgrade: `Connection` does not name it.
        assert_eq!(strip(&mut asked), Wishes::default());
        assert_eq!(asked, headers(&[("trailer", "x-sum"), ("x-end", "3")]));
    }

    #[test]
    fn wishes_are_said_again_for_the_next_connection() {
        let mut asked = headers(&[
            ("connection", "keep-alive, Upgrade"),
            ("upgrade", "websocket"),
            ("te", "gzip;q=0.5, trailers"),
        ]);
        strip(&mut asked).repeat(&mut asked);
        let repeated = [("connection", "upgrade"), ("upgrade", "websocket")];
        let repeated = [&repeated[..], &[("connection", "te"), ("te", "trailers")]].concat();
        assert_eq!(asked, headers(&repeated));
    }

    #[test]
    fn nobody_goes_on_in_another_version_of_http() {
        for protocols in ["h2c", "websocket, H2C"] {
            let mut asked = headers(&[("connection", "upgrade"), ("upgrade", protocols)]);
            assert_eq!(strip(&mut asked).upgrade, None, "{protocols}");
        }
    }
}
