//! The handle of the loop: what is asked of it, and how it answers.

use std::time::Duration;

use redrive_core::entry::{Entry, Seq};
use redrive_store::StoreError;
use tokio::sync::{mpsc, oneshot, watch};

/// What the handle asks of the loop.
#[derive(Debug)]
pub(super) enum Command {
    IsRunning(Seq, oneshot::Sender<bool>),
    /// All that run now.
    Running(oneshot::Sender<Vec<Entry>>),
    /// An order was given: tells when it is heeded.
    Heed(oneshot::Sender<()>),
    Idle(oneshot::Sender<()>),
    Stop(Duration, oneshot::Sender<bool>),
}

/// The handle of the loop.
#[derive(Debug)]
pub(super) struct Conductor {
    pub(super) commands: mpsc::UnboundedSender<Command>,
    pub(super) failed: watch::Receiver<Option<StoreError>>,
}

impl Conductor {
    pub(super) async fn is_running(&self, seq: Seq) -> bool {
        let (ask, answer) = oneshot::channel();
        self.commands.send(Command::IsRunning(seq, ask)).is_ok() && answer.await.unwrap_or(false)
    }

    pub(super) async fn running(&self) -> Vec<Entry> {
        let (ask, answer) = oneshot::channel();
        let asked = self.commands.send(Command::Running(ask)).is_ok();
        if asked { answer.await.unwrap_or_default() } else { Vec::new() }
    }

    /// Waits until what was ordered before is heeded: nothing starts any more that is not to.
    pub(super) async fn heed(&self) {
        let (ask, answer) = oneshot::channel();
        if self.commands.send(Command::Heed(ask)).is_ok() {
            let _ = answer.await;
        }
    }

    pub(super) async fn idle(&self) {
        let (ask, answer) = oneshot::channel();
        if self.commands.send(Command::Idle(ask)).is_ok() {
            let _ = answer.await;
        }
    }

    /// Stops; tells whether nothing was left under way. One that has stopped has nothing under way.
    pub(super) async fn stop(&self, grace: Duration) -> bool {
        let (ask, answer) = oneshot::channel();
        self.commands.send(Command::Stop(grace, ask)).is_err() || answer.await.unwrap_or(true)
    }

    /// Whether it has stopped.
    pub(super) fn is_over(&self) -> bool {
        self.commands.is_closed()
    }

    pub(super) async fn failed(&self) -> StoreError {
        let mut failed = self.failed.clone();
        let error = failed.wait_for(Option::is_some).await.ok().and_then(|error| error.clone());
        match error {
            Some(error) => error,
            // It stopped because it was told to.
            None => std::future::pending().await,
        }
    }
}
