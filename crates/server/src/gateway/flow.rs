//! Bodies on their way through, watched: whether the client still sends, and whether the upstream still has time.
//!
//! Nothing is kept here. A piece is read from one side when the other takes it, so that a slow reader slows its
//! writer down and a body of any size costs one piece of memory. What is watched is who is waited for: a client that
//! sends nothing has its own time, and does not use up the upstream's.

use std::error::Error;
use std::fmt;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::Body;
use bytes::Bytes;
use futures_util::stream::{self, StreamExt as _};
use http_body_util::{BodyDataStream, BodyExt as _};
use hyper::body::{Frame, Incoming, SizeHint};
use tokio::time::{Instant, Sleep, sleep, sleep_until};

/// How far a request's body has come.
#[derive(Debug)]
pub(super) struct Progress(Mutex<State>);

#[derive(Debug, Clone, Copy)]
struct State {
    /// When the upstream last took something, or may have begun to.
    since: Instant,
    /// The next piece has not come from the client yet.
    waits: bool,
    fault: Option<Fault>,
}

/// What is wrong with what a client sends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fault {
    /// Nothing came for too long.
    Slow,
    /// It broke off.
    Broken,
}

impl Progress {
    /// Of a request that is about to be sent; the upstream's time begins then.
    fn new(since: Instant) -> Self {
        Self(Mutex::new(State { since, waits: false, fault: None }))
    }

    fn with<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        change(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// What the client did wrong, if it did.
    pub(super) fn fault(&self) -> Option<Fault> {
        self.with(|state| state.fault)
    }

    /// Waits until the upstream has been waited for, and for nobody else, for `time`.
    pub(super) async fn stalled(&self, time: Duration) {
        loop {
            let State { since, waits, .. } = self.with(|state| *state);
            if !waits && since + time <= Instant::now() {
                return;
            }
            // One that waits for its client is looked at again; the client's own time bounds that.
            sleep_until(if waits { Instant::now() + time } else { since + time }).await;
        }
    }
}

/// A request's body on its way to the upstream.
#[derive(Debug)]
pub(super) struct Sending {
    body: Body,
    progress: Arc<Progress>,
    /// How long the client may send nothing.
    patience: Duration,
    waiting: Option<Pin<Box<Sleep>>>,
}

impl Sending {
    /// Watches a body. The upstream's time begins at `since`.
    pub(super) fn new(body: Body, patience: Duration, since: Instant) -> (Self, Arc<Progress>) {
        let progress = Arc::new(Progress::new(since));
        (Self { body, progress: progress.clone(), patience, waiting: None }, progress)
    }

    fn fails(&self, fault: Fault) -> Poll<Option<Result<Frame<Bytes>, Cut>>> {
        self.progress.with(|state| state.fault = Some(fault));
        Poll::Ready(Some(Err(Cut("the client's request was not sent whole"))))
    }
}

impl hyper::body::Body for Sending {
    type Data = Bytes;
    type Error = Cut;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Cut>>> {
        let polled = Pin::new(&mut self.body).poll_frame(cx);
        let waits = polled.is_pending();
        self.progress.with(|state| {
            if state.waits || !waits {
                state.since = state.since.max(Instant::now());
            }
            state.waits = waits;
        });
        match polled {
            Poll::Ready(piece) => {
                self.waiting = None;
                match piece {
                    Some(Err(_)) => self.fails(Fault::Broken),
                    Some(Ok(piece)) => Poll::Ready(Some(Ok(piece))),
                    None => Poll::Ready(None),
                }
            }
            Poll::Pending => {
                let patience = self.patience;
                let waiting = self.waiting.get_or_insert_with(|| Box::pin(sleep(patience)));
                if waiting.as_mut().poll(cx).is_ready() { self.fails(Fault::Slow) } else { Poll::Pending }
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// An answer's body, cut off at its end of time.
#[derive(Debug)]
pub(super) struct Within {
    body: Body,
    end: Pin<Box<Sleep>>,
}

impl Within {
    pub(super) fn new(body: Body, end: Instant) -> Self {
        Self { body, end: Box::pin(sleep_until(end)) }
    }
}

impl hyper::body::Body for Within {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        if self.end.as_mut().poll(cx).is_ready() {
            return Poll::Ready(Some(Err(axum::Error::new(Cut("the answer took too long")))));
        }
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// An answer's body, once it is whole or larger than `most`: what was read goes before the rest.
///
/// # Errors
/// Where it breaks off before.
pub(super) async fn begun(mut body: Incoming, most: usize) -> Result<Body, hyper::Error> {
    let (mut pieces, mut size) = (Vec::new(), 0);
    while size <= most {
        match body.frame().await.transpose()? {
            None => {
                return Ok(Body::from_stream(stream::iter(
                    pieces.into_iter().map(Ok::<Bytes, hyper::Error>),
                )));
            }
            Some(frame) => {
                // Trailers are not kept.
                if let Ok(piece) = frame.into_data() {
                    size = size.saturating_add(piece.len());
                    pieces.push(piece);
                }
            }
        }
    }
    let read = stream::iter(pieces.into_iter().map(Ok));
    Ok(Body::from_stream(read.chain(BodyDataStream::new(body))))
}

/// Why a body ends before its end.
#[derive(Debug, Clone, Copy)]
pub(super) struct Cut(&'static str);

impl fmt::Display for Cut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}

impl Error for Cut {}
