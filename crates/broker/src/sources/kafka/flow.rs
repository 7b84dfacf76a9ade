//! A flow: one consumer group member with its threads. A source has one for its topic, and one for its retry topics.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{self, Sender};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use redrive_core::Moment;
use tokio::sync::futures::Notified;
use tokio::sync::{Notify, oneshot};

use super::commit::{self, Job};
use super::poll;
use super::settings::KafkaSettings;
use super::state::FlowState;
use crate::clock::WallClock;
use crate::message::Partition;
use crate::source::{AssignmentEvent, Lag, Receipt, Received, Settled, Settlement, SourceError};

/// A flow.
#[derive(Debug)]
pub(super) struct Flow {
    shared: Arc<Shared>,
    jobs: Sender<Job>,
}

/// What the threads of a flow share.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) settings: Arc<KafkaSettings>,
    pub(super) group: String,
    pub(super) topics: Vec<String>,
    pub(super) clock: WallClock,
    state: Mutex<FlowState>,
    /// Held while a commit is under way, and while partitions are revoked: a commit never outlives its assignment.
    ownership: Mutex<()>,
    pub(super) arrived: Notify,
    pub(super) stopping: AtomicBool,
    /// Leave the group and join again, because the outcome of a plain commit is unknown: the new generation fences it.
    pub(super) rejoin: AtomicBool,
    /// The largest record that every topic of copies takes.
    pub(super) message_bytes_max: AtomicUsize,
    /// Told when the polling thread has left.
    pub(super) left: Notify,
}

impl Shared {
    pub(super) fn state(&self) -> MutexGuard<'_, FlowState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn ownership(&self) -> MutexGuard<'_, ()> {
        self.ownership.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::SeqCst)
    }

    pub(super) fn fail(&self, error: SourceError) {
        self.state().failed.get_or_insert(error);
        self.arrived.notify_waiters();
    }
}

impl Flow {
    pub(super) fn start(
        settings: &Arc<KafkaSettings>,
        group: &str,
        topics: Vec<String>,
        clock: WallClock,
        message_bytes_max: usize,
    ) -> Result<Self, SourceError> {
        let shared = Arc::new(Shared {
            settings: Arc::clone(settings),
            group: group.to_owned(),
            topics,
            clock,
            state: Mutex::default(),
            ownership: Mutex::new(()),
            arrived: Notify::new(),
            stopping: AtomicBool::new(false),
            rejoin: AtomicBool::new(false),
            message_bytes_max: AtomicUsize::new(message_bytes_max),
            left: Notify::new(),
        });
        let consumer = Arc::new(poll::join(&shared)?);
        let (jobs, line) = mpsc::channel();
        let spawn = |name: &str, run: Box<dyn FnOnce() + Send>| {
            let thread = std::thread::Builder::new().name(format!("redrive-kafka-{name}"));
            thread.spawn(run).map_err(|error| SourceError::Failed(error.to_string()))
        };
        let (its, member) = (Arc::clone(&shared), Arc::clone(&consumer));
        spawn("commit", Box::new(move || commit::run(&its, &member, &line)))?;
        let its = Arc::clone(&shared);
        spawn("poll", Box::new(move || poll::run(&its, consumer)))?;
        Ok(Self { shared, jobs })
    }

    /// Waits for a message, a failure, or a change of an assignment.
    pub(super) fn arrived(&self) -> Notified<'_> {
        self.shared.arrived.notified()
    }

    pub(super) fn take(&self, max: usize, now: Moment) -> Result<Vec<Received>, SourceError> {
        let mut state = self.shared.state();
        match &state.failed {
            Some(error) => Err(error.clone()),
            None if state.closed => Err(SourceError::Closed),
            None => Ok(state.take(max, now)),
        }
    }

    pub(super) fn next_due(&self) -> Option<Moment> {
        /// What is due and may not be handed out yet is looked at again after this.
        const LOOK: Duration = Duration::from_millis(20);
        let now = self.shared.clock.now();
        self.shared.state().next_due().map(|due| if due > now { due } else { now + LOOK })
    }

    pub(super) fn owns(&self, receipt: &Receipt) -> bool {
        self.shared.state().owns(receipt)
    }

    pub(super) fn pause(&self, partition: &Partition, paused: bool) {
        self.shared.state().pause(partition, paused);
        self.shared.arrived.notify_waiters();
    }

    pub(super) fn assignments(&self) -> Vec<AssignmentEvent> {
        self.shared.state().events()
    }

    /// Puts a message into the line of the committer at once; the answer comes later.
    pub(super) fn settle(&self, settlement: Settlement) -> oneshot::Receiver<Settled> {
        let (answer, settled) = oneshot::channel();
        if let Err(mpsc::SendError(Job::Settle(_, answer))) =
            self.jobs.send(Job::Settle(Box::new(settlement), answer))
        {
            let _ = answer.send(Settled::Lost);
        }
        settled
    }

    pub(super) async fn lag(&self) -> Result<Vec<Lag>, SourceError> {
        let (answer, lag) = oneshot::channel();
        let _ = self.jobs.send(Job::Lag(answer));
        lag.await.unwrap_or(Err(SourceError::Closed))
    }

    /// Settles what is in the line, then leaves the group; waits for at most `drain` and a little.
    pub(super) async fn close(&self, drain: Duration) {
        let left = self.shared.left.notified();
        let (answer, drained) = oneshot::channel();
        if self.jobs.send(Job::Stop(answer)).is_ok() {
            let _ = tokio::time::timeout(drain, drained).await;
        }
        let was_closed = std::mem::replace(&mut self.shared.state().closed, true);
        self.shared.stopping.store(true, Ordering::SeqCst);
        if !was_closed {
            // The client's own close can hang; the group then waits for its session to end.
            let _ = tokio::time::timeout(Duration::from_secs(5), left).await;
        }
    }
}

impl Drop for Flow {
    fn drop(&mut self) {
        self.shared.stopping.store(true, Ordering::SeqCst);
    }
}
