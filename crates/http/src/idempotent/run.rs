//! One run of a handler: to its end, its panic, the end of its time or of the server, and what is then recorded.
//!
//! The handler is polled where the request is, so that what the layers around this one set up for it (spans, scopes)
//! is there; the lease is renewed by a task of its own, so that a handler that keeps its thread busy does not lose it.

use std::sync::Arc;

use bytes::Bytes;
use http::request::Parts;
use http::{Request, Response};
use http_body::Body as HttpBody;
use redrive_core::ledger::{Fenced, Record, Renewed, Scope};
use tokio::sync::oneshot;
use tokio::time::Instant;
use tower::Service;

use super::answer;
use super::body::{Body, BoxError, Read, read};
use super::caught::Caught;
use super::drain::Running;
use super::identify::Known;
use super::layer::Shared;
use super::operation::Operation;
use super::outcome::{Ended, Sent, is_stream, verdict};

/// How many times a lease is renewed before it would be over: two may be lost.
const RENEWALS: u32 = 3;

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
    record: &Record,
    running: Running,
) -> Ran<S::Error>
where
    S: Service<Request<Body>, Response = Response<R>>,
    R: HttpBody<Data = Bytes> + Send + 'static,
    R::Error: Into<BoxError>,
{
    let operation = Operation::claimed(shared, &known.scope, record);
    parts.extensions.insert(operation.clone());
    let began = Instant::now();
    let (lease, too_long) = Lease::renewed(shared, known.scope.clone(), record.epoch, began);
    // A task that was just made waits for its own thread, which the handler may keep; so it has its turn first.
    tokio::task::yield_now().await;
    let handler = handle(inner, Request::from_parts(parts, Body::from(body)), shared.settings.reply_max);
    let ended = tokio::select! {
        biased;
        ended = handler => ended,
        Ok(()) = too_long => Ended::TooLong,
        () = running.aborted() => Ended::Drained,
    };
    drop(lease);
    shared.pace.took(began.elapsed());
    let now = shared.ledger.now();
    let (end, sent) = verdict(shared, &operation, ended, now);
    let recorded = match end {
        None => true,
        Some(end) => match shared.ledger.end(known.scope.clone(), record.epoch, end).await {
            Ok(Ok(())) => true,
            Ok(Err(fenced)) => return Ran::Lost(fenced),
            // What is sent is true; that it happened may be asked again.
            Err(_) => false,
        },
    };
    shared.hints.ended(&known.scope);
    match sent {
        Sent::Error(error) => Ran::Sent(Err(error)),
        Sent::Answer(mut response) => {
            answer::ran(response.headers_mut(), known, record.attempt, recorded, now);
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

/// A lease that is renewed for as long as this is there.
struct Lease(tokio::task::JoinHandle<()>);

impl Lease {
    fn renewed(
        shared: &Arc<Shared>,
        scope: Scope,
        epoch: u64,
        began: Instant,
    ) -> (Self, oneshot::Receiver<()>) {
        let (too_long, told) = oneshot::channel();
        let shared = Arc::clone(shared);
        let renewing = async move {
            let (lease, max_run) = (shared.settings.lease, shared.settings.max_run);
            let end = began + max_run;
            let mut next = began;
            loop {
                next = (next + lease / RENEWALS).min(end);
                tokio::time::sleep_until(next).await;
                // Also by the time of this process, for a ledger that does not answer.
                if next >= end {
                    break;
                }
                match shared.ledger.renew(scope.clone(), epoch, lease, max_run).await {
                    Ok(Ok(Renewed::TooLong)) => break,
                    // Taken over, or ended by its own commit. The handler goes to its end, and is told there.
                    Ok(Err(_)) => return,
                    Ok(Ok(Renewed::On(_))) | Err(_) => {}
                }
            }
            let _ = too_long.send(());
        };
        (Self(tokio::spawn(renewing)), told)
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.0.abort();
    }
}
