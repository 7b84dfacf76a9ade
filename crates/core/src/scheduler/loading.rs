//! What comes into memory: arrivals, loads, and the next of a key.

use std::cmp::Reverse;
use std::time::Duration;

use super::flow::{FlowKey, Loading};
use super::queue::Lane;
use super::{Action, Held, LOADS_MAX, Place, Scheduler, Timer};
use crate::entry::{Change, Entry, Load, Loaded, Overdue, Settle, StreamId};
use crate::event::Mode;
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
        for (stream, queue, _) in streams {
            for shard in &shards {
                self.flow_of(*shard, stream, &queue);
            }
        }
        let keys: Vec<FlowKey> = self.flows.keys().copied().collect();
        keys.into_iter().for_each(|key| self.hunger(key));
    }

    /// Takes an event in that the store just handed out, or remembers that it is there.
    pub(super) fn arrive(&mut self, entry: Entry, now: Moment) {
        let Some(key) = self.flow_of(entry.shard, entry.stream, &entry.event.queue) else { return };
        let Some(flow) = self.flows.get_mut(&key) else { return };
        if entry.progress.due > now {
            let due = entry.progress.due;
            if flow.note_due(due) {
                self.timers.push(Reverse((due, Timer::Flow(key))));
            }
            return;
        }
        if let Some(loading) = &mut flow.loading {
            if !has(Flaw::ArrivalsLostInLoad) {
                loading.arrived = true;
            }
            return;
        }
        // While there is older work in the store, that goes first.
        let queue = &self.queues[flow.queue];
        if flow.hungry || !queue.has_room() || flow.ready_len() >= queue.flow_max() {
            self.hunger(key);
            return;
        }
        self.accept(key, entry);
    }

    /// Puts an event into memory.
    pub(super) fn accept(&mut self, key: FlowKey, entry: Entry) {
        let Some(flow) = self.flows.get_mut(&key) else { return };
        let (seq, suspect) = (entry.seq, entry.progress.suspect);
        if !flow.hold(&entry) {
            return;
        }
        let lane = lane(&entry);
        let queue = flow.queue;
        let place = if suspect { Place::Suspect } else { Place::Ready };
        if suspect {
            self.suspects.push_back(seq);
        } else if flow.push(lane, seq) {
            self.queues[queue].turns[lane.index()].push_back(key);
        }
        self.queues[queue].held += 1;
        self.queues[queue].bytes += entry.event.payload.len();
        self.held.insert(seq, Held { entry, queue, place });
    }

    /// There may be more in the store.
    pub(super) fn hunger(&mut self, key: FlowKey) {
        let Some(flow) = self.flows.get_mut(&key) else { return };
        if let Some(loading) = &mut flow.loading {
            loading.arrived = true;
        } else if !std::mem::replace(&mut flow.hungry, true) {
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
                None => self.hungry.push_back(key),
            }
        }
    }

    fn load(&mut self, key: FlowKey, now: Moment) -> Option<Load> {
        let flow = self.flows.get_mut(&key)?;
        let queue = &self.queues[flow.queue];
        let max = queue.flow_max();
        let ready = flow.ready_len();
        if ready * 2 > max || !queue.has_room() || flow.load_after.is_some_and(|after| after > now) {
            return None;
        }
        let grant = self.shards.get(&key.shard)?.grant();
        // Half for each lane, so that neither waits for the other.
        let mut share = (max - ready).min(queue.room()) / 2;
        if has(Flaw::WindowForEachLoad) {
            share = (max - ready).div_ceil(2);
        }
        if share == 0 {
            return None;
        }
        let mut except: Vec<_> = flow.held.iter().copied().collect();
        except.sort_unstable();
        if has(Flaw::StaleLoad) {
            except.retain(|seq| !matches!(self.held[seq].place, Place::Settling(_)));
        }
        flow.hungry = false;
        flow.loading = Some(Loading { coming: 2 * share, ..Loading::default() });
        self.loads += 1;
        let bytes_max = queue.plan.window_bytes_max - queue.bytes.min(queue.plan.window_bytes_max);
        let (live_max, retry_max) = (share, share);
        self.queues[flow.queue].coming += 2 * share;
        Some(Load { grant, stream: key.stream, until: now, live_max, retry_max, bytes_max, except })
    }

    pub(super) fn load_failed(&mut self, key: FlowKey, now: Moment) {
        let Some(flow) = self.flows.get_mut(&key) else { return };
        let Some(loading) = flow.loading.take() else { return };
        let again = now + LOAD_AGAIN;
        self.loads -= 1;
        self.queues[flow.queue].coming -= loading.coming;
        if let Some(due) = loading.due {
            flow.note_due(due);
        }
        flow.load_after = Some(again);
        self.timers.push(Reverse((again, Timer::Flow(key))));
        self.hunger(key);
    }

    pub(super) fn loaded(&mut self, key: FlowKey, loaded: Loaded, now: Moment) {
        let Some(flow) = self.flows.get_mut(&key) else { return };
        let Some(Loading { mut gone, arrived, mut due, coming }) = flow.loading.take() else { return };
        self.loads -= 1;
        self.queues[flow.queue].coming -= coming;
        if has(Flaw::StaleLoad) {
            gone.clear();
        }
        if has(Flaw::DueLostInLoad) {
            due = None;
        }
        let Loaded { entries, more_live, more_retry, next_due, overdue, damaged } = loaded;
        flow.load_after = None;
        flow.next_due = [next_due, due].into_iter().flatten().min();
        let (next_due, more) = (flow.next_due, more_live || more_retry || arrived);
        self.pass_care(key, &entries, [more_live, more_retry]);
        if let Some(due) = next_due {
            self.timers.push(Reverse((due.max(now), Timer::Flow(key))));
        }
        for entry in entries {
            if !gone.contains(&entry.seq) {
                self.accept(key, entry);
            }
        }
        for letter in overdue {
            self.go_on(key, letter, now);
        }
        if more {
            self.hunger(key);
        }
        self.damaged_push(damaged);
    }

    /// A dead letter has held up its key for long enough.
    fn go_on(&mut self, key: FlowKey, letter: Overdue, now: Moment) {
        let Some(shard) = self.shards.get(&key.shard) else { return };
        let grant = shard.grant();
        if self.letters.insert(letter.seq, key).is_none() {
            self.ready.push(Settle {
                grant,
                seq: letter.seq,
                rev: letter.rev,
                at: now,
                change: Change::GoOn,
            });
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
                    if flow.next_due.is_some_and(|due| due <= now) {
                        flow.next_due = None;
                        self.hunger(key);
                    }
                }
                // The next `act` looks anyway.
                Timer::Queue => {}
                Timer::Settle(seq, rev, epoch) => self.settle_again(seq, rev, epoch),
            }
        }
    }
}

/// Which lane an event is in.
pub(super) fn lane(entry: &Entry) -> Lane {
    if entry.progress.attempts == 0 && entry.progress.mode == Mode::Live { Lane::Live } else { Lane::Retry }
}
