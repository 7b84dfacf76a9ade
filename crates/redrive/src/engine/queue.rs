//! The queues that are set up.

use std::sync::atomic::{AtomicBool, AtomicUsize};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use redrive_core::policy::{PolicySettings, Tuning};
use redrive_core::scheduler::QueuePlan;
use redrive_core::{Event, Moment};
use redrive_store::{New, PublishError, QueueSpec};

use super::handler::Handler;
use super::observe::Meters;

/// A queue that is set up.
#[derive(Debug)]
pub(super) struct Queue {
    pub(super) plan: QueuePlan,
    pub(super) window: Duration,
    /// As the store is told of it.
    pub(super) spec: QueueSpec,
    pub(super) handler: Handler,
    pub(super) meters: Meters,
    /// Whether its transactions took too long once, and have a commit of their own from then on.
    pub(super) slow: AtomicBool,
    /// Blocking handlers that run, also those that nobody waits for any more.
    pub(super) blocking: AtomicUsize,
}

impl Queue {
    pub(super) fn name(&self) -> &str {
        &self.plan.name
    }

    /// The horizon for an event with changes of its own.
    fn horizon_of(&self, tuning: &Tuning) -> Result<Duration, PublishError> {
        let horizon = self.plan.policy.settings().tuned(tuning).horizon();
        if horizon.total() > self.window {
            return Err(PublishError::Window { window: self.window, sum: horizon.to_string() });
        }
        Ok(horizon.total())
    }
}

/// The queues that are set up, in the order in which that was done.
#[derive(Debug, Default)]
pub(super) struct Queues(Mutex<Vec<Arc<Queue>>>);

impl Queues {
    fn all(&self) -> MutexGuard<'_, Vec<Arc<Queue>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a queue; `false` where there is one of that name.
    pub(super) fn add(&self, queue: Arc<Queue>) -> bool {
        let mut all = self.all();
        let is_new = all.iter().all(|known| known.name() != queue.name());
        if is_new {
            all.push(queue);
        }
        is_new
    }

    pub(super) fn remove(&self, name: &str) {
        self.all().retain(|queue| queue.name() != name);
    }

    /// Those that have a handler here.
    pub(super) fn to_run(&self) -> Vec<Arc<Queue>> {
        let runs = |queue: &&Arc<Queue>| !matches!(queue.handler, Handler::Elsewhere | Handler::Pulled);
        self.all().iter().filter(runs).cloned().collect()
    }

    /// Those that are run or leased here, as the store is told of them.
    pub(super) fn specs(&self) -> Vec<QueueSpec> {
        let own = |queue: &&Arc<Queue>| !matches!(queue.handler, Handler::Elsewhere);
        self.all().iter().filter(own).map(|queue| queue.spec.clone()).collect()
    }

    /// Those whose events are leased.
    pub(super) fn to_pull(&self) -> Vec<Arc<Queue>> {
        let pulls = |queue: &&Arc<Queue>| matches!(queue.handler, Handler::Pulled);
        self.all().iter().filter(pulls).cloned().collect()
    }

    /// Makes an event ready for the store. The horizon of one with changes of its own is what its queue's policy
    /// makes of them, or the default policy where the queue is not set up here.
    pub(super) fn prepare(&self, event: Event, now: Moment) -> Result<New, PublishError> {
        event.check()?;
        let tuning = event.meta.as_ref().and_then(|meta| meta.tuning.clone());
        let mut new = New::at(event, now);
        if let Some(tuning) = tuning {
            let queue = self.all().iter().find(|queue| queue.name() == new.event.queue).cloned();
            new.horizon = Some(match queue {
                Some(queue) => queue.horizon_of(&tuning)?,
                None => PolicySettings::default().tuned(&tuning).horizon().total(),
            });
        }
        Ok(new)
    }
}
