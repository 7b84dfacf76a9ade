//! Bodies on their way through, watched: whether the client still sends, and whether the upstream still has time.
//!
//! Nothing is buffered. A chunk is read from one side when the other takes it, so that a slow reader slows its writer
//! and a body of any size costs one chunk of memory. The watch distinguishes who is waited for: a client that sends
//! nothing uses its own time, not the upstream's.

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

use super::room::HeldBytes;

/// How far a request's body has come.
#[derive(Debug)]
pub(super) struct Progress(Mutex<State>);

#[derive(Debug, Clone, Copy)]
struct State {
    /// When the upstream last took something, or could have begun to.
    since: Instant,
    /// The next piece has not come from the client yet.
    waits: bool,
    fault: Option<ClientFault>,
}

/// An error of the client's request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ClientFault {
    /// Nothing came for too long.
    Slow,
    /// It broke off.
    Broken,
    /// There is no room to hold more of it.
    NoRoom,
}

impl Progress {
    fn new() -> Self {
        Self(Mutex::new(State { since: Instant::now(), waits: false, fault: None }))
    }

    fn with<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        change(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// The client's error, if any.
    pub(super) fn fault(&self) -> Option<ClientFault> {
        self.with(|state| state.fault)
    }

    /// The upstream is connected: its time starts now.
    pub(super) fn connected(&self) {
        self.with(|state| state.since = state.since.max(Instant::now()));
    }

    /// Waits until the upstream alone has been waited for, for `time`.
    pub(super) async fn stalled(&self, time: Duration) {
        loop {
            let State { since, waits, .. } = self.with(|state| *state);
            if !waits && since + time <= Instant::now() {
                return;
            }
            // A request that waits for its client is checked again; the client's own time limit bounds that.
            sleep_until(if waits { Instant::now() + time } else { since + time }).await;
        }
    }
}

/// A request's body on its way to the upstream.
#[derive(Debug)]
pub(super) struct UploadBody {
    body: Body,
    progress: Arc<Progress>,
    /// How long the client may send nothing.
    patience: Duration,
    waiting: Option<Pin<Box<Sleep>>>,
    held: Option<Held>,
}

/// The bounds of a body that is held whole.
#[derive(Debug)]
struct Held {
    bytes: Arc<HeldBytes>,
    /// When it has to be there, however steadily it comes.
    end: Pin<Box<Sleep>>,
}

impl UploadBody {
    /// Watches a body.
    pub(super) fn new(body: Body, patience: Duration) -> (Self, Arc<Progress>) {
        let progress = Arc::new(Progress::new());
        (Self { body, progress: progress.clone(), patience, waiting: None, held: None }, progress)
    }

    /// A body that is held whole: it takes room as it arrives, and has until `end`.
    pub(super) fn held(mut self, bytes: Arc<HeldBytes>, end: Instant) -> Self {
        self.held = Some(Held { bytes, end: Box::pin(sleep_until(end)) });
        self
    }

    /// The bounds that a piece of a held body has exceeded.
    fn exceeded(&mut self, cx: &mut Context<'_>, piece: Option<&Frame<Bytes>>) -> Option<ClientFault> {
        let held = self.held.as_mut()?;
        let chunk = piece.map(|piece| piece.data_ref().map_or(0, Bytes::len));
        match chunk {
            Some(chunk) if !held.bytes.take(chunk) => Some(ClientFault::NoRoom),
            _ => held.end.as_mut().poll(cx).is_ready().then_some(ClientFault::Slow),
        }
    }

    fn fails(&self, fault: ClientFault) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        self.progress.with(|state| state.fault = Some(fault));
        Poll::Ready(Some(Err(BodyError("the client did not send its whole request"))))
    }
}

impl hyper::body::Body for UploadBody {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
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
                    Some(Err(_)) => self.fails(ClientFault::Broken),
                    Some(Ok(piece)) => match self.exceeded(cx, Some(&piece)) {
                        Some(fault) => self.fails(fault),
                        None => Poll::Ready(Some(Ok(piece))),
                    },
                    None => Poll::Ready(None),
                }
            }
            Poll::Pending => {
                if let Some(fault) = self.exceeded(cx, None) {
                    return self.fails(fault);
                }
                let patience = self.patience;
                let waiting = self.waiting.get_or_insert_with(|| Box::pin(sleep(patience)));
                if waiting.as_mut().poll(cx).is_ready() {
                    self.fails(ClientFault::Slow)
                } else {
                    Poll::Pending
                }
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
pub(super) struct DeadlineBody {
    body: Body,
    end: Pin<Box<Sleep>>,
}

impl DeadlineBody {
    pub(super) fn new(body: Body, end: Instant) -> Self {
        Self { body, end: Box::pin(sleep_until(end)) }
    }
}

impl hyper::body::Body for DeadlineBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        if self.end.as_mut().poll(cx).is_ready() {
            return Poll::Ready(Some(Err(axum::Error::new(BodyError("the response took too long")))));
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

/// A response body, once it is complete, exceeds `most` or finds no room: the bytes read are put in front of the rest.
///
/// # Errors
/// If it breaks off before.
pub(super) async fn begun(mut body: Incoming, most: usize, held: &HeldBytes) -> Result<Body, hyper::Error> {
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
                    let has_room = held.take(piece.len());
                    size = size.saturating_add(piece.len());
                    pieces.push(piece);
                    if !has_room {
                        break;
                    }
                }
            }
        }
    }
    let is_large = size > most;
    let read = stream::iter(pieces.into_iter().map(Ok));
    let rest = Body::from_stream(read.chain(BodyDataStream::new(body)));
    Ok(if is_large { rest } else { Body::new(Unkept { body: rest, most }) })
}

/// A response body that is passed on without being kept: it says that it is longer than what may be kept, so that the
/// layer does not collect it either.
#[derive(Debug)]
struct Unkept {
    body: Body,
    most: usize,
}

impl hyper::body::Body for Unkept {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        let mut hint = SizeHint::new();
        hint.set_lower(u64::try_from(self.most).unwrap_or(u64::MAX).saturating_add(1));
        hint
    }
}

/// A reply on its way to a client, with its room until the client has taken it.
#[derive(Debug)]
pub(super) struct HeldBody {
    body: Body,
    _held: Arc<HeldBytes>,
}

impl HeldBody {
    pub(super) fn new(body: Body, held: Arc<HeldBytes>) -> Self {
        Self { body, _held: held }
    }
}

impl hyper::body::Body for HeldBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// Why a body ends before its end.
#[derive(Debug, Clone, Copy)]
pub(super) struct BodyError(&'static str);

impl fmt::Display for BodyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}

impl Error for BodyError {}
