//! The proxy: a tower service that has the upstream answer.
//!
//! It is the handler under the layer, and handles all other requests by itself. It stores nothing, repeats nothing
//! and follows no redirects. If the upstream gives no response, it responds itself and states what is known of the
//! effect ([`UpstreamError`]).

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
use http::header::{CONTENT_TYPE, EXPECT, WWW_AUTHENTICATE};
use http::{Extensions, HeaderMap, HeaderName, HeaderValue, Method, Request, Response, StatusCode, Version};
use hyper::upgrade::OnUpgrade;
use hyper_util::client::legacy::connect::capture_connection;
use tokio::time::Instant;
use tower::Service;
use tracing::{Instrument as _, Span};

use super::body::{self, DeadlineBody, UploadBody};
use super::forwarded::ForwardedHeaders;
use super::hop_headers::{self, Upgrades};
use super::room::{ClientAddress, Room};
use super::tunnel::Tunnels;
use super::upstream::{Connections, Upstream};
use super::upstream_error::{OUTCOME, UpstreamError};
use crate::auth::Origin;
use crate::listen::ConnectionPermit;
use crate::observe::trace::http_spans;

/// The state shared by all requests.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) upstream: Upstream,
    pub(super) teller: ForwardedHeaders,
    pub(super) upgrades: Upgrades,
    pub(super) tunnels: Tunnels,
    pub(super) times: Timeouts,
    /// The memory of replies that are held to be stored and sent.
    pub(super) replies: Room,
}

/// How long things may take.
#[derive(Debug, Clone, Copy)]
pub(super) struct Timeouts {
    /// Until the upstream answers, from when it is connected and last took something of the request.
    pub(super) answer: Duration,
    /// A request that is not enrolled, with its response; no limit by default.
    pub(super) whole: Option<Duration>,
    /// Between two pieces of a request's body.
    pub(super) client: Duration,
}

/// On which terms a request that the ledger answers for is passed on; put into its extensions.
#[derive(Debug, Clone)]
pub(super) struct EnrolledRequest {
    /// The key for the upstream, if it differs from the client's header.
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
    /// Whether a 401 with `WWW-Authenticate` proves that nothing was done.
    pub(super) release_on_401: bool,
}

impl EnrolledRequest {
    /// Whether this answer proves that the upstream did nothing.
    fn proves_nothing_done(&self, status: StatusCode, headers: &HeaderMap) -> bool {
        let unauthorized = status == StatusCode::UNAUTHORIZED && headers.contains_key(WWW_AUTHENTICATE);
        self.not_executed.contains(&status) || (self.release_on_401 && unauthorized)
    }
}

/// The answer to come.
pub(super) type ProxyFuture = Pin<Box<dyn Future<Output = Result<Response<Body>, Infallible>> + Send>>;

/// Has the upstream answer requests.
#[derive(Debug, Clone)]
pub(super) struct Proxy(Arc<Shared>);

impl Proxy {
    pub(super) const fn new(shared: Arc<Shared>) -> Self {
        Self(shared)
    }

    /// The client that a request is counted by: as its address, or as a trusted proxy names it. `None` if a trusted
    /// proxy names none, so that all its clients do not count as one.
    pub(super) fn client<B>(&self, request: &Request<B>) -> Option<ClientAddress> {
        let teller = &self.0.teller;
        peer(request.extensions()).and_then(|peer| teller.client(request.headers(), peer)).map(Into::into)
    }

    /// The memory of replies.
    pub(super) fn replies(&self) -> &Room {
        &self.0.replies
    }

    async fn pass(self, mut request: Request<Body>) -> Response<Body> {
        let (method, path) = (request.method().clone(), request.uri().path().to_owned());
        let enrolled = request.extensions_mut().remove::<EnrolledRequest>();
        let span = http_spans::client(&method, self.0.upstream.server(), &path, 1);
        match self.exchange(request, enrolled.as_ref(), &span).instrument(span.clone()).await {
            Ok(mut response) => {
                http_spans::sent(&span, response.status());
                if let Some(route) = enrolled {
                    if !route.upstream_outcome {
                        // Any party that can set this header could make the layer forget an effect.
                        response.headers_mut().remove(OUTCOME);
                    }
                    if route.proves_nothing_done(response.status(), response.headers()) {
                        response.headers_mut().insert(OUTCOME, HeaderValue::from_static("none"));
                    }
                }
                response
            }
            Err(failure) => {
                http_spans::failed(&span, failure.code());
                tracing::warn!(code = failure.code(), method = %method, path, "the upstream gave no response");
                failure.answer(&method, enrolled.as_ref())
            }
        }
    }

    async fn exchange(
        &self,
        mut request: Request<Body>,
        enrolled: Option<&EnrolledRequest>,
        span: &Span,
    ) -> Result<Response<Body>, UpstreamError> {
        let Shared { upstream, teller, upgrades, tunnels, times, replies } = &*self.0;
        if request.method() == Method::CONNECT {
            return Err(UpstreamError::Connect);
        }
        if teller.is_loop(request.headers()) {
            return Err(UpstreamError::Loop);
        }
        let place = request.extensions().get::<ConnectionPermit>().cloned();
        let (client, asked) = self.prepare(&mut request, enrolled).unzip();
        http_spans::inject(span, request.headers_mut());
        let connections = enrolled.map_or(Connections::Kept, |route| route.connections);
        let (parts, body) = request.into_parts();
        let (body, progress) = UploadBody::new(body, times.client);
        let mut request = Request::from_parts(parts, body);
        let mut connection = capture_connection(&mut request);
        // Connecting has its own time limit, and the upstream's begins after it.
        let stalled = async {
            drop(connection.wait_for_connection_metadata().await);
            progress.connected();
            progress.stalled(times.answer).await;
        };
        // Enrolled requests have the layer's time limit.
        let whole = times.whole.filter(|_| enrolled.is_none()).map(|time| Instant::now() + time);
        let answer = tokio::select! {
            answer = upstream.send(request, connections) => answer,
            () = stalled => return Err(UpstreamError::Slow),
            () = until(whole) => return Err(UpstreamError::Slow),
        };
        let mut answer = answer.map_err(|error| match progress.fault() {
            _ if error.is_connect() => UpstreamError::Unreachable,
            Some(fault) => UpstreamError::Client(fault),
            None => UpstreamError::BrokeOff,
        })?;
        let switched = answer.status() == StatusCode::SWITCHING_PROTOCOLS;
        let theirs = switched.then(|| hyper::upgrade::on(&mut answer));
        let agreed = hop_headers::strip(answer.headers_mut(), upgrades);
        match (client, theirs) {
            // To the protocol that was asked for, and to no other.
            (Some(client), Some(theirs)) if agreed.upgrade == asked => {
                agreed.repeat(answer.headers_mut());
                tunnels.dig(client, theirs, place);
            }
            (_, Some(_)) => return Err(UpstreamError::BrokeOff),
            (_, None) => {}
        }
        let (mut parts, body) = answer.into_parts();
        // This gateway's own: the upstream's is a matter of that connection.
        parts.version = Version::HTTP_11;
        let body = match (enrolled, whole) {
            // A truncated response counts as none, and its client gets an error instead of half of it.
            (Some(route), _) if !is_stream(&parts.headers) => {
                let held = Arc::new(replies.open(None));
                parts.extensions.insert(held.clone());
                body::begun(body, route.reply_max, &held).await.map_err(|_| UpstreamError::BrokeOff)?
            }
            (_, None) => Body::new(body),
            (_, Some(end)) => Body::new(DeadlineBody::new(Body::new(body), end)),
        };
        Ok(Response::from_parts(parts, body))
    }

    /// Converts an incoming request into an outgoing one. Returns the client's side of a tunnel and its protocol, if
    /// one is requested and allowed.
    fn prepare(
        &self,
        request: &mut Request<Body>,
        enrolled: Option<&EnrolledRequest>,
    ) -> Option<(OnUpgrade, String)> {
        let peer = peer(request.extensions());
        let mut wishes = hop_headers::strip(request.headers_mut(), &self.0.upgrades);
        // The ledger answers for a request and its answer, and for no conversation.
        if enrolled.is_some() {
            wishes.upgrade = None;
        }
        let client = wishes.upgrade.clone().map(|protocol| (hyper::upgrade::on(&mut *request), protocol));
        let headers = request.headers_mut();
        wishes.repeat(headers);
        // The gateway itself sends `100 Continue` when the body is first read.
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

/// Whether a response is an endless stream: it is forwarded as it comes, and not stored.
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
    type Future = ProxyFuture;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<B>) -> ProxyFuture {
        let proxy = self.clone();
        let request = request.map(Body::new);
        Box::pin(async move { Ok(proxy.pass(request).await) })
    }
}
