//! What operators' rules and orders mean for what is in memory.
//!
//! Whatever an order changes, it changes in the store. What is in memory and has not started may be out of date
//! then, so it is *recalled*: it leaves memory, and is loaded again as it is now. What has started goes on, and its
//! settle is judged by the fence. A load that was under way is not believed, and an answer that was under way may
//! name an event that was taken away since, so that one is looked for instead.
//!
//! What a rule holds back does not come into memory at all. There it would be in the way of others, and a suspect
//! that may not run would hold up everybody.

use std::cmp::Reverse;
use std::time::Duration;

use super::care::Shard;
use super::flow::FlowKey;
use super::loading::lane;
use super::queue::Lane;
use super::{Held, Place, Scheduler, Timer};
use crate::entry::{Change, Entry, Seq};
use crate::event::{Cause, DeadReason};
use crate::moment::Moment;
use crate::planted::{Flaw, has};
use crate::triage::Controls;

/// How many empty flows a queue may have; of more, the empty ones are forgotten. A window is shared by all flows
/// that are remembered.
const FLOWS_KEPT: usize = 2;

/// How long an event waits that is put back out of order while a later one of its key is under way.
const KEY_AGAIN: Duration = Duration::from_millis(50);

impl Scheduler {
    /// These rules hold from now on.
    pub(super) fn ruled(&mut self, controls: Controls, now: Moment) {
        if has(Flaw::RulesForgotten) {
            return;
        }
        self.controls = controls;
        self.recall();
        self.wake_all(now);
    }

    /// What has not started is loaded again.
    pub(super) fn recall(&mut self) {
        for queue in &mut self.queues {
            queue.turns.iter_mut().for_each(std::collections::VecDeque::clear);
        }
        for flow in self.flows.values_mut() {
            flow.ready.iter_mut().for_each(std::collections::VecDeque::clear);
            if let Some(loading) = &mut flow.loading {
                loading.recalled = true;
            }
        }
        let (waiting, busy): (Vec<_>, Vec<_>) =
            self.held.iter().map(|(seq, held)| (*seq, held.place.waits())).partition(|(_, waits)| *waits);
        self.wary.extend(busy.into_iter().map(|(seq, _)| seq));
        for (seq, _) in waiting {
            let Some(key) = self.let_go(seq).and_then(|entry| self.key_of(&entry)) else { continue };
            let is_careful = self.shards.get(&key.shard).is_some_and(Shard::is_careful);
            if let Some(flow) = self.flows.get_mut(&key).filter(|_| is_careful) {
                // Care ends when it has come back and is settled.
                flow.is_past_care = [false; 2];
            }
        }
        self.suspects.clear();
        let keys: Vec<FlowKey> = self.flows.keys().copied().collect();
        keys.into_iter().for_each(|key| self.hunger(key));
    }

    /// An order came while it was being noted or struck: only the store knows whether it may still start.
    pub(super) fn hold_back(&mut self, seq: Seq, now: Moment) {
        if !self.held.get(&seq).is_some_and(|held| matches!(held.place, Place::Noting(_))) {
            return;
        }
        if self.lone.contains(&seq) { self.give_up(seq, now) } else { self.reload(seq) }
    }

    /// Whether anything of a lane may start.
    pub(super) fn is_open(&self, key: FlowKey, lane: Lane, now: Moment) -> bool {
        if self.controls.list.is_empty() {
            return true;
        }
        let Some(flow) = self.flows.get(&key) else { return false };
        let queue = &self.queues[flow.queue].plan.name;
        let is_closed = |queue: &str| self.controls.is_closed(queue, &flow.tenant, lane == Lane::Retry, now);
        match self.controls.route(queue, now) {
            _ if is_closed(queue) => false,
            // Events that go to a queue that is paused, or not run here, wait until it goes on, or is.
            Some(to) => self.names.contains_key(to) && !is_closed(to),
            None => true,
        }
    }

    /// Whether all that a flow is hungry for is held back.
    pub(super) fn sleeps(&self, key: FlowKey, now: Moment) -> bool {
        let Some(flow) = self.flows.get(&key) else { return false };
        Lane::BOTH.into_iter().all(|lane| !flow.hungry[lane.index()] || !self.is_open(key, lane, now))
    }

    /// The queue whose handler runs an event; none where that one is not run here.
    pub(super) fn way_of(&self, key: FlowKey, entry: &Entry, now: Moment) -> Option<usize> {
        let own = self.flows.get(&key)?.queue;
        if let Some(route) = &entry.progress.route {
            return self.names.get(route).copied();
        }
        match self.controls.route(&self.queues[own].plan.name, now) {
            Some(to) => self.names.get(to).copied(),
            None => Some(own),
        }
    }

    /// Rules have changed, or one has ended: what was held back may go on.
    pub(super) fn wake_all(&mut self, now: Moment) {
        self.hungry.extend(std::mem::take(&mut self.asleep));
        if let Some(end) = self.controls.next_end(now) {
            self.timers.push(Reverse((end, Timer::Rule)));
        }
    }

    /// An operator sent it to a queue that nobody runs here.
    pub(super) fn end_on_the_way(&mut self, seq: Seq, now: Moment) {
        let Some(held) = self.held.get(&seq) else { return };
        let progress = &held.entry.progress;
        let route = progress.route.as_deref().unwrap_or_default();
        let word = DeadReason::Unroutable.as_str();
        let cause = Cause::new(word, format!("no handler of the queue {route} runs here"));
        let progress = progress.with_record(progress.attempts, now, word, None, cause);
        let park = self.queues[held.queue].plan.after_dead.park(now);
        self.settle(seq, Change::Dead { reason: DeadReason::Unroutable, progress, park }, now);
    }

    /// Whether another one of its key is under way: it was put back out of order; or the one before was taken away
    /// while it ran; or a later one was there first, because whoever published this one took longer to commit. One at
    /// a time still holds.
    pub(super) fn is_met(&self, entry: &Entry) -> bool {
        if entry.event.key.is_none() {
            return false;
        }
        let Some(flow) = self.key_of(entry).and_then(|key| self.flows.get(&key)) else { return false };
        let was_recalled = !self.wary.is_empty() && !has(Flaw::NextBesideTakenAway);
        let was_moved = entry.progress.out_of_order || was_recalled;
        let is_in_the_way = |held: &Held| match held.place {
            Place::Ready | Place::PutOff | Place::Suspect => false,
            // Its attempt is over. What was neither moved nor recalled is the first of its key in the store, whether
            // that end is written or not.
            Place::Settling(_) => was_moved,
            Place::Striking(_) | Place::Noting(_) | Place::Running(_) => {
                was_moved || !(has(Flaw::LateFirstRuns) || has(Flaw::NextBesideTakenAway))
            }
        };
        let mut others = flow.others_of(entry).filter_map(|seq| self.held.get(&seq));
        others.any(|other| other.entry.event.key == entry.event.key && is_in_the_way(other))
    }

    /// Puts an event off until the other one of its key is over. It stays in memory: otherwise the next load would
    /// bring it back at once.
    pub(super) fn put_off(&mut self, seq: Seq, now: Moment) {
        let Some(held) = self.held.get_mut(&seq) else { return };
        held.place = Place::PutOff;
        self.timers.push(Reverse((now + KEY_AGAIN, Timer::PutOff(seq))));
    }

    /// Looks again at those that were put off because of one that leaves memory, before their time.
    pub(super) fn take_up_others(&mut self, key: FlowKey, entry: &Entry) {
        let Some(flow) = self.flows.get(&key) else { return };
        // Mostly there are none, and nothing is allocated.
        let others: Vec<Seq> = flow.others_of(entry).collect();
        others.into_iter().for_each(|seq| self.take_up(seq));
    }

    /// Looks again at an event that was put off.
    pub(super) fn take_up(&mut self, seq: Seq) {
        let Some(held) = self.held.get_mut(&seq).filter(|held| matches!(held.place, Place::PutOff)) else {
            return;
        };
        held.place = Place::Ready;
        let (lane, queue) = (lane(&held.entry), held.queue);
        let Some(key) = self.held.get(&seq).and_then(|held| self.key_of(&held.entry)) else { return };
        if self.flows.get_mut(&key).is_some_and(|flow| flow.push(lane, seq)) {
            self.queues[queue].turns[lane.index()].push_back(key);
        }
    }

    /// Forgets a flow that has nothing, where a queue has many of them.
    pub(super) fn forget_flow(&mut self, key: FlowKey) {
        let Some(flow) = self.flows.get(&key).filter(|flow| flow.is_empty()) else { return };
        let queue = flow.queue;
        if self.queues[queue].flows <= FLOWS_KEPT || self.asleep.contains(&key) {
            return;
        }
        // If that cannot be written, the flow is to be looked at again.
        let tells_letters = self.letters.values().any(|letter| letter.flow == key);
        if tells_letters && !has(Flaw::FlowsForgottenEarly) {
            return;
        }
        let aside = self.flows.remove(&key).map_or(0, |flow| flow.aside);
        self.queues[queue].flows -= 1;
        self.queues[queue].aside -= aside;
    }
}
