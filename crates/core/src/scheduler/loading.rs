//! What comes into memory: arrivals, loads, and the next of a key.

use std::cmp::Reverse;
use std::time::Duration;

use super::flow::{FlowKey, Loading};
use super::queue::Lane;
use super::settling::Letter;
use super::{Action, Held, LOADS_MAX, Place, Scheduler, Timer};
use crate::entry::{Change, Entry, Load, Loaded, Overdue, Settle, StreamId};
use crate::event::{Event, Mode};
use crate::moment::Moment;
use crate::planted::{Flaw, has};

/// How long to wait after a load that failed.
const LOAD_AGAIN: Duration = Duration::from_millis(200);

impl Scheduler {
    pub(super) fn arrived(&mut self, entries: Vec<Entry>, now: Moment) {
        for entry in entries {
            self.arrive(entry, now);
        }
    }

    /// Something arrived that nobody named: it may be in any flow, and in some that are new.
    pub(super) fn missed(&mut self, streams: Vec<(StreamId, String, String)>) {
        let shards: Vec<u32> = self.shards.keys().copied().collect();
        for (stream, queue, tenant) in streams {
            for shard in &shards {
                self.flow_of(*shard, stream, &queue, &tenant);
            }
        }
        // One of them may be an event whose death is being answered, and a load leaves out what is in memory. Or it is
        // the next of a key: whoever ends the one before may have looked for it too early, and a load too early to
        // see that end.
        if !has(Flaw::PutBackUnheard) {
            let busy = self.held.iter().filter(|(_, held)| !held.place.waits());
            self.put_back.extend(busy.map(|(seq, _)| *seq));
            self.letters.values_mut().for_each(|letter| letter.is_crossed = true);
        }
        let keys: Vec<FlowKey> = self.flows.keys().copied().collect();
        keys.into_iter().for_each(|key| self.hunger(key));
    }

    /// Takes an event in that the store just handed out, or remembers that it is there.
    pub(super) fn arrive(&mut self, entry: Entry, now: Moment) {
        if self.is_giving(entry.shard) {
            return;
        }
        let is_newer = self.held.get(&entry.seq).is_some_and(|held| held.entry.rev < entry.rev);
        if is_newer && !has(Flaw::PutBackUnheard) {
            // An operator put it back before its settle was answered. What is in memory is about to leave.
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
        if let Some(loading) = &mut flow.loading {
            if !self.held.contains_key(&entry.seq) && loading.keep(entry) {
                self.queues[flow.queue].aside += u32::from(lane == Lane::Live);
            } else {
                loading.arrived[lane.index()] = true;
                self.leave_aside(key, lane);
            }
            return;
        }
        // While there is older work in the store, that goes first. What other loads may bring has no claim on the room:
        // often it is nothing.
        let queue = &self.queues[flow.queue];
        let ready = flow.ready[lane.index()].len();
        if flow.hungry[lane.index()] || queue.is_full(lane) || ready >= queue.flow_max() {
            self.leave_aside(key, lane);
            self.hunger_in(key, &[lane]);
            return;
        }
        self.accept(key, entry, now);
    }

    /// A load brings it: until then it counts as one that wants a place.
    fn leave_aside(&mut self, key: FlowKey, lane: Lane) {
        if let Some(flow) = self.flows.get_mut(&key).filter(|_| lane == Lane::Live) {
            flow.aside += 1;
            self.queues[flow.queue].aside += 1;
        }
    }

    /// Puts an event into memory, unless a rule holds it back.
    pub(super) fn accept(&mut self, key: FlowKey, entry: Entry, now: Moment) {
        if self.is_giving(key.shard) {
            return;
        }
        let lane = lane(&entry);
        if !self.is_open(key, lane, now) {
            self.hunger_in(key, &[lane]);
            return;
        }
        let via = self.way_of(key, &entry, now);
        let Some(flow) = self.flows.get_mut(&key) else { return };
        let (seq, suspect) = (entry.seq, entry.progress.suspect);
        if !flow.hold(&entry) {
            return;
        }
        let queue = flow.queue;
        let Some(via) = via else {
            self.queues[queue].hold(lane, entry.event.payload.len());
            self.held.insert(seq, Held { entry, queue, via: queue, place: Place::Ready });
            self.end_on_the_way(seq, now);
            return;
        };
        let place = if suspect { Place::Suspect } else { Place::Ready };
        if suspect {
            self.suspects.push_back(seq);
        } else if flow.push(lane, seq) {
            self.queues[queue].turns[lane.index()].push_back(key);
        }
        self.queues[queue].hold(lane, entry.event.payload.len());
        self.held.insert(seq, Held { entry, queue, via, place });
    }

    /// There may be more in the store.
    pub(super) fn hunger(&mut self, key: FlowKey) {
        self.hunger_in(key, &Lane::BOTH);
    }

    /// There may be more in the store of these lanes.
    fn hunger_in(&mut self, key: FlowKey, lanes: &[Lane]) {
        if self.is_giving(key.shard) {
            return;
        }
        let Some(flow) = self.flows.get_mut(&key) else { return };
        let was_hungry = flow.hungry != [false; 2];
        let is_loading = flow.loading.is_some();
        let hunger = flow.loading.as_mut().map_or(&mut flow.hungry, |loading| &mut loading.arrived);
        lanes.iter().for_each(|lane| hunger[lane.index()] = true);
        if !is_loading && !lanes.is_empty() && (!was_hungry || self.asleep.remove(&key)) {
            self.hungry.push_back(key);
        }
    }

    /// Starts loads for the flows that have little left in memory.
    pub(super) fn start_loads(&mut self, now: Moment, actions: &mut Vec<Action>) {
        if self.draining {
            return;
        }
        for _ in 0..self.hungry.len() {
            if self.loads >= LOADS_MAX {
                return;
            }
            let Some(key) = self.hungry.pop_front() else { return };
            match self.load(key, now) {
                Some(load) => actions.push(Action::Load(key, load)),
                None if self.sleeps(key, now) => {
                    self.asleep.insert(key);
                }
                None => self.hungry.push_back(key),
            }
        }
    }

    fn load(&mut self, key: FlowKey, now: Moment) -> Option<Load> {
        let open = Lane::BOTH.map(|lane| self.is_open(key, lane, now));
        let flow = self.flows.get_mut(&key)?;
        let queue = &self.queues[flow.queue];
        if flow.load_after.is_some_and(|after| after > now) {
            return None;
        }
        let grant = self.shards.get(&key.shard)?.grant();
        // Each lane for itself, so that neither waits for the other.
        let coming = Lane::BOTH.map(|lane| {
            let (max, ready) = (queue.flow_max(), flow.ready[lane.index()].len());
            if !flow.hungry[lane.index()] || !open[lane.index()] || ready * 2 > max {
                return 0;
            }
            if has(Flaw::WindowForEachLoad) { max - ready } else { (max - ready).min(queue.room(lane)) }
        });
        if coming == [0; 2] {
            return None;
        }
        let mut except: Vec<_> = flow.held.iter().copied().collect();
        except.sort_unstable();
        if has(Flaw::StaleLoad) {
            except.retain(|seq| !matches!(self.held[seq].place, Place::Settling(_)));
        }
        let asked = Lane::BOTH.into_iter().filter(|lane| coming[lane.index()] > 0);
        // Other loads may be under way, and a store counts each lane for itself.
        let bytes_left = asked.map(|lane| queue.bytes_left(lane)).min().unwrap_or_default();
        let bytes_max = bytes_left / (2 * LOADS_MAX);
        for (hungry, coming) in flow.hungry.iter_mut().zip(coming) {
            *hungry &= coming == 0;
        }
        let aside = if coming[Lane::Live.index()] > 0 { std::mem::take(&mut flow.aside) } else { 0 };
        flow.loading = Some(Loading { coming, aside, ..Loading::default() });
        self.loads += 1;
        self.queues[flow.queue].expect(coming);
        let [live_max, retry_max] = coming;
        Some(Load { grant, stream: key.stream, until: now, live_max, retry_max, bytes_max, except })
    }

    pub(super) fn load_failed(&mut self, key: FlowKey, now: Moment) {
        let Some(flow) = self.flows.get_mut(&key) else { return };
        let Some(loading) = flow.loading.take() else { return };
        let again = now + LOAD_AGAIN;
        self.loads -= 1;
        self.queues[flow.queue].no_longer_expect(loading.coming);
        flow.hungry = [false; 2];
        flow.aside += loading.aside;
        if let Some(due) = loading.due {
            flow.note_due(due);
        }
        flow.load_after = Some(again);
        self.timers.push(Reverse((again, Timer::Queue)));
        self.hunger(key);
    }

    pub(super) fn loaded(&mut self, key: FlowKey, loaded: Loaded, now: Moment) {
        let Some(flow) = self.flows.get_mut(&key) else { return };
        let Some(loading) = flow.loading.take() else { return };
        let Loading { mut gone, mut arrived, mut told, mut due, coming, aside, recalled, is_blind, .. } =
            loading;
        self.loads -= 1;
        self.queues[flow.queue].no_longer_expect(coming);
        self.queues[flow.queue].aside -= aside;
        if has(Flaw::StaleLoad) {
            gone.clear();
        }
        if has(Flaw::DueLostInLoad) {
            due = None;
        }
        if has(Flaw::ArrivalsLostInLoad) {
            told.clear();
        }
        // An order may have been about one of them, and one that has left memory since may have ended. Another load tells.
        let is_over = |entry: &mut Entry| recalled || gone.contains(&entry.seq);
        told.extract_if(.., is_over).for_each(|entry| arrived[lane(&entry).index()] = true);
        let Loaded { mut entries, more_live, more_retry, next_due, overdue, damaged } = loaded;
        flow.load_after = None;
        flow.next_due = [next_due, due].into_iter().flatten().min();
        let next_due = flow.next_due;
        let left = std::mem::take(&mut flow.hungry);
        // A lane that was not asked for is as hungry as before.
        let more = [more_live, more_retry];
        let is_hungry = |lane: &Lane| {
            let at = lane.index();
            left[at] || arrived[at] || (coming[at] > 0 && (more[at] || recalled))
        };
        let mut hungry: Vec<Lane> = Lane::BOTH.into_iter().filter(is_hungry).collect();
        let mut has_all = [false; 2];
        if recalled && !has(Flaw::RecallMissesLoads) {
            // Its snapshot may show what was taken away since.
            entries.clear();
        } else if !is_blind || has(Flaw::CareEndsBlind) {
            has_all = self.has_all(key, &entries, [more_live, more_retry]);
        }
        if let Some(due) = next_due {
            self.arm(key, due.max(now));
        }
        for entry in entries.into_iter().filter(|entry| !gone.contains(&entry.seq)) {
            let lane = lane(&entry);
            if self.flows.get(&key).is_some_and(|flow| self.queues[flow.queue].is_full(lane)) {
                // Others came into memory meanwhile.
                hungry.push(lane);
                has_all[lane.index()] = false;
            } else {
                self.accept(key, entry, now);
            }
        }
        self.pass_care(key, has_all);
        for letter in overdue {
            self.go_on(key, letter, now);
        }
        self.hunger_in(key, &hungry);
        self.arrived(told, now);
        self.damaged_push(damaged);
        self.forget_flow(key);
    }

    /// A dead letter has held up its key for long enough.
    fn go_on(&mut self, key: FlowKey, letter: Overdue, now: Moment) {
        let Some(shard) = self.shards.get(&key.shard) else { return };
        let grant = shard.grant();
        let told = Letter { flow: key, rev: letter.rev, is_crossed: false };
        if self.letters.insert(letter.seq, told).is_none() {
            self.ready.push(Settle {
                grant,
                seq: letter.seq,
                rev: letter.rev,
                at: now,
                change: Change::GoOn,
            });
        }
    }

    /// Has a flow looked at then, unless it is before.
    pub(super) fn arm(&mut self, key: FlowKey, at: Moment) {
        let Some(flow) = self.flows.get_mut(&key) else { return };
        if flow.armed.is_none_or(|armed| at < armed) {
            flow.armed = Some(at);
            self.timers.push(Reverse((at, Timer::Flow(key))));
        }
    }

    /// Looks at what has come due.
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

/// Which lane an event is in.
pub(super) fn lane(entry: &Entry) -> Lane {
    if entry.progress.attempts == 0 && entry.progress.mode == Mode::Live { Lane::Live } else { Lane::Retry }
}
