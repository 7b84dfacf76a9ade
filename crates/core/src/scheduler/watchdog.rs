//! A watchdog over shards that have work and make no progress.
//!
//! The scheduler plans everything that can be done each time it is asked, so a shard with a runnable event
//! and a free slot never stands still. If a bug breaks this, events wait in silence, and that failure hurts
//! most. The watchdog therefore trusts nothing that the scheduler remembers: while no attempt of a shard is
//! running, it regularly reads from the store which events could run. If it finds the same event twice, with
//! nothing started in between for [`STALL_AFTER`], the shard is stalled. The scheduler then forgets the shard
//! ([`Action::Stalled`]), the node takes it again, and everything is loaded again.
//!
//! The watchdog costs a small read for each stream of an idle shard, three times in [`STALL_AFTER`], and
//! nothing while the shard works. It looks at the streams that the scheduler knows, and once at those that it
//! dropped because they were empty.

use std::collections::BTreeMap;
use std::time::Duration;

use super::dispatch::tuned;
use super::flow::FlowKey;
use super::load::lane;
use super::{Action, Scheduler, Shard};
use crate::moment::Moment;
use crate::queue_entry::{LoadRequest, LoadedEvents, QueueEntry, Seq, StreamId};

/// How long a shard may have a runnable event and a free slot without a running attempt. Ten times the
/// slowest healthy turn: a poll that finds an event whose notification was lost.
pub const STALL_AFTER: Duration = Duration::from_secs(30);

/// How often the watchdog reads the store within that time.
const LOOKS: u32 = 3;

/// How long ago a breaker, a budget, a rate or a limit must have closed the queue for the last time. While
/// one of them is asked again and again, the queue is open for a moment in between.
const OPEN_FOR: Duration = Duration::from_secs(1);

/// A shard without running attempts.
#[derive(Debug)]
pub(super) struct Idle {
    /// When the store is read next.
    look_at: Moment,
    /// The event that could run in each flow: its sequence number, its revision, and when it was first seen.
    seen: BTreeMap<FlowKey, (Seq, u32, Moment)>,
}

/// A flow that was dropped because it was empty.
#[derive(Debug)]
pub(super) struct Forgotten {
    pub(super) stream: StreamId,
    pub(super) queue: usize,
    pub(super) tenant: Box<str>,
}

/// How many dropped flows of a shard the watchdog looks at.
const FORGOTTEN_MAX: usize = 64;

impl Shard {
    /// Remembers a dropped flow until the watchdog has looked at it; keeps the last ones.
    pub(super) fn forget(&mut self, flow: Forgotten) {
        if self.forgotten.len() == FORGOTTEN_MAX {
            self.forgotten.pop_front();
        }
        self.forgotten.push_back(flow);
    }
}

impl Scheduler {
    /// Sets how long a shard may be stalled before it is taken again. Default: [`STALL_AFTER`].
    pub fn set_stall_after(&mut self, stall_after: Duration) {
        self.stall_after = Some(stall_after);
    }

    fn stall_after(&self) -> Duration {
        self.stall_after.unwrap_or(STALL_AFTER)
    }

    /// Looks for shards that make no progress, and plans [reads](Action::Check) of the store for them. Call
    /// this about once a second, however busy the engine is.
    pub fn watch(&mut self, now: Moment, actions: &mut Vec<Action>) {
        let is_held_up = self.draining || !self.suspects.is_empty() || !self.lone.is_empty();
        let look_again = now + self.stall_after() / LOOKS;
        let numbers: Vec<u32> = self.shards.keys().copied().collect();
        for number in numbers {
            let is_busy = is_held_up || self.is_giving(number) || self.is_under_way(number);
            let Some(shard) = self.shards.get_mut(&number) else { continue };
            if is_busy {
                shard.idle = None;
                continue;
            }
            let token = shard.token();
            let idle = shard.idle.get_or_insert_with(|| Idle { look_at: look_again, seen: BTreeMap::new() });
            if idle.look_at > now {
                continue;
            }
            idle.look_at = look_again;
            for Forgotten { stream, queue, tenant } in std::mem::take(&mut shard.forgotten) {
                let name = self.queues[queue].plan.name.clone();
                self.flow_of(number, stream, &name, &tenant);
            }
            for key in self.flows.keys().filter(|key| key.shard == number) {
                let load = LoadRequest {
                    token,
                    stream: key.stream,
                    until: now,
                    live_max: 1,
                    retry_max: 1,
                    bytes_max: 1,
                    except: Vec::new(),
                };
                actions.push(Action::Check(*key, load));
            }
        }
    }

    /// The store's events of a flow that makes no progress.
    pub(super) fn checked(&mut self, key: FlowKey, loaded: &LoadedEvents, now: Moment) {
        let could_run = loaded.entries.iter().find(|entry| self.could_start(key, entry, now));
        let could_run = could_run.map(|entry| (entry.seq, entry.rev));
        // A key that should have been unparked is a stall as well.
        let overdue = loaded.overdue.first().map(|letter| (letter.seq, letter.rev));
        let could_run = could_run.or(overdue);
        let stall_after = self.stall_after();
        let Some(shard) = self.shards.get_mut(&key.shard).filter(|shard| shard.token().epoch == key.epoch)
        else {
            return;
        };
        let token = shard.token();
        let Some(idle) = &mut shard.idle else { return };
        let Some((seq, rev)) = could_run else {
            idle.seen.remove(&key);
            // Flows that were dropped before and found empty are forgotten for good.
            let known = shard.forgotten.len();
            self.forget_flow(key);
            if let Some(shard) = self.shards.get_mut(&key.shard) {
                shard.forgotten.truncate(known);
            }
            return;
        };
        let seen = idle.seen.entry(key).or_insert((seq, rev, now));
        if (seen.0, seen.1) != (seq, rev) {
            *seen = (seq, rev, now);
        }
        if now.since(seen.2) >= stall_after {
            self.drop_shard(key.shard);
            self.tidings.push(Action::Stalled { token, waiting: seq });
        }
    }

    /// Whether a shard has a running attempt, write or load.
    fn is_under_way(&self, number: u32) -> bool {
        let is_loading =
            |(key, flow): (&FlowKey, &super::Flow)| key.shard == number && flow.loading.is_some();
        let is_busy = |held: &super::TrackedEvent| held.entry.shard == number && !held.state.waits();
        self.shards.get(&number).is_some_and(Shard::is_noting)
            || self.letters.values().any(|letter| letter.flow.shard == number)
            || self.flows.iter().any(is_loading)
            || self.tracked.values().any(is_busy)
    }

    /// Whether the scheduler could start an event that the store would return.
    fn could_start(&self, key: FlowKey, entry: &QueueEntry, now: Moment) -> bool {
        let lane = lane(entry);
        let Some(via) = self.way_of(key, entry, now) else { return false };
        let Some(flow) = self.flows.get(&key) else { return false };
        let queue = &self.queues[flow.queue];
        let is_closed = queue.closed_until[lane.index()].is_some_and(|until| until + OPEN_FOR > now);
        let policy = &self.queues[via].plan.policy;
        let tuned = tuned(policy, entry);
        let time = tuned.as_ref().unwrap_or(policy.settings()).attempt_time;
        let has_time = self.term.is_none_or(|term| term.has_time_for(time, now));
        self.is_open(key, lane, now) && !is_closed && has_time && queue.running() < queue.plan.concurrency
    }

    /// Makes a shard forget its work, as a bug would. For tests of the watchdog.
    #[doc(hidden)]
    pub fn stall(&mut self, number: u32) {
        for (_, flow) in self.flows.iter_mut().filter(|(key, _)| key.shard == number) {
            flow.needs_load = [false; 2];
            flow.ready.iter_mut().for_each(std::collections::VecDeque::clear);
        }
        for queue in &mut self.queues {
            queue.forget_shard(number);
        }
        self.needs_load.retain(|key| key.shard != number);
    }
}
