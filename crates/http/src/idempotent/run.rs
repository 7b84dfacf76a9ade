//! One run of a handler: until it ends, panics, exceeds its time or the server stops; then its end is recorded.
//!
//! The handler is polled in the request's own task, so that the context of outer layers (spans, scopes) applies.

pub(super) mod lease;
pub(super) mod outcome;
pub(super) mod panic;

use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;

use bytes::Bytes;
use http::request::Parts;
use http::{Request, Response};
use http_body::Body as HttpBody;
use redrive_core::ledger::{FencedRun, RunEnding};
use tower::Service;

use super::answer::{self, Recorded};
use super::body::{Body, BoxError, Read, read};
use super::identify::KeyedRequest;
use super::layer::Shared;
use super::operation::KeyedOperation;
use crate::idempotent::run::lease::{ClaimedRecord, Lease};
use crate::idempotent::run::outcome::{Outgoing, RunEnd, is_stream, verdict};
use crate::idempotent::run::panic::CatchPanic;
use crate::idempotent::serve::permit::Permit;

/// The result of a run.
pub(super) enum RunResult<E> {
    /// The response to send.
    Outgoing(Result<Response<Body>, E>),
    /// Another run has the request.
    Lost(Option<FencedRun>),
}

/// Runs the handler, and records how it ended.
pub(super) async fn run<S, R>(
    shared: &Arc<Shared>,
    inner: S,
    (mut parts, body): (Parts, Bytes),
    known: &KeyedRequest,
    held: &ClaimedRecord,
    place: Permit,
) -> RunResult<S::Error>
where
    S: Service<Request<Body>, Response = Response<R>>,
    R: HttpBody<Data = Bytes> + Send + 'static,
    R::Error: Into<BoxError>,
{
    let record = &held.record;
    let operation = KeyedOperation::claimed(shared, &known.scope, record);
    parts.extensions.insert(operation.clone());
    let (lease, too_long) = Lease::renewed(shared, &known.scope, held);
    // A new task starts on this thread, which the handler may block; so the lease task gets its first turn now.
    tokio::task::yield_now().await;
    let handler = handle(inner, Request::from_parts(parts, Body::from(body)), shared.settings.reply_max);
    // A commit is not undone when the lease ends.
    let lapsed = poll_fn(|_| match lease.is_lapsed() && !operation.is_committed() {
        true => Poll::Ready(()),
        false => Poll::Pending,
    });
    let ended = tokio::select! {
        biased;
        () = lapsed => RunEnd::TooLong,
        ended = handler => ended,
        _ = too_long => RunEnd::TooLong,
        () = place.running.aborted() => RunEnd::Drained,
    };
    drop(lease);
    shared.pace.took(held.asked.elapsed());
    let now = shared.ledger.now();
    let (end, sent) = verdict(shared, &operation, ended, now);
    let written = match &end {
        Some(RunEnding::Completed { .. }) => Recorded::Answer,
        Some(_) => Recorded::Otherwise,
        None if operation.is_committed() => Recorded::Answer,
        None => Recorded::Perhaps,
    };
    let written = match end {
        None => written,
        Some(end) => match shared.ledger.end(known.scope.clone(), record.epoch, end).await {
            Ok(Ok(())) => written,
            Ok(Err(fenced)) => return RunResult::Lost(fenced),
            // The response is correct; only its record may be missing.
            Err(_) => Recorded::Perhaps,
        },
    };
    shared.hints.ended(&known.scope);
    match sent {
        Outgoing::Error(error) => RunResult::Outgoing(Err(error)),
        Outgoing::Answer(mut response) => {
            answer::ran(response.headers_mut(), known, record.attempt, written, now);
            RunResult::Outgoing(Ok(response))
        }
    }
}

/// Calls the handler and reads its response up to the stored size. Panics are caught.
pub(super) async fn handle<S, R>(mut inner: S, request: Request<Body>, reply_max: usize) -> RunEnd<S::Error>
where
    S: Service<Request<Body>, Response = Response<R>>,
    R: HttpBody<Data = Bytes> + Send + 'static,
    R::Error: Into<BoxError>,
{
    // Called inside, so that a panic in `call` is caught like one of its future.
    let handling = CatchPanic::new(async move {
        let (parts, body) = match inner.call(request).await {
            Ok(response) => response.into_parts(),
            Err(error) => return RunEnd::Failed(error),
        };
        let read = if is_stream(&parts.headers) {
            Read::Larger(Body::stream(body))
        } else {
            read(body, reply_max).await
        };
        RunEnd::Answered(Box::new(parts), read)
    });
    handling.await.unwrap_or(RunEnd::Panicked)
}
