//! The gate: every request through its route, or past all of them.
//!
//! The body of a request with a key is held in memory, so it takes room as it arrives, over all requests and by client;
//! a client that sends nothing for too long, or not all in time, is disconnected.

use std::convert::Infallible;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::Body;
use http::header::CONTENT_LENGTH;
use http::{HeaderMap, HeaderValue, Request, Response};
use hyper::body::Body as _;
use redrive::names::header::{IDEMPOTENCY_KEY, IDEMPOTENT_REPLAYED};
use tokio::time::Instant;
use tower::Service;
use tracing::Instrument as _;

use super::authorise::{question, refusal};
use super::body::{ClientFault, HeldBody, Progress, UploadBody};
use super::proxy::{Proxy, ProxyFuture};
use super::room::{HeldBytes, Room};
use super::route::Route;
use super::route_table::RouteTable;
use super::upstream_error::UpstreamError;
use super::vet::{unfold, vet};
use crate::config::{Config, CredentialsSettings, GatewaySettings, RouteSettings};
use crate::observe::access_log::AccessRecord;
use crate::observe::trace::http_spans;

/// Has requests go through their routes.
#[derive(Debug, Clone)]
pub(super) struct Dispatch {
    table: Arc<RouteTable<Route>>,
    proxy: Proxy,
    /// The memory of request bodies.
    bodies: Room,
    patience: Duration,
    /// How long a body that is held may take.
    held_time: Duration,
    /// Headers of tenants, principals and credentials, with hyphens.
    named: Arc<[String]>,
    refuse_lookalikes: bool,
}

impl Dispatch {
    pub(super) fn new(table: RouteTable<Route>, proxy: Proxy, config: &Config) -> Self {
        let bodies = Room::new(config.server.bodies_max, config.gateway.client_bodies_max);
        let (patience, held_time) = (config.server.body_time, config.gateway.held_time);
        let named = named(&config.gateway);
        let refuse_lookalikes = config.gateway.refuse_lookalikes;
        Self { table: Arc::new(table), proxy, bodies, patience, held_time, named, refuse_lookalikes }
    }

    /// Checks a request before anything is looked up.
    fn vet(&self, request: &mut Request<Body>) -> Result<(), UpstreamError> {
        vet(request)?;
        let is_lookalike = || self.table.lookalike(request.method(), request.uri().path()).is_some();
        if self.refuse_lookalikes && is_lookalike() { Err(UpstreamError::Lookalike) } else { Ok(()) }
    }

    /// Prepares a request for its layer. Returns the progress of its body, if that is held.
    fn enter(
        &self,
        request: &mut Request<Body>,
        route: &Route,
    ) -> Result<Option<Arc<Progress>>, ClientFault> {
        let body_max = route.body_max();
        // Without a key nothing is held, unless the key may be in the body.
        if !request.headers().contains_key(IDEMPOTENCY_KEY) && !route.reads_all() {
            return Ok(None);
        }
        let client = self.proxy.client(request);
        // A body that cannot be held is refused before it is sent.
        if !self.bodies.has(client, announced(request.headers(), body_max)) {
            return Err(ClientFault::NoRoom);
        }
        let held = Arc::new(self.bodies.open(client));
        request.extensions_mut().insert(held.clone());
        let body = std::mem::take(request.body_mut());
        let (body, progress) = UploadBody::new(body, self.patience);
        *request.body_mut() = Body::new(body.held(held, Instant::now() + self.held_time));
        Ok(Some(progress))
    }
}

/// The headers by which callers are told apart.
fn named(settings: &GatewaySettings) -> Arc<[String]> {
    let credentials = match &settings.credentials {
        Some(CredentialsSettings::Headers(names)) => names.as_slice(),
        _ => &[],
    };
    let routes = settings.routes.iter().flat_map(RouteSettings::named_by);
    let names = routes.chain(credentials.iter().map(String::as_str));
    names.map(|name| name.to_ascii_lowercase().replace('_', "-")).collect()
}

/// How many bytes are to be held, as the request says. One that is too large is refused before it is read.
fn announced(headers: &HeaderMap, most: usize) -> usize {
    let said = headers.get(CONTENT_LENGTH).map(HeaderValue::to_str);
    let length = said.and_then(|said| said.ok()?.parse().ok()).unwrap_or(0);
    if length > most { 0 } else { length }
}

/// Whether the ledger answered.
fn is_replay(response: &Response<Body>) -> bool {
    response.headers().get(IDEMPOTENT_REPLAYED).is_some_and(|value| value == "true")
}

/// A reply with its room, until its client has taken it. The layer read it from the ledger if it is a replay; then it
/// has no room yet, and without any its client asks again.
fn with_room(mut response: Response<Body>, replies: &Room) -> Response<Body> {
    let held = match response.extensions_mut().remove::<Arc<HeldBytes>>() {
        Some(held) => held,
        None if is_replay(&response) => {
            let held = Arc::new(replies.open(None));
            let length = response.body().size_hint().exact().unwrap_or(0);
            if !held.take(usize::try_from(length).unwrap_or(usize::MAX)) {
                return UpstreamError::no_room_for_reply();
            }
            held
        }
        None => return response,
    };
    response.map(|body| Body::new(HeldBody::new(body, held)))
}

impl Service<Request<Body>> for Dispatch {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = ProxyFuture;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, mut request: Request<Body>) -> ProxyFuture {
        unfold(request.headers_mut(), &self.named);
        let route = self.table.find(request.method(), request.uri().path());
        let note = AccessRecord::of(&request, route.map(|route| route.name().to_owned()));
        let span = http_spans::server(&request, route.map(Route::name));
        let passing: ProxyFuture = match (self.vet(&mut request), route) {
            (Err(refused), _) => {
                let response = refused.refusal(request.method());
                Box::pin(async move { Ok(response) })
            }
            (Ok(()), None) => self.proxy.call(request),
            (Ok(()), Some(route)) => match self.enter(&mut request, route) {
                Err(fault) => Box::pin(async move { Ok(UpstreamError::unread(fault)) }),
                Ok(progress) => {
                    let question = route.authorise().map(|path| question(path, &request));
                    let proxy = self.proxy.clone();
                    let answering = route.service().call(request);
                    let replies = self.proxy.replies().clone();
                    Box::pin(async move {
                        let mut response = with_room(answering.await?.map(Body::new), &replies);
                        if let Some(question) = question.filter(|_| is_replay(&response)) {
                            response = refusal(proxy, question).await.unwrap_or(response);
                        }
                        // The layer refuses an incomplete body, but cannot tell why.
                        let fault = progress.and_then(|progress| progress.fault());
                        let fault = fault.filter(|fault| *fault != ClientFault::Broken);
                        Ok(fault.map_or(response, UpstreamError::unread))
                    })
                }
            },
        };
        Box::pin(async move {
            let response = passing.instrument(span.clone()).await?;
            http_spans::served(&span, response.status());
            // Whatever the status, it is the upstream's, or the contract's.
            note.answered(response.status(), false);
            Ok(response)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_body_needs_room_for_what_it_says_it_has() {
        for (said, room) in
            [(Some("0"), 0), (Some("70"), 70), (Some("100"), 100), (Some("101"), 0), (None, 0)]
        {
            let mut headers = HeaderMap::new();
            headers.extend(said.map(|said| (CONTENT_LENGTH, HeaderValue::from_static(said))));
            assert_eq!(announced(&headers, 100), room, "{said:?}");
        }
    }
}
