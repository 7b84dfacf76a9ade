//! One run of a handler: to its end, its panic, the end of its time or of the server, and what is then recorded.
//!
//! The handler is polled where the request is, so that what the layers around this one set up for it (spans, scopes)
//! is there.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;

use bytes::Bytes;
use http::request::Parts;
use http::{Request, Response};
use http_body::Body as HttpBody;
use redrive_core::ledger::{End, Fenced};
use tower::Service;

use super::answer::{self, Written};
use super::body::{Body, BoxError, Read, read};
use super::caught::Caught;
use super::identify::Known;
use super::layer::Shared;
use super::lease::{Held, Lease};
use super::operation::Operation;
use super::outcome::{Ended, Sent, is_stream, verdict};
use super::place::Place;

/// What came of a run.
pub(super) enum Ran<E> {
    /// This is to be sent.
    Sent(Result<Response<Body>, E>),
    /// Another run has the request.
    Lost(Option<Fenced>),
}

/// Runs the handler, and records how it ended.
pub(super) async fn run<S, R>(
    shared: &Arc<Shared>,
    inner: S,
    (mut parts, body): (Parts, Bytes),
    known: &Known,
    held: &Held,
    place: Place,
) -> Ran<S::Error>
where
    S: Service<Request<Body>, Response = Response<R>>,
    R: HttpBody<Data = Bytes> + Send + 'static,
    R::Error: Into<BoxError>,
{
    let record = &held.record;
    let operation = Operation::claimed(shared, &known.scope, record);
    parts.extensions.insert(operation.clone());
    let (lease, too_long) = Lease::renewed(shared, &known.scope, held);
    // A task that was just made waits for its own thread, which the handler may keep; so it has its turn first.
    tokio::task::yield_now().await;
    let handler = handle(inner, Request::from_parts(parts, Body::from(body)), shared.settings.reply_max);
    // What is committed is not undone by the end of its lease.
    let lapsed = poll_fn(|_| match lease.is_lapsed() && !operation.is_committed() {
        true => Poll::Ready(()),
        false => Poll::Pending,
    });
    let ended = tokio::select! {
        biased;
        () = lapsed => Ended::TooLong,
        ended = handler => ended,
        _ = too_long => Ended::TooLong,
        () = place.running.aborted() => Ended::Drained,
    };
    drop(lease);
    shared.pace.took(held.asked.elapsed());
    let now = shared.ledger.now();
    let (end, sent) = verdict(shared, &operation, ended, now);
    let written = match &end {
        Some(End::Completed { .. }) => Written::Answer,
        Some(_) => Written::Otherwise,
        None if operation.is_committed() => Written::Answer,
        None => Written::Perhaps,
    };
    let written = match end {
        None => written,
        Some(end) => match shared.ledger.end(known.scope.clone(), record.epoch, end).await {
            Ok(Ok(())) => written,
            Ok(Err(fenced)) => return Ran::Lost(fenced),
            // What is sent is true; that it happened may be asked again.
            Err(_) => Written::Perhaps,
        },
    };
    shared.hints.ended(&known.scope);
    match sent {
        Sent::Error(error) => Ran::Sent(Err(error)),
        Sent::Answer(mut response) => {
            answer::ran(response.headers_mut(), known, record.attempt, written, now);
            Ran::Sent(Ok(response))
        }
    }
}

/// Calls the handler and reads its answer, as far as it is kept. Panics are caught.
pub(super) async fn handle<S, R>(mut inner: S, request: Request<Body>, reply_max: usize) -> Ended<S::Error>
where
    S: Service<Request<Body>, Response = Response<R>>,
    R: HttpBody<Data = Bytes> + Send + 'static,
    R::Error: Into<BoxError>,
{
    // Called inside, so that its panics are caught like those of its future.
    let handling = Caught::new(async move {
        let (parts, body) = match inner.call(request).await {
            Ok(response) => response.into_parts(),
            Err(error) => return Ended::Failed(error),
        };
        let read = if is_stream(&parts.headers) {
            Read::Larger(Body::stream(body))
        } else {
            read(body, reply_max).await
        };
        Ended::Answered(Box::new(parts), read)
    });
    handling.await.unwrap_or(Ended::Panicked)
}
