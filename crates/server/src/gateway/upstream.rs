//! The upstream API: its URL, and the connections to it.
//!
//! There are two clients. One reuses connections. The other opens one per request, for requests that may not run
//! again: an upstream may close a kept connection at the very moment a request is written to it, and then it is
//! unknown whether it was read. A fresh connection is not closed for its age, so an outcome is unknown only if
//! something really broke. The price is a round trip, and a TLS handshake.
//!
//! Neither client sends a request twice. The first one repeats only a request of which it wrote nothing, because the
//! kept connection was already closed.

use std::error::Error;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use http::uri::{Authority, PathAndQuery, Scheme};
use http::{HeaderValue, Request, Response, Uri};
use hyper::body::Incoming;
use hyper_rustls::{ConfigBuilderExt as _, HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::client::legacy::{Client, Error as ClientError};
use hyper_util::rt::{TokioExecutor, TokioTimer};
use rustls::{ClientConfig, RootCertStore};
use tower::Service;

use super::body::UploadBody;
use crate::config::GatewaySettings;

/// Where the API is.
#[derive(Debug, Clone, PartialEq)]
pub struct UpstreamAddress {
    scheme: Scheme,
    authority: Authority,
}

impl std::str::FromStr for UpstreamAddress {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        // The address may hold a password, so it is not repeated.
        let uri: Uri = text.parse().map_err(|error| format!("not a valid URL ({error})"))?;
        let scheme = uri.scheme().filter(|scheme| [Scheme::HTTP, Scheme::HTTPS].contains(scheme));
        let Some(scheme) = scheme.cloned() else {
            return Err("must begin with http:// or https://".to_owned());
        };
        let Some(authority) = uri.authority().filter(|authority| !authority.host().is_empty()) else {
            return Err("has no host".to_owned());
        };
        if authority.as_str().contains('@') {
            return Err(
                "must not contain a user name; the gateway forwards each client's own credentials".to_owned()
            );
        }
        if uri.path_and_query().is_some_and(|rest| rest != "/") {
            return Err(
                "must not contain a path; the gateway forwards each request under its own path".to_owned()
            );
        }
        Ok(Self { scheme, authority: authority.clone() })
    }
}

impl std::fmt::Display for UpstreamAddress {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}://{}", self.scheme, self.authority)
    }
}

impl UpstreamAddress {
    /// As `Host` names it.
    pub(super) fn host(&self) -> HeaderValue {
        HeaderValue::try_from(self.authority.as_str()).unwrap_or(HeaderValue::from_static(""))
    }

    /// The upstream URI of a request, whatever host it names.
    fn at(&self, asked: &Uri) -> Uri {
        let mut parts = http::uri::Parts::default();
        parts.scheme = Some(self.scheme.clone());
        parts.authority = Some(self.authority.clone());
        parts.path_and_query =
            Some(asked.path_and_query().cloned().unwrap_or(PathAndQuery::from_static("/")));
        Uri::from_parts(parts).unwrap_or_default()
    }
}

/// Whether a connection may have been used before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Connections {
    /// Allowed: the request can be repeated, or is not enrolled.
    Kept,
    /// It may not.
    Fresh,
}

type Connect = TimeoutConnector<HttpsConnector<HttpConnector>>;

/// The connections to the API.
#[derive(Debug, Clone)]
pub(super) struct Upstream {
    address: UpstreamAddress,
    kept: Client<Connect, UploadBody>,
    fresh: Client<Connect, UploadBody>,
}

impl Upstream {
    /// # Errors
    /// Where the system has no certificates to trust, and the upstream needs them.
    pub(super) fn new(address: UpstreamAddress, settings: &GatewaySettings) -> std::io::Result<Self> {
        let mut http = HttpConnector::new();
        http.enforce_http(false);
        http.set_nodelay(true);
        let tls = trust(address.scheme == Scheme::HTTPS)?;
        let https = HttpsConnectorBuilder::new().with_tls_config(tls).https_or_http().enable_http1();
        let connect = TimeoutConnector { inner: https.wrap_connector(http), time: settings.connect_time };
        let client = |idle_max| {
            let mut builder = Client::builder(TokioExecutor::new());
            builder.pool_timer(TokioTimer::new()).pool_idle_timeout(settings.idle_time);
            // The gateway says itself which host is meant.
            builder.pool_max_idle_per_host(idle_max).set_host(false);
            builder.build(connect.clone())
        };
        Ok(Self { address, kept: client(settings.idle_max), fresh: client(0) })
    }

    /// Its host and port.
    pub(super) fn server(&self) -> (&str, Option<u16>) {
        let UpstreamAddress { scheme, authority } = &self.address;
        let usual = if *scheme == Scheme::HTTPS { 443 } else { 80 };
        (authority.host(), authority.port_u16().or(Some(usual)))
    }

    /// Sends a request, once.
    pub(super) fn send(
        &self,
        mut request: Request<UploadBody>,
        connections: Connections,
    ) -> impl Future<Output = Result<Response<Incoming>, ClientError>> + Send + use<> {
        *request.uri_mut() = self.address.at(request.uri());
        *request.version_mut() = http::Version::HTTP_11;
        match connections {
            Connections::Kept => self.kept.request(request),
            Connections::Fresh => self.fresh.request(request),
        }
    }
}

/// The system's root certificates, loaded only if needed: a machine without certificates may have a plain upstream.
fn trust(is_needed: bool) -> std::io::Result<ClientConfig> {
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let builder = ClientConfig::builder_with_provider(provider);
    let builder = builder.with_safe_default_protocol_versions().map_err(std::io::Error::other)?;
    let builder = if is_needed {
        builder.with_native_roots()?
    } else {
        builder.with_root_certificates(RootCertStore::empty())
    };
    Ok(builder.with_no_client_auth())
}

/// A connector with a time for everything that it does: the name, the connection, the handshake.
#[derive(Debug, Clone)]
pub(super) struct TimeoutConnector<C> {
    inner: C,
    time: Duration,
}

impl<C> Service<Uri> for TimeoutConnector<C>
where
    C: Service<Uri, Error = Box<dyn Error + Send + Sync>>,
    C::Future: Send + 'static,
    C::Response: 'static,
{
    type Response = C::Response;
    type Error = C::Error;
    type Future = Pin<Box<dyn Future<Output = Result<C::Response, C::Error>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), C::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, address: Uri) -> Self::Future {
        let connecting = tokio::time::timeout(self.time, self.inner.call(address));
        Box::pin(async move { connecting.await? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_upstream_is_a_host_and_nothing_else() {
        for (text, why) in [
            ("127.0.0.1:8080", "must begin with"),
            ("ftp://api", "must begin with"),
            ("http://", "not a valid URL"),
            ("http://user:s3cret@api/", "must not contain a user name"),
            ("http://api/v1", "must not contain a path"),
            ("http://api/?a=1", "must not contain a path"),
        ] {
            let told = text.parse::<UpstreamAddress>().expect_err(text);
            assert!(told.starts_with(why), "{text}: {told}");
            assert!(!told.contains("s3cret"), "{told}");
        }
        let address: UpstreamAddress = "https://api:8443/".parse().expect("an address");
        assert_eq!(address.to_string(), "https://api:8443");
        let asked = Uri::from_static("http://elsewhere.example/a%20b?c=d");
        assert_eq!(address.at(&asked).to_string(), "https://api:8443/a%20b?c=d");
    }
}
