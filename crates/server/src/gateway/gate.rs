//! The gate: every request through its route, or past all of them.
//!
//! The body of a request with a key is held in memory, so there is room to be had for it first, over all requests
//! together; and a client that sends nothing of it for too long is let go.

use std::convert::Infallible;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::Body;
use axum::response::IntoResponse as _;
use http::header::CONTENT_LENGTH;
use http::{HeaderMap, HeaderValue, Request, Response};
use redrive::names::header::IDEMPOTENCY_KEY;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;
use tower::Service;

use super::failure::Failure;
use super::flow::{Fault, Progress, Sending};
use super::proxy::{Passing, Proxy};
use super::route::Route;
use super::table::Table;
use crate::api::Problem;
use crate::config::ServerSettings;
use crate::observe::access::Note;

/// Has requests go through their routes.
#[derive(Debug, Clone)]
pub(super) struct Gate {
    table: Arc<Table<Route>>,
    proxy: Proxy,
    /// Bytes that bodies may have in memory together.
    room: Arc<Semaphore>,
    room_max: usize,
    patience: Duration,
}

/// Room for a body, for as long as its request is about.
#[derive(Debug, Clone)]
struct Room {
    _permit: Arc<OwnedSemaphorePermit>,
}

impl Gate {
    pub(super) fn new(table: Table<Route>, proxy: Proxy, settings: &ServerSettings) -> Self {
        let room_max = settings.bodies_max.min(Semaphore::MAX_PERMITS);
        let room = Arc::new(Semaphore::new(room_max));
        Self { table: Arc::new(table), proxy, room, room_max, patience: settings.body_time }
    }

    /// Makes a request ready for its layer. Gives how far its body has come, where that is held.
    fn enter(&self, request: &mut Request<Body>, route: &Route) -> Result<Option<Arc<Progress>>, Problem> {
        let body_max = route.body_max();
        // Without a key nothing is held, unless one may stand in the body.
        if !request.headers().contains_key(IDEMPOTENCY_KEY) && !route.reads_all() {
            return Ok(None);
        }
        let bytes = u32::try_from(size(request.headers(), body_max).min(self.room_max)).unwrap_or(u32::MAX);
        let permit = self.room.clone().try_acquire_many_owned(bytes).map_err(|_| {
            let detail = "too many bodies are held at once; nothing was looked up or run";
            Problem::busy(detail, Duration::from_secs(1)).with("code", "busy").with("retryable", true)
        })?;
        request.extensions_mut().insert(Room { _permit: Arc::new(permit) });
        let body = std::mem::take(request.body_mut());
        let (body, progress) = Sending::new(body, self.patience, Instant::now());
        *request.body_mut() = Body::new(body);
        Ok(Some(progress))
    }
}

/// How much of a body may be held: what it says it has. One that says nothing may have all there may be, and one that
/// has more is refused before it is read.
fn size(headers: &HeaderMap, most: usize) -> usize {
    let said = headers.get(CONTENT_LENGTH).map(HeaderValue::to_str);
    match said.and_then(|said| said.ok()?.parse().ok()) {
        None => most,
        Some(length) if length > most => 0,
        Some(length) => length,
    }
}

impl Service<Request<Body>> for Gate {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Passing;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, mut request: Request<Body>) -> Passing {
        let route = self.table.find(request.method(), request.uri().path());
        let note = Note::of(&request, route.map(|route| route.name().to_owned()));
        let passing: Passing = match route {
            None => self.proxy.call(request),
            Some(route) => match self.enter(&mut request, route) {
                Err(problem) => Box::pin(async move { Ok(problem.into_response()) }),
                Ok(progress) => {
                    let answering = route.service().call(request);
                    Box::pin(async move {
                        let response = answering.await?.map(Body::new);
                        // A body that is not there whole is refused by the layer, which cannot tell why.
                        let slow = progress.is_some_and(|progress| progress.fault() == Some(Fault::Slow));
                        Ok(if slow { Failure::too_slow() } else { response })
                    })
                }
            },
        };
        Box::pin(async move {
            let response = passing.await?;
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
    fn a_body_has_room_for_what_it_says_it_has() {
        for (said, room) in
            [(Some("0"), 0), (Some("70"), 70), (Some("100"), 100), (Some("101"), 0), (None, 100)]
        {
            let mut headers = HeaderMap::new();
            headers.extend(said.map(|said| (CONTENT_LENGTH, HeaderValue::from_static(said))));
            assert_eq!(size(&headers, 100), room, "{said:?}");
        }
    }
}
