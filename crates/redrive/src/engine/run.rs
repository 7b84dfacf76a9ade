//! Running until a signal, and stopping.

use std::time::Duration;

use redrive_store::StoreError;

use super::{Redrive, StartError};

/// The result of a stop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StopReport {
    /// Whether every running attempt ended within the grace. The others run again after the next start, and are not
    /// charged.
    pub all_ended: bool,
}

pub(super) async fn drain(redrive: &Redrive, grace: Duration) -> StopReport {
    let all_ended = match redrive.0.driver.get() {
        Some(driver) => driver.stop(grace).await,
        None => true,
    };
    StopReport { all_ended }
}

pub(super) async fn shutdown(redrive: &Redrive, grace: Duration) -> Result<StopReport, StoreError> {
    let stopping = drain(redrive, grace).await;
    redrive.store().close().await?;
    Ok(stopping)
}

pub(super) async fn until_signal(redrive: &Redrive, grace: Duration) -> Result<StopReport, StartError> {
    // First, so that a signal during recovery does not kill the process.
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
        // At once: running attempts are abandoned.
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
