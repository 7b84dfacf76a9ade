//! The proxy: a tower service that has the upstream answer.
//!
//! It is the handler under the layer, and by itself what everything that is not enrolled goes through. It keeps
//! nothing, repeats nothing and follows nothing. What it cannot get an answer for it answers itself, with what is
//! known of the effect ([`Failure`]).

use std::convert::Infallible;
use std::error::Error;
use std::future::Future;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::Body;
use bytes::Bytes;
use http::header::{CONTENT_TYPE, EXPECT, HOST};
use http::{Extensions, HeaderMap, HeaderName, HeaderValue, Method, Request, Response, StatusCode, Version};
use hyper::upgrade::OnUpgrade;
use tokio::time::Instant;
use tower::Service;

use super::failure::{Failure, OUTCOME};
use super::flow::{self, Sending, Within};
use super::forwarded::Teller;
use super::hops;
use super::tunnel::{self, Tunnels};
use super::upstream::{Connections, Upstream};
use crate::auth::Origin;
use crate::listen::Place;

/// What all requests share.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) upstream: Upstream,
    pub(super) teller: Teller,
    pub(super) tunnels: Tunnels,
    pub(super) times: Times,
}

/// How long things may take.
#[derive(Debug, Clone, Copy)]
pub(super) struct Times {
    /// To connect.
    pub(super) connect: Duration,
    /// Until the upstream answers, from when it has the request.
    pub(super) answer: Duration,
    /// A request that is not enrolled, with its answer; no bound where it is none.
    pub(super) whole: Option<Duration>,
    /// Between two pieces of a request's body.
    pub(super) client: Duration,
}

/// On which terms a request that the ledger answers for is passed on; put into its extensions.
#[derive(Debug, Clone)]
pub(super) struct Enrolled {
    /// The key that the upstream is given, where it is not the client's header as it came.
    pub(super) key: Option<HeaderValue>,
    /// Whether the connection may have been used before.
    pub(super) connections: Connections,
    /// Whether they may run again.
    pub(super) may_rerun: bool,
    /// How many bytes of an answer are kept, and so waited for.
    pub(super) reply_max: usize,
    /// The upstream's statuses that prove that nothing was done.
    pub(super) not_executed: Arc<[StatusCode]>,
    /// Whether the upstream's own `Idempotency-Outcome` is believed.
    pub(super) upstream_outcome: bool,
}

/// The answer to come.
pub(super) type Passing = Pin<Box<dyn Future<Output = Result<Response<Body>, Infallible>> + Send>>;

/// Has the upstream answer requests.
#[derive(Debug, Clone)]
pub(super) struct Proxy(Arc<Shared>);

impl Proxy {
    pub(super) const fn new(shared: Arc<Shared>) -> Self {
        Self(shared)
    }

    async fn pass(self, mut request: Request<Body>) -> Response<Body> {
        let (method, path) = (request.method().clone(), request.uri().path().to_owned());
        let enrolled = request.extensions_mut().remove::<Enrolled>();
        match self.exchange(request, enrolled.as_ref()).await {
            Ok(mut response) => {
                if let Some(route) = enrolled {
                    if !route.upstream_outcome {
                        // It would have the layer forget what happened, on the word of whoever can set a header.
                        response.headers_mut().remove(OUTCOME);
                    }
                    if route.not_executed.contains(&response.status()) {
                        response.headers_mut().insert(OUTCOME, HeaderValue::from_static("none"));
                    }
                }
                response
            }
            Err(failure) => {
                tracing::warn!(code = failure.code(), method = %method, path, "there is no answer of the upstream's");
                failure.answer(&method, enrolled.as_ref())
            }
        }
    }

    async fn exchange(
        &self,
        mut request: Request<Body>,
        enrolled: Option<&Enrolled>,
    ) -> Result<Response<Body>, Failure> {
        let Shared { upstream, teller, tunnels, times } = &*self.0;
        if request.method() == Method::CONNECT {
            return Err(Failure::Connect);
        }
        if request.headers().get_all(HOST).iter().count() > 1 {
            return Err(Failure::Hosts);
        }
        if teller.is_loop(request.headers()) {
            return Err(Failure::Loop);
        }
        let place = request.extensions().get::<Place>().cloned();
        let client = self.prepare(&mut request, enrolled);
        let connections = enrolled.map_or(Connections::Kept, |route| route.connections);
        let (parts, body) = request.into_parts();
        // To connect has a time of its own.
        let (body, progress) = Sending::new(body, times.client, Instant::now() + times.connect);
        // What is enrolled has the layer's time.
        let whole = times.whole.filter(|_| enrolled.is_none()).map(|time| Instant::now() + time);
        let answer = tokio::select! {
            answer = upstream.send(Request::from_parts(parts, body), connections) => answer,
            () = progress.stalled(times.answer) => return Err(Failure::Slow),
            () = until(whole) => return Err(Failure::Slow),
        };
        let mut answer = answer.map_err(|error| match progress.fault() {
            _ if error.is_connect() => Failure::Unreachable,
            Some(fault) => Failure::Client(fault),
            None => Failure::BrokeOff,
        })?;
        let switched = answer.status() == StatusCode::SWITCHING_PROTOCOLS;
        let theirs = switched.then(|| hyper::upgrade::on(&mut answer));
        let protocol = hops::strip(answer.headers_mut()).upgrade;
        match (client, theirs) {
            (Some(client), Some(theirs)) => {
                tunnel::agree(answer.headers_mut(), protocol);
                tunnels.dig(client, theirs, place);
            }
            // Nobody asked for it.
            (None, Some(_)) => return Err(Failure::BrokeOff),
            (_, None) => {}
        }
        let (mut parts, body) = answer.into_parts();
        // This gateway's own: the upstream's is a matter of that connection.
        parts.version = Version::HTTP_11;
        let body = match (enrolled, whole) {
            // An answer that breaks off is none, and its client is told so instead of being sent half of it.
            (Some(route), _) if !is_stream(&parts.headers) => {
                flow::begun(body, route.reply_max).await.map_err(|_| Failure::BrokeOff)?
            }
            (_, None) => Body::new(body),
            (_, Some(end)) => Body::new(Within::new(Body::new(body), end)),
        };
        Ok(Response::from_parts(parts, body))
    }

    /// Makes of a request that came here one that goes on. Gives the client's side of a tunnel, where it asks for one
    /// and may have it.
    fn prepare(&self, request: &mut Request<Body>, enrolled: Option<&Enrolled>) -> Option<OnUpgrade> {
        let peer = peer(request.extensions());
        let mut wishes = hops::strip(request.headers_mut());
        // The ledger answers for a request and its answer, and for no conversation.
        if enrolled.is_some() {
            wishes.upgrade = None;
        }
        let client = wishes.upgrade.is_some().then(|| hyper::upgrade::on(&mut *request));
        let headers = request.headers_mut();
        wishes.repeat(headers);
        // Whoever waits for it is told to go on by this gateway, when the body is first asked for.
        headers.remove(EXPECT);
        self.0.teller.tell(headers, peer);
        if let Some(key) = enrolled.and_then(|route| route.key.clone()) {
            headers.insert(HeaderName::from_static(redrive::names::header::IDEMPOTENCY_KEY), key);
        }
        client
    }
}

/// The address that a request came from.
pub(super) fn peer(extensions: &Extensions) -> Option<IpAddr> {
    let origin = extensions.get::<Origin>()?;
    origin.0.parse::<IpAddr>().ok().map(|peer| peer.to_canonical())
}

/// Whether an answer goes on and on: it is passed on as it comes, and not kept.
fn is_stream(headers: &HeaderMap) -> bool {
    let kind = headers.get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
    kind.trim_start().get(..17).is_some_and(|kind| kind.eq_ignore_ascii_case("text/event-stream"))
}

async fn until(end: Option<Instant>) {
    match end {
        Some(end) => tokio::time::sleep_until(end).await,
        None => std::future::pending().await,
    }
}

impl<B> Service<Request<B>> for Proxy
where
    B: hyper::body::Body<Data = Bytes> + Send + 'static,
    B::Error: Into<Box<dyn Error + Send + Sync>>,
{
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Passing;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<B>) -> Passing {
        let proxy = self.clone();
        let request = request.map(Body::new);
        Box::pin(async move { Ok(proxy.pass(request).await) })
    }
}
