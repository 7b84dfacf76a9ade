//! Stopping: no new runs, time for those under way, and an end that is recorded for what is left.

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

/// What became of the runs that were under way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Drained {
    /// How many were ended, and recorded as ones that may run again or that nobody knows of.
    pub aborted: usize,
}

/// Counts runs, and tells them to end.
#[derive(Debug)]
pub(super) struct Drain(watch::Sender<State>);

impl Default for Drain {
    fn default() -> Self {
        Self(watch::Sender::new(State::default()))
    }
}

impl Drain {
    /// A run begins; none where it is closed.
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

    /// No new runs; waits for those under way, then ends them, and waits until that is recorded.
    pub(super) async fn drain(&self, grace: Duration) -> Drained {
        self.0.send_modify(|state| state.closed = true);
        let mut states = self.0.subscribe();
        let idle = |state: &State| state.running == 0;
        if tokio::time::timeout(grace, states.wait_for(idle)).await.is_ok() {
            return Drained { aborted: 0 };
        }
        let mut aborted = 0;
        self.0.send_modify(|state| {
            state.aborted = true;
            aborted = state.running;
        });
        // Each records its end and leaves; a ledger that does not answer gives an error, and that is an end as well.
        let _ = states.wait_for(idle).await;
        Drained { aborted }
    }
}

/// A run under way.
#[derive(Debug)]
pub(super) struct Running(Arc<Drain>);

impl Running {
    /// Comes when the run is to end.
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
