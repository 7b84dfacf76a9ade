//! What comes into memory: arrivals, loads, and the next event of a key.

use std::cmp::Reverse;
use std::collections::hash_map;
use std::time::Duration;

use super::flow::{FlowKey, Loading};
use super::queue::Lane;
use super::settle::UnparkedLetter;
use super::{Action, LOADS_MAX, LoadId, Scheduler, Timer, TrackedEvent, TrackedState};
use crate::event::{Event, Mode};
use crate::moment::Moment;
use crate::planted::{PlantedBug, has};
use crate::queue_entry::{
    EventChange, LoadRequest, LoadedEvents, OverdueDeadLetter, QueueEntry, SettleRequest, StreamId,
};

/// How long to wait after a failed load.
const LOAD_AGAIN: Duration = Duration::from_millis(200);

impl Scheduler {
    pub(super) fn arrived(&mut self, entries: Vec<QueueEntry>, now: Moment) {
        for entry in entries {
            self.arrive(entry, now);
        }
    }

    /// Events arrived that were not named: they may be in any flow, and in new ones.
    pub(super) fn missed(&mut self, streams: Vec<(StreamId, String, String)>) {
        let shards: Vec<u32> = self.shards.keys().copied().collect();
        for (stream, queue, tenant) in streams {
            for shard in &shards {
                self.flow_of(*shard, stream, &queue, &tenant);
            }
        }
        // One of them may be an event whose death is being answered, and a load skips events in memory. Or it
        // is the next event of a key: the settle of the event before it may have looked too early to find it,
        // and a load too early to see that settle.
        if !has(PlantedBug::PutBackUnheard) {
            let busy = self.tracked.iter().filter(|(_, held)| !held.state.waits());
            self.put_back.extend(busy.map(|(seq, _)| *seq));
            self.letters.values_mut().for_each(|letter| letter.is_crossed = true);
        }
        let keys: Vec<FlowKey> = self.flows.keys().copied().collect();
        keys.into_iter().for_each(|key| self.hunger(key));
    }

    /// Accepts an event that the store just made runnable, or remembers that the store has it.
    pub(super) fn arrive(&mut self, entry: QueueEntry, now: Moment) {
        if self.is_giving(entry.shard) {
            self.note_late(&entry);
            return;
        }
        let is_newer = self.tracked.get(&entry.seq).is_some_and(|held| held.entry.rev < entry.rev);
        if is_newer && !has(PlantedBug::PutBackUnheard) {
            // An operator redrove it before its settle was answered. The one in memory is about to leave.
            self.put_back.insert(entry.seq);
            return;
        }
        let Event { queue, tenant, .. } = &*entry.event;
        let Some(key) = self.flow_of(entry.shard, entry.stream, queue, tenant) else { return };
        let Some(flow) = self.flows.get_mut(&key) else { return };
        if entry.progress.due > now {
            let due = entry.progress.due;
            flow.note_due(due);
            self.arm(key, due);
            return;
        }
        let lane = lane(&entry);
        if flow.loading.is_some() {
            self.arrive_during_load(key, lane, entry);
            return;
        }
        // Older work in the store goes first. Events that other loads may bring do not count against the
        // room: often there are none.
        let queue = &self.queues[flow.queue];
        let ready = flow.ready[lane.index()].len();
        if flow.needs_load[lane.index()] || queue.is_full(lane) || ready >= queue.flow_max() {
            self.leave_aside(key, lane);
            self.owe_care(key, &entry);
            self.hunger_in(key, &[lane]);
            return;
        }
        self.accept(key, entry, now);
    }

    /// Keeps an arrival until the load is finished, or loads it after that.
    fn arrive_during_load(&mut self, key: FlowKey, lane: Lane, entry: QueueEntry) {
        self.owe_care(key, &entry);
        let Some(flow) = self.flows.get_mut(&key) else { return };
        let Some(loading) = &mut flow.loading else { return };
        if !self.tracked.contains_key(&entry.seq) && loading.keep(entry) {
            self.queues[flow.queue].aside += u32::from(lane == Lane::Live);
        } else {
            loading.arrived[lane.index()] = true;
            self.leave_aside(key, lane);
        }
    }

    /// A load will bring it: until then it counts as waiting for a slot.
    fn leave_aside(&mut self, key: FlowKey, lane: Lane) {
        if let Some(flow) = self.flows.get_mut(&key).filter(|_| lane == Lane::Live) {
            flow.aside += 1;
            self.queues[flow.queue].aside += 1;
        }
    }

    /// Adds an event to memory, unless a rule holds it back.
    pub(super) fn accept(&mut self, key: FlowKey, entry: QueueEntry, now: Moment) {
        if self.is_giving(key.shard) {
            return;
        }
        let lane = lane(&entry);
        if !self.is_open(key, lane, now) {
            self.owe_care(key, &entry);
            self.hunger_in(key, &[lane]);
            return;
        }
        self.note_late(&entry);
        let via = self.way_of(key, &entry, now);
        let Some(flow) = self.flows.get_mut(&key) else { return };
        let (seq, suspect) = (entry.seq, entry.progress.suspect);
        if !flow.hold(&entry) {
            return;
        }
        let queue = flow.queue;
        let Some(via) = via else {
            self.queues[queue].hold(lane, entry.event.payload.len());
            self.tracked.insert(seq, TrackedEvent { entry, queue, via: queue, state: TrackedState::Ready });
            self.end_on_the_way(seq, now);
            return;
        };
        let state = if suspect { TrackedState::Suspect } else { TrackedState::Ready };
        if suspect {
            self.suspects.push_back(seq);
        } else if flow.push(lane, seq) {
            self.queues[queue].turns[lane.index()].push_back(key);
        }
        self.queues[queue].hold(lane, entry.event.payload.len());
        self.tracked.insert(seq, TrackedEvent { entry, queue, via, state });
    }

    /// Marks that the store may have more events.
    pub(super) fn hunger(&mut self, key: FlowKey) {
        self.hunger_in(key, &Lane::BOTH);
    }

    /// Marks that the store may have more events of these lanes.
    fn hunger_in(&mut self, key: FlowKey, lanes: &[Lane]) {
        if self.is_giving(key.shard) {
            return;
        }
        let Some(flow) = self.flows.get_mut(&key) else { return };
        let was_hungry = flow.needs_load != [false; 2];
        let is_loading = flow.loading.is_some();
        let hunger = flow.loading.as_mut().map_or(&mut flow.needs_load, |loading| &mut loading.arrived);
        lanes.iter().for_each(|lane| hunger[lane.index()] = true);
        if !is_loading && !lanes.is_empty() && (!was_hungry || self.paused.remove(&key)) {
            self.needs_load.push_back(key);
        }
    }

    /// Starts loads for the flows that have few events left in memory.
    pub(super) fn start_loads(&mut self, now: Moment, actions: &mut Vec<Action>) {
        if self.draining {
            return;
        }
        for _ in 0..self.needs_load.len() {
            if self.loads >= LOADS_MAX {
                return;
            }
            let Some(key) = self.needs_load.pop_front() else { return };
            match self.load(key, now) {
                Some(load) => {
                    actions.push(Action::Load(LoadId { flow: key, number: self.asked }, load));
                }
                None if self.sleeps(key, now) => {
                    self.paused.insert(key);
                }
                None => self.needs_load.push_back(key),
            }
        }
    }

    fn load(&mut self, key: FlowKey, now: Moment) -> Option<LoadRequest> {
        let open = Lane::BOTH.map(|lane| self.is_open(key, lane, now));
        let flow = self.flows.get_mut(&key)?;
        let queue = &self.queues[flow.queue];
        if flow.load_after.is_some_and(|after| after > now) {
            return None;
        }
        let token = self.shards.get(&key.shard)?.token();
        // Each lane separately, so that neither waits for the other.
        let coming = Lane::BOTH.map(|lane| {
            let (max, ready) = (queue.flow_max(), flow.ready[lane.index()].len());
            if !flow.needs_load[lane.index()] || !open[lane.index()] || ready * 2 > max {
                return 0;
            }
            if has(PlantedBug::WindowForEachLoad) { max - ready } else { (max - ready).min(queue.room(lane)) }
        });
        if coming == [0; 2] {
            return None;
        }
        let mut except: Vec<_> = flow.held.iter().copied().collect();
        except.sort_unstable();
        if has(PlantedBug::StaleLoad) {
            except.retain(|seq| !matches!(self.tracked[seq].state, TrackedState::Settling(_)));
        }
        let asked = Lane::BOTH.into_iter().filter(|lane| coming[lane.index()] > 0);
        // Other loads may be running, and a store counts each lane separately.
        let bytes_left = asked.map(|lane| queue.bytes_left(lane)).min().unwrap_or_default();
        let bytes_max = bytes_left / (2 * LOADS_MAX);
        for (needs_load, coming) in flow.needs_load.iter_mut().zip(coming) {
            *needs_load &= coming == 0;
        }
        let aside = if coming[Lane::Live.index()] > 0 { std::mem::take(&mut flow.aside) } else { 0 };
        self.asked += 1;
        flow.loading = Some(Loading { number: self.asked, coming, aside, ..Loading::default() });
        self.loads += 1;
        self.queues[flow.queue].expect(coming);
        let [live_max, retry_max] = coming;
        Some(LoadRequest { token, stream: key.stream, until: now, live_max, retry_max, bytes_max, except })
    }

    pub(super) fn load_failed(&mut self, load: LoadId, now: Moment) {
        let key = load.flow;
        let Some(flow) = self.flows.get_mut(&key) else { return };
        let Some(loading) = flow.end_load(load) else { return };
        let again = now + LOAD_AGAIN;
        self.loads -= 1;
        self.queues[flow.queue].no_longer_expect(loading.coming);
        flow.needs_load = [false; 2];
        flow.aside += loading.aside;
        if let Some(due) = loading.due {
            flow.note_due(due);
        }
        flow.load_after = Some(again);
        self.timers.push(Reverse((again, Timer::Queue)));
        self.hunger(key);
    }

    pub(super) fn loaded(&mut self, load: LoadId, loaded: LoadedEvents, now: Moment) {
        let key = load.flow;
        let Some(flow) = self.flows.get_mut(&key) else { return };
        let Some(loading) = flow.end_load(load) else { return };
        let Loading { mut gone, mut arrived, mut told, mut due, coming, aside, recalled, is_blind, .. } =
            loading;
        self.loads -= 1;
        self.queues[flow.queue].no_longer_expect(coming);
        self.queues[flow.queue].aside -= aside;
        if has(PlantedBug::StaleLoad) {
            gone.clear();
        }
        if has(PlantedBug::DueLostInLoad) {
            due = None;
        }
        if has(PlantedBug::ArrivalsLostInLoad) {
            told.clear();
        }
        // A command may have changed one of them, and one that has left memory since may have ended. Another
        // load decides.
        let is_over = |entry: &mut QueueEntry| recalled || gone.contains(&entry.seq);
        told.extract_if(.., is_over).for_each(|entry| arrived[lane(&entry).index()] = true);
        let LoadedEvents { mut entries, more_live, more_retry, next_due, overdue, damaged } = loaded;
        flow.load_after = None;
        flow.next_due = [next_due, due].into_iter().flatten().min();
        let next_due = flow.next_due;
        let left = std::mem::take(&mut flow.needs_load);
        // A lane that was not asked for keeps its state.
        let more = [more_live, more_retry];
        let is_hungry = |lane: &Lane| {
            let at = lane.index();
            left[at] || arrived[at] || (coming[at] > 0 && (more[at] || recalled))
        };
        let mut needs_load: Vec<Lane> = Lane::BOTH.into_iter().filter(is_hungry).collect();
        let mut has_all = [false; 2];
        if recalled && !has(PlantedBug::RecallMissesLoads) {
            // Its snapshot may show events that a command took since.
            entries.clear();
        } else if !is_blind {
            has_all = self.has_all(key, &entries, [more_live, more_retry]);
        }
        if let Some(due) = next_due {
            self.arm(key, due.max(now));
        }
        for entry in entries.into_iter().filter(|entry| !gone.contains(&entry.seq)) {
            let lane = lane(&entry);
            if self.flows.get(&key).is_some_and(|flow| self.queues[flow.queue].is_full(lane)) {
                // Other events came into memory meanwhile.
                needs_load.push(lane);
                has_all[lane.index()] = false;
            } else {
                self.accept(key, entry, now);
            }
        }
        self.pass_care(key, has_all);
        for letter in overdue {
            self.go_on(key, letter, now);
        }
        self.hunger_in(key, &needs_load);
        self.arrived(told, now);
        self.damaged_push(damaged);
        self.forget_flow(key);
    }

    /// Unparks the key of a dead letter whose parking time is over.
    fn go_on(&mut self, key: FlowKey, letter: OverdueDeadLetter, now: Moment) {
        let Some(shard) = self.shards.get(&key.shard) else { return };
        let token = shard.token();
        let OverdueDeadLetter { seq, rev } = letter;
        // Another load may find it again before the answer arrives. Arrivals since the first load are not
        // forgotten.
        if let hash_map::Entry::Vacant(state) = self.letters.entry((seq, rev)) {
            state.insert(UnparkedLetter { flow: key, is_crossed: false });
            self.ready.push(SettleRequest { token, seq, rev, at: now, change: EventChange::Unpark });
        } else if has(PlantedBug::CrossingForgotten) {
            self.letters.insert((seq, rev), UnparkedLetter { flow: key, is_crossed: false });
        }
    }

    /// Sets a timer to look at a flow, unless an earlier one is set.
    pub(super) fn arm(&mut self, key: FlowKey, at: Moment) {
        let Some(flow) = self.flows.get_mut(&key) else { return };
        if flow.armed.is_none_or(|armed| at < armed) {
            flow.armed = Some(at);
            self.timers.push(Reverse((at, Timer::Flow(key))));
        }
    }

    /// Handles the timers that are due.
    pub(super) fn look_at_timers(&mut self, now: Moment) {
        while let Some(Reverse((at, timer))) = self.timers.peek().copied() {
            if at > now {
                return;
            }
            self.timers.pop();
            match timer {
                Timer::Flow(key) => {
                    let Some(flow) = self.flows.get_mut(&key) else { continue };
                    flow.armed = flow.armed.filter(|armed| *armed > at);
                    match flow.next_due {
                        Some(due) if due <= now => {
                            flow.next_due = None;
                            self.hunger(key);
                        }
                        Some(due) => self.arm(key, due),
                        None => {}
                    }
                }
                // The next `act` looks anyway.
                Timer::Queue => {}
                Timer::Rule => self.wake_all(now),
                Timer::PutOff(seq) => self.take_up(seq),
                Timer::Settle(seq, rev, epoch) => self.settle_again(seq, rev, epoch),
            }
        }
    }
}

/// The lane of an event.
pub(super) fn lane(entry: &QueueEntry) -> Lane {
    if entry.progress.attempts == 0 && entry.progress.mode == Mode::Live { Lane::Live } else { Lane::Retry }
}
