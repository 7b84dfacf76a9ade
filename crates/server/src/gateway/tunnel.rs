//! Upgraded connections: WebSocket and the like, forwarded untouched.
//!
//! The gateway copies bytes both ways until either side ends, or both are silent for too long. Tunnels are counted, so that a stop can wait for them,
//! and each keeps the permit of its connection.

use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf, copy_bidirectional};
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

use crate::listen::ConnectionPermit;

/// All tunnels of a gateway.
#[derive(Debug, Clone)]
pub(super) struct Tunnels {
    open: watch::Sender<usize>,
    cut: watch::Sender<bool>,
    /// How long one may be silent.
    idle: Duration,
}

impl Tunnels {
    pub(super) fn new(idle: Duration) -> Self {
        Self { open: watch::Sender::new(0), cut: watch::Sender::new(false), idle }
    }

    /// Connects both sides once both have switched, until either ends.
    pub(super) fn dig(&self, client: OnUpgrade, upstream: OnUpgrade, place: Option<ConnectionPermit>) {
        let (open, mut cut, idle) = (self.open.clone(), self.cut.subscribe(), self.idle);
        let heard = LastHeard::default();
        open.send_modify(|open| *open += 1);
        tokio::spawn(async move {
            let talk = async {
                let (client, upstream) = tokio::try_join!(client, upstream).ok()?;
                let mut client = Heard { inner: TokioIo::new(client), last: heard.clone() };
                let mut upstream = Heard { inner: TokioIo::new(upstream), last: heard.clone() };
                copy_bidirectional(&mut client, &mut upstream).await.ok()
            };
            tokio::select! {
                // Both sides have seen the end, whatever it was.
                _ = talk => {}
                _ = cut.wait_for(|cut| *cut) => {}
                () = heard.silent_for(idle) => {}
            }
            drop(place);
            open.send_modify(|open| *open -= 1);
        });
    }

    /// Waits until none is open.
    pub(super) async fn ended(&self) {
        let _ = self.open.subscribe().wait_for(|open| *open == 0).await;
    }

    /// Closes those still open.
    pub(super) fn cut(&self) {
        self.cut.send_replace(true);
    }
}

/// When either side last sent something.
#[derive(Debug, Clone)]
struct LastHeard(Arc<Mutex<Instant>>);

impl Default for LastHeard {
    fn default() -> Self {
        Self(Arc::new(Mutex::new(Instant::now())))
    }
}

impl LastHeard {
    fn with<T>(&self, look: impl FnOnce(&mut Instant) -> T) -> T {
        look(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Waits until neither side has sent anything for `time`.
    async fn silent_for(&self, time: Duration) {
        loop {
            let end = self.with(|last| *last + time);
            if end <= Instant::now() {
                return;
            }
            sleep_until(end).await;
        }
    }
}

/// One side of a tunnel, heard of when it sends.
struct Heard<S> {
    inner: S,
    last: LastHeard,
}

impl<S: AsyncRead + Unpin> AsyncRead for Heard<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let polled = Pin::new(&mut self.inner).poll_read(cx, buf);
        if polled.is_ready() {
            self.last.with(|last| *last = Instant::now());
        }
        polled
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Heard<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.inner).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(cx)
    }
}
