//! How many attempts run, and how many more would start immediately and in which shards, for a publisher in
//! the same process.

use super::Scheduler;
use super::queue::{Lane, Queue};
use crate::moment::Moment;
use crate::triage::Rule;

impl Scheduler {
    /// The running attempts of a queue.
    #[must_use]
    pub fn running_in(&self, queue: usize) -> u32 {
        self.queues.get(queue).map_or(0, Queue::running)
    }

    /// How many more events of a queue would start immediately. Zero if events wait already, in memory or
    /// because of a rule: then other nodes may be quicker.
    #[must_use]
    pub fn free_slots(&self, queue: usize, now: Moment) -> u32 {
        let Some(of) = self.queues.get(queue) else { return 0 };
        let is_held_up = self.draining || !self.suspects.is_empty() || !self.lone.is_empty();
        let waits = !of.turns[Lane::Live.index()].is_empty() || of.is_full(Lane::Live);
        if is_held_up || waits || self.is_ruled(&of.plan.name, now) {
            return 0;
        }
        of.plan.concurrency.saturating_sub(of.running()).saturating_sub(of.aside)
    }

    /// The shards that this node owns, except those under handoff.
    pub fn shards_to_stay(&self) -> impl Iterator<Item = u32> {
        self.shards.keys().copied().filter(|shard| !self.is_giving(*shard))
    }

    /// Whether a rule may hold back or reroute events of a queue. Such events do not come into memory, and
    /// would pile up in our shards.
    fn is_ruled(&self, queue: &str, now: Moment) -> bool {
        self.controls.now(now).any(|rule| match rule {
            Rule::Pause { queue: of } | Rule::Reroute { queue: of, .. } => of == queue,
            Rule::QuarantineTenant { queue: of, .. } => of.as_deref().is_none_or(|of| of == queue),
            Rule::PauseRetries { .. } | Rule::QuarantineKey { .. } | Rule::ParkKey { .. } => false,
        })
    }
}
