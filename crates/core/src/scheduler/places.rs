//! How many run, and what a publisher in the same process wants to know: how many more would start at once, and in which
//! shards.

use super::Scheduler;
use super::queue::{Lane, Queue};
use crate::moment::Moment;
use crate::triage::Rule;

impl Scheduler {
    /// Attempts under way in a queue.
    #[must_use]
    pub fn running_in(&self, queue: usize) -> u32 {
        self.queues.get(queue).map_or(0, Queue::running)
    }

    /// How many more events of a queue would start at once. None where something waits already, in memory or because
    /// of a rule: then others may be quicker.
    #[must_use]
    pub fn free_places(&self, queue: usize, now: Moment) -> u32 {
        let Some(of) = self.queues.get(queue) else { return 0 };
        let is_held_up = self.draining || !self.suspects.is_empty() || !self.lone.is_empty();
        let waits = !of.turns[Lane::Live.index()].is_empty() || of.is_full(Lane::Live);
        if is_held_up || waits || self.is_ruled(&of.plan.name, now) {
            return 0;
        }
        of.plan.concurrency.saturating_sub(of.running()).saturating_sub(of.aside)
    }

    /// The shards that are ours, but for those that are being given back.
    pub fn shards_to_stay(&self) -> impl Iterator<Item = u32> {
        self.shards.keys().copied().filter(|shard| !self.is_giving(*shard))
    }

    /// Whether something of a queue may be held back or go elsewhere. What is kept so is not in memory, and would pile
    /// up in our shards.
    fn is_ruled(&self, queue: &str, now: Moment) -> bool {
        self.controls.now(now).any(|rule| match rule {
            Rule::Pause { queue: of } | Rule::Reroute { queue: of, .. } => of == queue,
            Rule::QuarantineTenant { queue: of, .. } => of.as_deref().is_none_or(|of| of == queue),
            Rule::PauseRetries { .. } | Rule::QuarantineKey { .. } | Rule::ParkKey { .. } => false,
        })
    }
}
