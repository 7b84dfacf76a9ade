//! The handle of the driver: the requests to the loop and their answers.

use std::time::Duration;

use redrive_core::queue_entry::{QueueEntry, Seq};
use redrive_store::StoreError;
use tokio::sync::{mpsc, oneshot, watch};

/// A request to the loop.
#[derive(Debug)]
pub(in crate::engine) enum Command {
    IsRunning(Seq, oneshot::Sender<bool>),
    /// All events that run now.
    Running(oneshot::Sender<Vec<QueueEntry>>),
    /// An operator's command was committed: answers when the scheduler follows it.
    Heed(oneshot::Sender<()>),
    Idle(oneshot::Sender<()>),
    /// Makes a shard forget its work, as a bug would: a test of the watchdog.
    Stall(u32),
    Stop(Duration, oneshot::Sender<bool>),
}

/// The handle of the loop.
#[derive(Debug)]
pub(in crate::engine) struct DriverHandle {
    pub(in crate::engine) commands: mpsc::UnboundedSender<Command>,
    pub(in crate::engine) failed: watch::Receiver<Option<StoreError>>,
}

impl DriverHandle {
    pub(in crate::engine) async fn is_running(&self, seq: Seq) -> bool {
        let (ask, answer) = oneshot::channel();
        self.commands.send(Command::IsRunning(seq, ask)).is_ok() && answer.await.unwrap_or(false)
    }

    pub(in crate::engine) async fn running(&self) -> Vec<QueueEntry> {
        let (ask, answer) = oneshot::channel();
        let asked = self.commands.send(Command::Running(ask)).is_ok();
        if asked { answer.await.unwrap_or_default() } else { Vec::new() }
    }

    /// Waits until the scheduler follows all earlier commands: no attempt starts that they forbid.
    pub(in crate::engine) async fn heed(&self) {
        let (ask, answer) = oneshot::channel();
        if self.commands.send(Command::Heed(ask)).is_ok() {
            let _ = answer.await;
        }
    }

    pub(in crate::engine) async fn idle(&self) {
        let (ask, answer) = oneshot::channel();
        if self.commands.send(Command::Idle(ask)).is_ok() {
            let _ = answer.await;
        }
    }

    /// Stops, and returns whether every attempt ended. A driver that has stopped has none under way.
    pub(in crate::engine) async fn stop(&self, grace: Duration) -> bool {
        let (ask, answer) = oneshot::channel();
        self.commands.send(Command::Stop(grace, ask)).is_err() || answer.await.unwrap_or(true)
    }

    /// Whether it has stopped.
    pub(in crate::engine) fn is_over(&self) -> bool {
        self.commands.is_closed()
    }

    pub(in crate::engine) async fn failed(&self) -> StoreError {
        let mut failed = self.failed.clone();
        let error = failed.wait_for(Option::is_some).await.ok().and_then(|error| error.clone());
        match error {
            Some(error) => error,
            // It stopped on request.
            None => std::future::pending().await,
        }
    }
}
