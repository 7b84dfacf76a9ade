//! Connections that go on in another protocol: WebSocket and the like, passed through untouched.
//!
//! The gateway takes no part in what is said: bytes go both ways until either side ends. Tunnels are counted, so that
//! a stop can wait for them, and each keeps the place of the connection that it was.

use http::header::{CONNECTION, UPGRADE};
use http::{HeaderMap, HeaderValue};
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use tokio::io::copy_bidirectional;
use tokio::sync::watch;

use crate::listen::Place;

/// All tunnels of a gateway.
#[derive(Debug, Clone)]
pub(super) struct Tunnels {
    open: watch::Sender<usize>,
    cut: watch::Sender<bool>,
}

impl Tunnels {
    pub(super) fn new() -> Self {
        Self { open: watch::Sender::new(0), cut: watch::Sender::new(false) }
    }

    /// Connects both sides once both have switched, until either ends.
    pub(super) fn dig(&self, client: OnUpgrade, upstream: OnUpgrade, place: Option<Place>) {
        let (open, mut cut) = (self.open.clone(), self.cut.subscribe());
        open.send_modify(|open| *open += 1);
        tokio::spawn(async move {
            let talk = async {
                let (client, upstream) = tokio::try_join!(client, upstream).ok()?;
                copy_bidirectional(&mut TokioIo::new(client), &mut TokioIo::new(upstream)).await.ok()
            };
            tokio::select! {
                // Both sides have seen the end, whatever it was.
                _ = talk => {}
                _ = cut.wait_for(|cut| *cut) => {}
            }
            drop(place);
            open.send_modify(|open| *open -= 1);
        });
    }

    /// Waits until none is open.
    pub(super) async fn ended(&self) {
        let _ = self.open.subscribe().wait_for(|open| *open == 0).await;
    }

    /// Ends those that are still open.
    pub(super) fn cut(&self) {
        self.cut.send_replace(true);
    }
}

/// Says to the client that it may go on in the upstream's protocol.
pub(super) fn agree(headers: &mut HeaderMap, protocol: Option<HeaderValue>) {
    headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
    if let Some(protocol) = protocol {
        headers.insert(UPGRADE, protocol);
    }
}
