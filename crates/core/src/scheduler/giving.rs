//! Giving a shard back while all others go on.
//!
//! A node that joins gets its share from those who have more. Whoever gives begins nothing more in the shard, forgets
//! what has not started (the next owner loads it), waits until what is under way has ended *and is written*, and only
//! then says so. Until then the shard is its own, so that no event runs in two places.
//!
//! What was begun in a careful time is not over by that: the next owner is to be careful as well, so the shard is not
//! given back as clean then. Neither is one with suspects.

use super::care::Shard;
use super::{Action, Place, Scheduler};
use crate::entry::Seq;
use crate::moment::Moment;
use crate::planted::{Flaw, has};

impl Scheduler {
    /// A shard is to be given back.
    pub(super) fn give_back(&mut self, number: u32) {
        if !self.shards.contains_key(&number) {
            return;
        }
        let is_suspect = |seq: &Seq| self.held.get(seq).is_some_and(|held| held.entry.shard == number);
        let is_unclean = self.suspects.iter().chain(&self.lone).any(is_suspect);
        if let Some(shard) = self.shards.get_mut(&number) {
            shard.is_unclean |= is_unclean;
        }
        self.giving.insert(number);
        let waits = |held: &super::Held| held.entry.shard == number && held.place.waits();
        let waiting: Vec<Seq> =
            self.held.iter().filter(|(_, held)| waits(held)).map(|(seq, _)| *seq).collect();
        for seq in waiting {
            self.let_go(seq);
        }
        for (_, flow) in self.flows.iter_mut().filter(|(key, _)| key.shard == number) {
            flow.ready.iter_mut().for_each(std::collections::VecDeque::clear);
        }
        for queue in &mut self.queues {
            queue.forget_shard(number);
        }
        self.hungry.retain(|key| key.shard != number);
        self.asleep.retain(|key| key.shard != number);
        self.suspects.retain(|seq| self.held.contains_key(seq));
    }

    /// Whether a shard is being given back: nothing of it comes into memory.
    pub(super) fn is_giving(&self, shard: u32) -> bool {
        !self.giving.is_empty() && self.giving.contains(&shard)
    }

    /// What was about to start in the shards that are being given back does not; those with nothing left are given.
    pub(super) fn give(&mut self, now: Moment, actions: &mut Vec<Action>) {
        if self.giving.is_empty() {
            return;
        }
        for number in self.giving.clone() {
            if !has(Flaw::GivingStartsNoted) {
                let about_to = self.shards.get_mut(&number).map(Shard::take_waiting).unwrap_or_default();
                about_to.into_iter().for_each(|seq| self.give_up(seq, now));
            }
            if self.is_shard_quiet(number) {
                self.given(number, actions);
            }
        }
    }

    /// Whether nothing of a shard is under way, and nothing waits to be written.
    fn is_shard_quiet(&self, number: u32) -> bool {
        let is_noting = self.shards.get(&number).is_some_and(Shard::is_noting);
        let busy = |held: &super::Held| {
            let counts = !matches!(held.place, Place::Running(_)) || !has(Flaw::GivenWhileRunning);
            held.entry.shard == number && counts
        };
        let tells_letters = self.letters.values().any(|letter| letter.flow.shard == number);
        !is_noting && !tells_letters && !self.held.values().any(busy)
    }

    fn given(&mut self, number: u32, actions: &mut Vec<Action>) {
        let Some(shard) = self.shards.get(&number) else {
            self.giving.remove(&number);
            return;
        };
        let (grant, clean) = (shard.grant(), !shard.is_careful() && !shard.is_unclean);
        self.drop_shard(number);
        actions.push(Action::Given { grant, clean: clean || has(Flaw::GivenAsClean) });
    }
}
