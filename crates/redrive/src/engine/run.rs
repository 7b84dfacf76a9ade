//! Running until told to stop, and stopping.

use std::time::Duration;

use redrive_store::StoreError;

use super::{Redrive, StartError};

/// How a stop went.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stopping {
    /// Whether every attempt under way ended within the grace. Those that did not are made again after the
    /// next start, and are not charged.
    pub all_ended: bool,
}

pub(super) async fn drain(redrive: &Redrive, grace: Duration) -> Stopping {
    let all_ended = match redrive.0.conductor.get() {
        Some(conductor) => conductor.stop(grace).await,
        None => true,
    };
    Stopping { all_ended }
}

pub(super) async fn shutdown(redrive: &Redrive, grace: Duration) -> Result<Stopping, StoreError> {
    let stopping = drain(redrive, grace).await;
    redrive.store().close().await?;
    Ok(stopping)
}

pub(super) async fn until_signal(redrive: &Redrive, grace: Duration) -> Result<Stopping, StartError> {
    // First, so that a signal during recovery is not the end of the process.
    let mut signals = Signals::new().map_err(StartError::Signal)?;
    match redrive.start().await {
        Ok(()) | Err(StartError::Twice) => {}
        Err(error) => return Err(error),
    }
    tokio::select! {
        () = signals.next() => {}
        error = redrive.failed() => return Err(StartError::Store(error)),
    }
    tokio::select! {
        stopping = shutdown(redrive, grace) => Ok(stopping?),
        // At once: what is under way is given up.
        () = signals.next() => Ok(shutdown(redrive, Duration::ZERO).await?),
    }
}

/// Ctrl-C, and on Unix also SIGTERM.
struct Signals {
    #[cfg(unix)]
    terminate: tokio::signal::unix::Signal,
    #[cfg(unix)]
    interrupt: tokio::signal::unix::Signal,
}

impl Signals {
    #[cfg(unix)]
    fn new() -> std::io::Result<Self> {
        use tokio::signal::unix::{SignalKind, signal};

        Ok(Self { terminate: signal(SignalKind::terminate())?, interrupt: signal(SignalKind::interrupt())? })
    }

    #[cfg(not(unix))]
    fn new() -> std::io::Result<Self> {
        Ok(Self {})
    }

    #[cfg(unix)]
    async fn next(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }

    #[cfg(not(unix))]
    async fn next(&mut self) {
        let _ = tokio::signal::ctrl_c().await;
    }
}
