//! Handoff: gives a shard to another node while all other shards continue.
//!
//! A node that joins gets its share from nodes that own more. The node that hands off starts nothing more in
//! the shard, forgets the events that have not started (the next owner loads them), waits until the running
//! attempts have ended *and are settled*, and only then releases the shard. Until then it owns the shard, so
//! that no event runs on two nodes.
//!
//! If the crash guard was on, the next owner needs it as well, so the shard is not released as clean. Neither
//! is a shard with suspects.

use super::crash_guard::Shard;
use super::{Action, Scheduler, TrackedState};
use crate::moment::Moment;
use crate::planted::{PlantedBug, has};
use crate::queue_entry::Seq;

impl Scheduler {
    /// Starts the handoff of a shard.
    pub(super) fn give_back(&mut self, number: u32) {
        if !self.shards.contains_key(&number) {
            return;
        }
        let is_suspect = |seq: &Seq| self.tracked.get(seq).is_some_and(|held| held.entry.shard == number);
        let is_unclean = self.suspects.iter().chain(&self.lone).any(is_suspect);
        if let Some(shard) = self.shards.get_mut(&number) {
            shard.is_unclean |= is_unclean;
        }
        self.giving.insert(number);
        let waits = |held: &super::TrackedEvent| held.entry.shard == number && held.state.waits();
        let waiting: Vec<Seq> =
            self.tracked.iter().filter(|(_, held)| waits(held)).map(|(seq, _)| *seq).collect();
        for seq in waiting {
            self.let_go(seq);
        }
        for (_, flow) in self.flows.iter_mut().filter(|(key, _)| key.shard == number) {
            flow.ready.iter_mut().for_each(std::collections::VecDeque::clear);
        }
        for queue in &mut self.queues {
            queue.forget_shard(number);
        }
        self.needs_load.retain(|key| key.shard != number);
        self.paused.retain(|key| key.shard != number);
        self.suspects.retain(|seq| self.tracked.contains_key(seq));
    }

    /// Whether a shard is under handoff: its events do not come into memory.
    pub(super) fn is_giving(&self, shard: u32) -> bool {
        !self.giving.is_empty() && self.giving.contains(&shard)
    }

    /// Cancels the events that were about to start in shards under handoff, and releases the shards with
    /// nothing left.
    pub(super) fn give(&mut self, now: Moment, actions: &mut Vec<Action>) {
        if self.giving.is_empty() {
            return;
        }
        for number in self.giving.clone() {
            if !has(PlantedBug::GivingStartsNoted) {
                let about_to = self.shards.get_mut(&number).map(Shard::take_waiting).unwrap_or_default();
                about_to.into_iter().for_each(|seq| self.give_up(seq, now));
            }
            if self.is_shard_quiet(number) {
                self.given(number, actions);
            }
        }
    }

    /// Whether no attempt of a shard is running and no write is pending.
    fn is_shard_quiet(&self, number: u32) -> bool {
        let is_noting = self.shards.get(&number).is_some_and(Shard::is_noting);
        let busy = |held: &super::TrackedEvent| {
            let counts =
                !matches!(held.state, TrackedState::Running(_)) || !has(PlantedBug::GivenWhileRunning);
            held.entry.shard == number && counts
        };
        let tells_letters = self.letters.values().any(|letter| letter.flow.shard == number);
        !is_noting && !tells_letters && !self.tracked.values().any(busy)
    }

    fn given(&mut self, number: u32, actions: &mut Vec<Action>) {
        let Some(shard) = self.shards.get(&number) else {
            self.giving.remove(&number);
            return;
        };
        let (token, clean) = (shard.token(), shard.is_clean());
        self.drop_shard(number);
        actions.push(Action::Given { token, clean: clean || has(PlantedBug::GivenAsClean) });
    }
}
