//! The line to the desk: over HTTP to a server, or straight to a store file.
//!
//! Both ends are the same routes. For a file they are called within this process, over an engine that runs nothing;
//! so a command does the same either way, and neither can do what the other cannot.

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
use serde_json::Value;
use tower::ServiceExt;

use crate::app::{App, Outside};
use crate::auth::{Caller, Origin};
use crate::config::Config;
use crate::reload::Reloading;
use crate::{api, serve};

/// How long a server may take until it answers a connection.
const CONNECT_TIME: Duration = Duration::from_secs(5);
/// How long a server may take over an answer.
const ANSWER_TIME: Duration = Duration::from_secs(120);

/// The line to the desk.
#[derive(Debug)]
pub(super) enum Line {
    Server { client: reqwest::Client, url: String, token: Option<String> },
    File { router: Router, redrive: Redrive, caller: Caller },
}

/// What came back.
#[derive(Debug)]
pub(super) struct Answer {
    status: StatusCode,
    pub(super) headers: HeaderMap,
    pub(super) bytes: Bytes,
}

/// The desk said no.
#[derive(Debug, thiserror::Error)]
#[error("{detail}")]
pub(super) struct Refused {
    pub(super) kind: String,
    detail: String,
    /// The whole document, which may say more.
    pub(super) document: Value,
}

/// Parameters of an address.
pub(super) type Pairs = Vec<(&'static str, String)>;

/// What calls a server.
pub(super) fn client(url: &str) -> Result<reqwest::ClientBuilder> {
    let parsed = reqwest::Url::parse(url).with_context(|| format!("`{url}` is no address of a server"))?;
    if !matches!(parsed.scheme(), "http" | "https") {
        bail!("`{url}` is no address of a server: it begins with http:// or https://");
    }
    // A token goes to the server that was named and to no other.
    let client =
        reqwest::Client::builder().redirect(reqwest::redirect::Policy::none()).connect_timeout(CONNECT_TIME);
    let host = parsed.host_str().unwrap_or_default().trim_matches(['[', ']']);
    let is_here = host == "localhost" || host.parse::<std::net::IpAddr>().is_ok_and(|ip| ip.is_loopback());
    Ok(if is_here { client.no_proxy() } else { client })
}

impl Line {
    /// A line to a server.
    pub(super) fn to_server(url: &str, token: Option<String>) -> Result<Self> {
        let client = client(url)?.timeout(ANSWER_TIME).build().context("cannot make a client")?;
        Ok(Self::Server { client, url: url.trim_end_matches('/').to_owned(), token })
    }

    /// A line to the file of a configuration.
    pub(super) async fn to_file(config: Config, user: &str) -> Result<Self> {
        let redrive = serve::open(&config).await?;
        let outside = Outside::new(&config, Reloading::never()).map_err(anyhow::Error::msg)?;
        let router = api::router(App::new(redrive.clone(), config, outside));
        Ok(Self::File { router, redrive, caller: Caller::local(user) })
    }

    /// Whether it goes to a file, where nobody runs jobs unless a server has it open too.
    pub(super) const fn is_file(&self) -> bool {
        matches!(self, Self::File { .. })
    }

    /// Asks for JSON.
    pub(super) async fn get(&self, path: &str, query: &Pairs) -> Result<Value> {
        self.send(Method::GET, &address(path, query), None).await?.json()
    }

    /// Orders, with JSON both ways.
    pub(super) async fn post(&self, path: &str, body: &Value) -> Result<Value> {
        let body = ("application/json", body.to_string().into_bytes());
        self.send(Method::POST, path, Some(body)).await?.json()
    }

    /// Sends a request; what is no success is an error.
    pub(super) async fn send(
        &self,
        method: Method,
        address: &str,
        body: Option<(&'static str, Vec<u8>)>,
    ) -> Result<Answer> {
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
                Answer { status, headers, bytes }
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
                Answer { status, headers, bytes }
            }
        };
        if answer.status.is_success() { Ok(answer) } else { Err(self.refused(&answer)) }
    }

    /// What an answer that is no success says.
    fn refused(&self, answer: &Answer) -> anyhow::Error {
        let document: Value = serde_json::from_slice(&answer.bytes).unwrap_or_default();
        let kind = document["type"].as_str().unwrap_or_default().rsplit(':').next().unwrap_or_default();
        if kind == "unauthorized" {
            let has_token = matches!(self, Self::Server { token: Some(_), .. });
            return if has_token {
                anyhow::anyhow!("the server does not know this token")
            } else {
                anyhow::anyhow!("the server wants a token; put it into REDRIVE_TOKEN, or name a --token-file")
            };
        }
        let Some(detail) = document["detail"].as_str() else {
            return anyhow::anyhow!(
                "the answer is {}, and not one of redrive's: is this the server?",
                answer.status
            );
        };
        let (kind, detail) = (kind.to_owned(), detail.to_owned());
        Refused { kind, detail, document }.into()
    }

    /// Hangs up. A file is closed cleanly.
    pub(super) async fn close(self) -> Result<()> {
        if let Self::File { redrive, .. } = self {
            redrive.shutdown(Duration::ZERO).await.context("cannot close the store")?;
        }
        Ok(())
    }
}

impl Answer {
    pub(super) fn json(&self) -> Result<Value> {
        let wrong = || "the answer is no JSON: is this the address of a redrive server?";
        serde_json::from_slice(&self.bytes).with_context(wrong)
    }
}

/// A path with its parameters. Ids and keys may have any letters in them.
pub(super) fn address(path: &str, query: &Pairs) -> String {
    let pairs: Vec<String> = query.iter().map(|(name, value)| format!("{name}={}", encoded(value))).collect();
    if pairs.is_empty() { path.to_owned() } else { format!("{path}?{}", pairs.join("&")) }
}

/// A text as a part of an address.
pub(super) fn encoded(text: &str) -> String {
    utf8_percent_encode(text, NON_ALPHANUMERIC).to_string()
}

fn unreachable(url: &str, error: &reqwest::Error) -> anyhow::Error {
    let mut why: &dyn std::error::Error = error;
    while let Some(source) = why.source() {
        why = source;
    }
    if error.is_timeout() {
        return anyhow::anyhow!("the server at {url} did not answer in time");
    }
    anyhow::anyhow!("cannot reach the server at {url}: {why}")
}
