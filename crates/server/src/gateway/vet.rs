//! Requests that no careful client sends, refused before anything is looked up or forwarded.
//!
//! Two readers that disagree about a request are an attack: on its length (RFC 9112, 6.1; see
//! [`listen::framing`](crate::listen)), on its host (3.2), or on the headers of its connection, of which the gateway
//! forwards what it has understood and nothing else.

use axum::body::Body;
use http::header::HOST;
use http::uri::Authority;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Version};

use super::hop_headers;
use super::upstream_error::UpstreamError;

/// Headers that the gateway goes by, or writes. A name that ends in a hyphen is a prefix.
const DECIDED: &[&str] = &[
    "authorization",
    "connection",
    "content-length",
    "cookie",
    "expect",
    "host",
    "idempotency-",
    "prefer",
    "proxy-",
    "redrive-",
    "repeatability-",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
    "via",
];

/// Removes headers with an underscore that many an API reads as one that the gateway goes by (`idempotency_key`,
/// `x_tenant`), or as another of the same request: the API would see another value than the gateway did. `named` are the
/// headers of tenants, principals and credentials, with hyphens.
pub(super) fn unfold(headers: &mut HeaderMap, named: &[String]) {
    let is_decided = |name: &str| {
        DECIDED
            .iter()
            .any(|known| if known.ends_with('-') { name.starts_with(known) } else { name == *known })
            || named.iter().any(|known| known == name)
    };
    let folded: Vec<HeaderName> = headers
        .keys()
        .filter(|name| {
            let read = name.as_str().replace('_', "-");
            read != name.as_str() && (is_decided(&read) || headers.contains_key(&read))
        })
        .cloned()
        .collect();
    for name in folded {
        headers.remove(name);
    }
}

/// Checks a request, and has `Host` name the authority of an absolute target.
///
/// # Errors
/// With the reason for 400.
pub(super) fn vet(request: &mut Request<Body>) -> Result<(), UpstreamError> {
    hop_headers::check(request.headers())?;
    check_target(request)?;
    let mut hosts = request.headers().get_all(HOST).iter();
    let host = match (hosts.next(), hosts.next()) {
        (Some(_), Some(_)) => return Err(UpstreamError::Hosts),
        (Some(host), None) => Some(host),
        (None, _) if request.version() == Version::HTTP_10 => None,
        (None, _) => return Err(UpstreamError::HostMissing),
    };
    if host.is_some_and(|host| !is_host(host.as_bytes())) {
        return Err(UpstreamError::Hosts);
    }
    // The target wins over `Host` (RFC 9112, 3.2.2), as every reader behind this one will have it.
    if let Some(target) = request.uri().authority().cloned() {
        let named = HeaderValue::try_from(target.as_str()).ok().filter(|host| is_host(host.as_bytes()));
        request.headers_mut().insert(HOST, named.ok_or(UpstreamError::Hosts)?);
    }
    Ok(())
}

/// A target is a path, an address, or `*` for `OPTIONS` (RFC 9112, 3.2); a host alone is for `CONNECT`, which is refused
/// elsewhere.
fn check_target(request: &Request<Body>) -> Result<(), UpstreamError> {
    let (uri, method) = (request.uri(), request.method());
    let is_host = uri.scheme().is_none() && uri.authority().is_some();
    let is_path = uri.path().starts_with('/') || (uri.path() == "*" && method == Method::OPTIONS);
    if *method == Method::CONNECT || (is_path && !is_host) { Ok(()) } else { Err(UpstreamError::Target) }
}

/// A host, with a port or without, and nothing else.
fn is_host(value: &[u8]) -> bool {
    Authority::try_from(value).is_ok_and(|host| !host.host().is_empty() && !host.as_str().contains('@'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_with_an_underscore_is_no_second_spelling_of_one_that_counts() {
        for (name, is_removed) in [
            ("idempotency_key", true),
            ("redrive_tenant", true),
            ("transfer_encoding", true),
            ("x_caller", true),
            ("x_twin", true),
            ("x_api_key", false),
            ("access_token", false),
            ("x-caller", false),
        ] {
            let mut headers = HeaderMap::new();
            headers.insert("x-twin", HeaderValue::from_static("1"));
            headers.insert(name, HeaderValue::from_static("2"));
            unfold(&mut headers, &["x-caller".to_owned()]);
            assert_eq!(!headers.contains_key(name), is_removed, "{name}");
            assert!(headers.contains_key("x-twin"));
        }
    }

    fn vetted(version: Version, target: &str, hosts: &[&'static str]) -> Result<String, UpstreamError> {
        let request = Request::builder().version(version).uri(target);
        let request = hosts.iter().fold(request, |request, host| request.header(HOST, *host));
        let mut request = request.body(Body::empty()).expect("a request");
        vet(&mut request)?;
        let host = request.headers().get(HOST).map(|host| host.to_str().expect("text").to_owned());
        Ok(host.unwrap_or_default())
    }

    #[test]
    fn a_target_is_a_path_or_an_address() {
        for (method, target, is_one) in [
            ("POST", "/orders", true),
            ("POST", "http://shop/orders", true),
            ("POST", "http://shop", true),
            ("OPTIONS", "*", true),
            ("POST", "*", false),
            ("POST", "orders", false),
            ("POST", "shop:80", false),
            ("CONNECT", "shop:80", true),
        ] {
            let request = Request::builder().method(method).uri(target).body(Body::empty());
            assert_eq!(check_target(&request.expect("a request")).is_ok(), is_one, "{method} {target}");
        }
    }

    #[test]
    fn a_request_names_one_host_and_an_absolute_target_wins() {
        let (old, new) = (Version::HTTP_10, Version::HTTP_11);
        for (version, target, hosts, found) in [
            (new, "/a", &["shop"][..], Ok("shop")),
            (new, "/a", &["shop:81"], Ok("shop:81")),
            (new, "/a", &["[::1]:81"], Ok("[::1]:81")),
            (new, "http://inner:82/a", &["shop"], Ok("inner:82")),
            (new, "/a", &[], Err(UpstreamError::HostMissing)),
            (new, "http://inner/a", &[], Err(UpstreamError::HostMissing)),
            (new, "/a", &["shop", "shop"], Err(UpstreamError::Hosts)),
            (new, "/a", &["shop, inner"], Err(UpstreamError::Hosts)),
            (new, "/a", &["user@shop"], Err(UpstreamError::Hosts)),
            (new, "/a", &["shop/a"], Err(UpstreamError::Hosts)),
            (new, "/a", &["sh\u{f6}p"], Err(UpstreamError::Hosts)),
            (new, "/a", &[""], Err(UpstreamError::Hosts)),
            (new, "http://user@inner/a", &["shop"], Err(UpstreamError::Hosts)),
            (old, "/a", &[], Ok("")),
            (old, "/a", &["shop"], Ok("shop")),
        ] {
            let found = found.map(str::to_owned);
            assert_eq!(vetted(version, target, hosts), found, "{version:?} {target} {hosts:?}");
        }
    }
}
