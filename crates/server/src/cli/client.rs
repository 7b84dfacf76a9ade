//! The line to the desk: over HTTP to a server, or straight to a store file.
//!
//! Both use the same routes. For a store they are called in this process, over an engine that runs nothing; so every
//! command works the same either way.

use std::time::Duration;

use anyhow::{Context, Result, bail};
use axum::Router;
use axum::body::Body;
use bytes::Bytes;
use http::header::{AUTHORIZATION, CONTENT_TYPE};
use http::{HeaderMap, Method, Request, StatusCode};
use http_body_util::BodyExt;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use redrive::Redrive;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tower::ServiceExt;

use crate::app::{App, AppServices};
use crate::auth::{Caller, Origin};
use crate::config::Config;
use crate::reload::Reloading;
use crate::{api, serve};

/// Time limit for connecting to a server.
const CONNECT_TIME: Duration = Duration::from_secs(5);
/// Time limit for a response.
const ANSWER_TIME: Duration = Duration::from_secs(120);

/// A client of the desk API, over HTTP or in process.
#[derive(Debug)]
pub(super) enum DeskClient {
    Server { client: reqwest::Client, url: String, token: Option<String> },
    File { router: Router, redrive: Redrive, caller: Caller },
}

/// A response.
#[derive(Debug)]
pub(super) struct DeskResponse {
    status: StatusCode,
    pub(super) headers: HeaderMap,
    pub(super) bytes: Bytes,
}

/// The desk refused the request.
#[derive(Debug, thiserror::Error)]
#[error("{detail}")]
pub(super) struct DeskRefusal {
    pub(super) kind: String,
    detail: String,
    /// The whole problem document.
    pub(super) document: Value,
}

/// Reads a response as one of the API's types.
pub(super) fn read<T: DeserializeOwned>(answer: &Value) -> Result<T> {
    T::deserialize(answer).context("unexpected response; the server may be of another version")
}

/// Query parameters.
pub(super) type QueryParams = Vec<(&'static str, String)>;

/// An HTTP client for a server.
pub(super) fn client(url: &str) -> Result<reqwest::ClientBuilder> {
    let parsed = reqwest::Url::parse(url).with_context(|| format!("`{url}` is not a server URL"))?;
    if !matches!(parsed.scheme(), "http" | "https") {
        bail!("`{url}` is not a server URL: must begin with http:// or https://");
    }
    // A token goes to the server that was named and to no other.
    let client =
        reqwest::Client::builder().redirect(reqwest::redirect::Policy::none()).connect_timeout(CONNECT_TIME);
    let host = parsed.host_str().unwrap_or_default().trim_matches(['[', ']']);
    let is_here = host == "localhost" || host.parse::<std::net::IpAddr>().is_ok_and(|ip| ip.is_loopback());
    Ok(if is_here { client.no_proxy() } else { client })
}

impl DeskClient {
    /// A client of a server.
    pub(super) fn to_server(url: &str, token: Option<String>) -> Result<Self> {
        let client = client(url)?.timeout(ANSWER_TIME).build().context("cannot create the HTTP client")?;
        Ok(Self::Server { client, url: url.trim_end_matches('/').to_owned(), token })
    }

    /// A client of the configured store, opened in this process.
    pub(super) async fn to_file(mut config: Config, user: &str) -> Result<Self> {
        // Nothing is sent from here, and an operator need not be able to read the credentials.
        for push in config.queues.values_mut().filter_map(|queue| queue.push.as_mut()) {
            push.headers.clear();
        }
        let redrive = serve::open(&config).await?;
        let outside = AppServices::new(&config, Reloading::never()).map_err(anyhow::Error::msg)?;
        let router = api::router(App::new(redrive.clone(), config, outside));
        Ok(Self::File { router, redrive, caller: Caller::local(user) })
    }

    /// Whether it opened a store directly. Jobs then run only if a server has the store open too.
    pub(super) const fn is_file(&self) -> bool {
        matches!(self, Self::File { .. })
    }

    /// Sends a GET and parses the JSON response.
    pub(super) async fn get(&self, path: &str, query: &QueryParams) -> Result<Value> {
        self.send(Method::GET, &address(path, query), None).await?.json()
    }

    /// Sends a POST with a JSON body and parses the JSON response.
    pub(super) async fn post(&self, path: &str, body: &Value) -> Result<Value> {
        let body = ("application/json", body.to_string().into_bytes());
        self.send(Method::POST, path, Some(body)).await?.json()
    }

    /// Sends a request. An unsuccessful response is an error.
    pub(super) async fn send(
        &self,
        method: Method,
        address: &str,
        body: Option<(&'static str, Vec<u8>)>,
    ) -> Result<DeskResponse> {
        let answer = match self {
            Self::Server { client, url, token } => {
                let mut request = client.request(method, format!("{url}{address}"));
                if let Some((media_type, bytes)) = body {
                    request = request.header(CONTENT_TYPE, media_type).body(bytes);
                }
                if let Some(token) = token {
                    request = request.header(AUTHORIZATION, format!("Bearer {token}"));
                }
                let response = request.send().await.map_err(|error| unreachable(url, &error))?;
                let (status, headers) = (response.status(), response.headers().clone());
                let bytes = response.bytes().await.map_err(|error| unreachable(url, &error))?;
                DeskResponse { status, headers, bytes }
            }
            Self::File { router, caller, .. } => {
                let mut request = Request::builder().method(method).uri(address);
                if let Some((media_type, _)) = &body {
                    request = request.header(CONTENT_TYPE, *media_type);
                }
                let body = body.map_or_else(Body::empty, |(_, bytes)| Body::from(bytes));
                let request = request.extension(caller.clone()).extension(Origin("cli".into())).body(body)?;
                let response = match router.clone().oneshot(request).await {
                    Ok(response) => response,
                    Err(never) => match never {},
                };
                let (status, headers) = (response.status(), response.headers().clone());
                let bytes = response.into_body().collect().await.context("cannot read the store")?.to_bytes();
                DeskResponse { status, headers, bytes }
            }
        };
        if answer.status.is_success() { Ok(answer) } else { Err(self.refused(&answer)) }
    }

    /// The error for an unsuccessful response.
    fn refused(&self, answer: &DeskResponse) -> anyhow::Error {
        let document: Value = serde_json::from_slice(&answer.bytes).unwrap_or_default();
        let kind = document["code"].as_str().unwrap_or_default();
        if kind == "unauthorized" {
            let has_token = matches!(self, Self::Server { token: Some(_), .. });
            return if has_token {
                anyhow::anyhow!("the server rejected the token")
            } else {
                anyhow::anyhow!("the server requires a token; set REDRIVE_TOKEN or --token-file")
            };
        }
        let Some(detail) = document["detail"].as_str() else {
            return anyhow::anyhow!(
                "the response is {}, which is not from redrive; check the URL",
                answer.status
            );
        };
        let (kind, detail) = (kind.to_owned(), detail.to_owned());
        DeskRefusal { kind, detail, document }.into()
    }

    /// Closes the client; a store is closed cleanly.
    pub(super) async fn close(self) -> Result<()> {
        if let Self::File { redrive, .. } = self {
            redrive.shutdown(Duration::ZERO).await.context("cannot close the store")?;
        }
        Ok(())
    }
}

impl DeskResponse {
    pub(super) fn json(&self) -> Result<Value> {
        let wrong = || "the response is not JSON; check that the URL is a redrive server";
        serde_json::from_slice(&self.bytes).with_context(wrong)
    }
}

/// A path with its query parameters, percent-encoded.
pub(super) fn address(path: &str, query: &QueryParams) -> String {
    let pairs: Vec<String> = query.iter().map(|(name, value)| format!("{name}={}", encoded(value))).collect();
    if pairs.is_empty() { path.to_owned() } else { format!("{path}?{}", pairs.join("&")) }
}

/// Percent-encodes a text.
pub(super) fn encoded(text: &str) -> String {
    utf8_percent_encode(text, NON_ALPHANUMERIC).to_string()
}

fn unreachable(url: &str, error: &reqwest::Error) -> anyhow::Error {
    let mut why: &dyn std::error::Error = error;
    while let Some(source) = why.source() {
        why = source;
    }
    if error.is_timeout() {
        return anyhow::anyhow!("the server at {url} did not respond in time");
    }
    anyhow::anyhow!("cannot reach the server at {url}: {why}")
}
