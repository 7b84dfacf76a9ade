//! Graceful stop: no new runs, time for those in progress, and a recorded end for the rest.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;

/// How far a stop has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct State {
    running: usize,
    closed: bool,
    aborted: bool,
}

/// The result of a drain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DrainReport {
    /// The number of runs that were aborted and recorded as retriable or unknown.
    pub aborted: usize,
}

/// Counts runs, and aborts them on request.
#[derive(Debug)]
pub(super) struct Drain(watch::Sender<State>);

impl Default for Drain {
    fn default() -> Self {
        Self(watch::Sender::new(State::default()))
    }
}

impl Drain {
    /// Registers a run; `None` if closed.
    pub(super) fn enter(self: &Arc<Self>) -> Option<Running> {
        let mut open = true;
        self.0.send_if_modified(|state| {
            open = !state.closed;
            state.running += usize::from(open);
            false
        });
        open.then(|| Running(Arc::clone(self)))
    }

    /// Whether no new runs are taken.
    pub(super) fn is_closed(&self) -> bool {
        self.0.borrow().closed
    }

    /// Closes, waits up to `grace` for runs in progress, then aborts the rest and waits until their ends are
    /// recorded.
    pub(super) async fn drain(&self, grace: Duration) -> DrainReport {
        self.0.send_modify(|state| state.closed = true);
        let mut states = self.0.subscribe();
        let idle = |state: &State| state.running == 0;
        if tokio::time::timeout(grace, states.wait_for(idle)).await.is_ok() {
            return DrainReport { aborted: 0 };
        }
        let mut aborted = 0;
        self.0.send_modify(|state| {
            state.aborted = true;
            aborted = state.running;
        });
        // Each run records its end and leaves; a ledger that does not respond gives an error, which ends it too.
        let _ = states.wait_for(idle).await;
        DrainReport { aborted }
    }
}

/// A run in progress.
#[derive(Debug)]
pub(super) struct Running(Arc<Drain>);

impl Running {
    /// Resolves when the run must end.
    pub(super) async fn aborted(&self) {
        let mut states = self.0.0.subscribe();
        let _ = states.wait_for(|state| state.aborted).await;
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.0.0.send_if_modified(|state| {
            state.running -= 1;
            state.running == 0
        });
    }
}
