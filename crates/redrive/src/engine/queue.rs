//! The queues that are set up.

use std::sync::atomic::{AtomicBool, AtomicUsize};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use redrive_core::policy::{PolicySettings, Tuning};
use redrive_core::scheduler::QueuePlan;
use redrive_core::{Event, Moment};
use redrive_store::{NewEvent, PublishError, QueueSpec};

use super::handler::Handler;
use super::observe::Meters;

/// A queue that is set up.
#[derive(Debug)]
pub(super) struct Queue {
    pub(super) plan: QueuePlan,
    pub(super) window: Duration,
    /// Its declaration in the store.
    pub(super) spec: QueueSpec,
    pub(super) handler: Handler,
    pub(super) meters: Meters,
    /// Whether one of its transactions took too long; since then they have commits of their own.
    pub(super) slow: AtomicBool,
    /// Blocking handlers that run, including those whose attempt has timed out.
    pub(super) blocking: AtomicUsize,
}

impl Queue {
    pub(super) fn name(&self) -> &str {
        &self.plan.name
    }

    /// The horizon of an event with a policy override of its own.
    fn horizon_of(&self, tuning: &Tuning) -> Result<Duration, PublishError> {
        let horizon = self.plan.policy.settings().tuned(tuning).horizon();
        if horizon.total() > self.window {
            return Err(PublishError::Window { window: self.window, sum: horizon.to_string() });
        }
        Ok(horizon.total())
    }
}

/// The queues that are set up, in that order.
#[derive(Debug, Default)]
pub(super) struct Queues(Mutex<Vec<Arc<Queue>>>);

impl Queues {
    fn all(&self) -> MutexGuard<'_, Vec<Arc<Queue>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a queue; `false` if there is one of that name.
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

    /// The queues with a handler here.
    pub(super) fn to_run(&self) -> Vec<Arc<Queue>> {
        let runs = |queue: &&Arc<Queue>| !matches!(queue.handler, Handler::Elsewhere | Handler::Pulled);
        self.all().iter().filter(runs).cloned().collect()
    }

    /// The queues that are run or leased from here, as declared to the store.
    pub(super) fn specs(&self) -> Vec<QueueSpec> {
        let own = |queue: &&Arc<Queue>| !matches!(queue.handler, Handler::Elsewhere);
        self.all().iter().filter(own).map(|queue| queue.spec.clone()).collect()
    }

    /// The queues that workers lease from.
    pub(super) fn to_pull(&self) -> Vec<Arc<Queue>> {
        let pulls = |queue: &&Arc<Queue>| matches!(queue.handler, Handler::Pulled);
        self.all().iter().filter(pulls).cloned().collect()
    }

    /// Prepares an event for the store. The horizon of an event with a policy override comes from its queue's policy,
    /// or from the default policy if the queue is not set up here.
    pub(super) fn prepare(&self, event: Event, now: Moment) -> Result<NewEvent, PublishError> {
        event.check()?;
        let tuning = event.meta.as_ref().and_then(|meta| meta.tuning.clone());
        let mut new = NewEvent::at(event, now);
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
