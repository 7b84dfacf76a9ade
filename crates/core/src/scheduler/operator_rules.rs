//! What operators' rules and commands mean for the events in memory.
//!
//! A command makes its changes in the store. Events in memory that have not started may be out of date then,
//! so they are *recalled*: they leave memory and are loaded again. Running attempts continue, and the fencing
//! token decides about their settles. The result of a load that was running is discarded. An answer that was
//! on its way may name an event that a command took since, so the scheduler looks that event up instead.
//!
//! Events that a rule holds back do not come into memory at all. There they would take room from other
//! events, and a suspect that may not run would block all other events.

use std::cmp::Reverse;
use std::time::Duration;

use super::crash_guard::Shard;
use super::flow::{Flow, FlowKey};
use super::load::lane;
use super::queue::Lane;
use super::watchdog::Forgotten;
use super::{Scheduler, Timer, TrackedEvent, TrackedState};
use crate::event::{Cause, DeadReason};
use crate::moment::Moment;
use crate::planted::{PlantedBug, has};
use crate::queue_entry::{EventChange, QueueEntry, Seq};
use crate::triage::ActiveRules;

/// How many empty flows a queue keeps; with more, empty ones are dropped. All kept flows share the window.
const FLOWS_KEPT: usize = 2;

/// How long an event that was redriven out of order waits while a later event of its key is running.
const KEY_AGAIN: Duration = Duration::from_millis(50);

impl Scheduler {
    /// Applies these rules from now on.
    pub(super) fn ruled(&mut self, controls: ActiveRules, now: Moment) {
        if has(PlantedBug::RulesForgotten) {
            return;
        }
        self.controls = controls;
        self.recall();
        self.wake_all(now);
    }

    /// Loads the events that have not started again.
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
            self.tracked.iter().map(|(seq, held)| (*seq, held.state.waits())).partition(|(_, waits)| *waits);
        self.stale_after_recall.extend(busy.into_iter().map(|(seq, _)| seq));
        for (seq, _) in waiting {
            let Some(key) = self.let_go(seq).and_then(|entry| self.key_of(&entry)) else { continue };
            let is_careful = self.shards.get(&key.shard).is_some_and(Shard::is_careful);
            if let Some(flow) = self.flows.get_mut(&key).filter(|_| is_careful) {
                // The crash guard ends when they have come back and are settled.
                flow.is_past_care = [false; 2];
            }
        }
        self.suspects.clear();
        let keys: Vec<FlowKey> = self.flows.keys().copied().collect();
        keys.into_iter().for_each(|key| self.hunger(key));
    }

    /// A command came while its dispatch note or crash count was being written: only the store knows whether
    /// it may still start.
    pub(super) fn hold_back(&mut self, seq: Seq, now: Moment) {
        if !self.tracked.get(&seq).is_some_and(|held| matches!(held.state, TrackedState::Noting(_))) {
            return;
        }
        if self.lone.contains(&seq) { self.give_up(seq, now) } else { self.reload(seq) }
    }

    /// Whether events of a lane may start.
    pub(super) fn is_open(&self, key: FlowKey, lane: Lane, now: Moment) -> bool {
        if self.controls.list.is_empty() {
            return true;
        }
        let Some(flow) = self.flows.get(&key) else { return false };
        let queue = &self.queues[flow.queue].plan.name;
        let is_closed = |queue: &str| self.controls.is_closed(queue, &flow.tenant, lane == Lane::Retry, now);
        match self.controls.route(queue, now) {
            _ if is_closed(queue) => false,
            // Events that go to a queue that is paused, or does not run here, wait until it resumes or runs
            // here.
            Some(to) => self.names.contains_key(to) && !is_closed(to),
            None => true,
        }
    }

    /// Whether a rule holds back everything that a flow could load.
    pub(super) fn sleeps(&self, key: FlowKey, now: Moment) -> bool {
        let Some(flow) = self.flows.get(&key) else { return false };
        Lane::BOTH.into_iter().all(|lane| !flow.needs_load[lane.index()] || !self.is_open(key, lane, now))
    }

    /// The queue whose handler runs an event; `None` if that queue does not run here.
    pub(super) fn way_of(&self, key: FlowKey, entry: &QueueEntry, now: Moment) -> Option<usize> {
        let own = self.flows.get(&key)?.queue;
        if let Some(route) = &entry.progress.route {
            return self.names.get(route).copied();
        }
        match self.controls.route(&self.queues[own].plan.name, now) {
            Some(to) => self.names.get(to).copied(),
            None => Some(own),
        }
    }

    /// Rules have changed, or one has ended: events that were held back may run.
    pub(super) fn wake_all(&mut self, now: Moment) {
        self.needs_load.extend(std::mem::take(&mut self.paused));
        if let Some(end) = self.controls.next_end(now) {
            self.timers.push(Reverse((end, Timer::Rule)));
        }
    }

    /// An operator rerouted it to a queue that does not run here.
    pub(super) fn end_on_the_way(&mut self, seq: Seq, now: Moment) {
        let Some(held) = self.tracked.get(&seq) else { return };
        let progress = &held.entry.progress;
        let route = progress.route.as_deref().unwrap_or_default();
        let word = DeadReason::Unroutable.as_str();
        let cause = Cause::new(word, format!("this process runs no handler of the queue {route}"));
        let progress = progress.with_record(progress.attempts, now, word, None, cause);
        let park = self.queues[held.queue].plan.after_dead.park(now);
        self.settle(seq, EventChange::Dead { reason: DeadReason::Unroutable, progress, park }, now);
    }

    /// Whether another event of its key is running: it was redriven out of order; or a command took the event
    /// before it while that ran; or a later event was committed first, because the publisher of this one took
    /// longer. One at a time still holds.
    pub(super) fn is_met(&self, entry: &QueueEntry) -> bool {
        if entry.event.key.is_none() {
            return false;
        }
        let Some(flow) = self.key_of(entry).and_then(|key| self.flows.get(&key)) else { return false };
        let was_recalled = !self.stale_after_recall.is_empty() && !has(PlantedBug::NextBesideTakenAway);
        let was_moved = entry.progress.out_of_order || was_recalled;
        let is_in_the_way = |held: &TrackedEvent| match held.state {
            TrackedState::Ready | TrackedState::PutOff | TrackedState::Suspect => false,
            // Its attempt is over. An event that was neither moved nor recalled is the first of its key in
            // the store, whether or not its settle is written yet.
            TrackedState::Settling(_) => was_moved,
            TrackedState::Striking(_) | TrackedState::Noting(_) | TrackedState::Running(_) => {
                was_moved || !(has(PlantedBug::LateFirstRuns) || has(PlantedBug::NextBesideTakenAway))
            }
        };
        let mut others = flow.others_of(entry).filter_map(|seq| self.tracked.get(&seq));
        others.any(|other| other.entry.event.key == entry.event.key && is_in_the_way(other))
    }

    /// Puts an event off until the other event of its key has finished. It stays in memory: otherwise the
    /// next load would bring it back immediately.
    pub(super) fn put_off(&mut self, seq: Seq, now: Moment) {
        let Some(held) = self.tracked.get_mut(&seq) else { return };
        held.state = TrackedState::PutOff;
        self.timers.push(Reverse((now + KEY_AGAIN, Timer::PutOff(seq))));
    }

    /// Looks again at the events that were put off because of one that leaves memory, before their timer.
    pub(super) fn take_up_others(&mut self, key: FlowKey, entry: &QueueEntry) {
        let Some(flow) = self.flows.get(&key) else { return };
        // Mostly there are none, and nothing is allocated.
        let others: Vec<Seq> = flow.others_of(entry).collect();
        others.into_iter().for_each(|seq| self.take_up(seq));
    }

    /// Looks again at an event that was put off.
    pub(super) fn take_up(&mut self, seq: Seq) {
        let Some(held) = self.tracked.get_mut(&seq).filter(|held| matches!(held.state, TrackedState::PutOff))
        else {
            return;
        };
        held.state = TrackedState::Ready;
        let (lane, queue) = (lane(&held.entry), held.queue);
        let Some(key) = self.tracked.get(&seq).and_then(|held| self.key_of(&held.entry)) else { return };
        if self.flows.get_mut(&key).is_some_and(|flow| flow.push(lane, seq)) {
            self.queues[queue].turns[lane.index()].push_back(key);
        }
    }

    /// Drops an empty flow if its queue has many of them.
    pub(super) fn forget_flow(&mut self, key: FlowKey) {
        let Some(flow) = self.flows.get(&key).filter(|flow| flow.is_empty()) else { return };
        let queue = flow.queue;
        if self.queues[queue].flows <= FLOWS_KEPT || self.paused.contains(&key) {
            return;
        }
        // If the unpark cannot be written, the flow has to be looked at again.
        let tells_letters = self.letters.values().any(|letter| letter.flow == key);
        if tells_letters {
            return;
        }
        let Some(Flow { tenant, aside, .. }) = self.flows.remove(&key) else { return };
        self.queues[queue].flows -= 1;
        self.queues[queue].aside -= aside;
        if let Some(shard) = self.shards.get_mut(&key.shard) {
            shard.forget(Forgotten { stream: key.stream, queue, tenant });
        }
    }
}
