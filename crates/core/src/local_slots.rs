//! Local slots: where an event goes if the publishing process can run it immediately.
//!
//! When several processes share a store, the shard chosen by the hash mostly belongs to another process,
//! which has to be notified and load the event. An event without an ordering key may live in any shard. If
//! this process has a free slot for it, the event goes into one of this process's own shards and is
//! dispatched from memory. All other events go by the hash: events with a key or a later due time, events of
//! queues that do not run here, and events beyond the free slots, so that other processes share the load.
//!
//! After each round the engine's loop reports how many slots are free ([`LocalSlots::update`]). A publisher takes
//! one before it publishes, and the slot counts as taken until the loop has received the event. From then on
//! the event is in the loop's own counts, so a slot is used once. A publisher takes no lock and allocates
//! nothing: it looks up the queue and changes one or two counters.
//!
//! Slots only affect speed. If a slot is gone or a shard has another owner at commit time, the event runs
//! later or elsewhere, but never twice and never not at all.

use std::collections::HashMap;
use std::sync::Arc;

use crate::event::Event;
use crate::moment::Moment;
use crate::planted::{PlantedBug, has};
use crate::scheduler::Scheduler;
use crate::sync::{AtomicU64, Ordering};

/// The free slots of a process, and the shards that it owns.
#[derive(Debug)]
pub struct LocalSlots {
    queues: HashMap<Arc<str>, QueueSlots>,
    /// The owned shards, one bit each.
    shards: Box<[AtomicU64]>,
    /// A counter that selects the next shard.
    turn: AtomicU64,
}

/// The slots of a queue.
#[derive(Debug)]
struct QueueSlots {
    /// The queue's number in the scheduler.
    number: usize,
    /// How many slots were free at the loop's last report.
    free: AtomicU64,
    /// How many slots are taken that the loop's counts do not include yet.
    taken: AtomicU64,
    /// How many of them belong to publishes that were answered.
    landed: AtomicU64,
    /// How many of them the loop has received since.
    heard: AtomicU64,
}

/// A slot for an event that is about to be published. It is free again when the loop has received the event,
/// or when the publish was answered and the loop received none.
#[derive(Debug)]
pub struct Slot<'a> {
    slots: &'a QueueSlots,
    shard: u32,
}

impl LocalSlots {
    /// Slots for these queues, in the scheduler's order, and this many shards. No slot is free yet.
    #[must_use]
    pub fn new(queues: impl IntoIterator<Item = Arc<str>>, shards: u32) -> Self {
        let slots = |number| QueueSlots {
            number,
            free: AtomicU64::new(0),
            taken: AtomicU64::new(0),
            landed: AtomicU64::new(0),
            heard: AtomicU64::new(0),
        };
        Self {
            queues: queues.into_iter().enumerate().map(|(number, name)| (name, slots(number))).collect(),
            shards: (0..shards.div_ceil(u64::BITS)).map(|_| AtomicU64::new(0)).collect(),
            turn: AtomicU64::new(0),
        }
    }

    /// Takes a slot for an event published at `at`, if the event may go into any shard and would start here
    /// immediately.
    pub fn take(&self, event: &Event, at: Moment) -> Option<Slot<'_>> {
        if (event.key.is_some() && !has(PlantedBug::KeysGoNear)) || event.when.moment(at) > at {
            return None;
        }
        let slots = self.queues.get(event.queue.as_str()).filter(|slots| slots.take())?;
        let shard = self.next_shard();
        if shard.is_none() {
            slots.taken.fetch_sub(1, Ordering::AcqRel);
        }
        Some(Slot { slots, shard: shard? })
    }

    /// Call this before the loop takes its inputs: every publish answered so far is among them.
    pub fn hear(&self) {
        for slots in self.queues.values() {
            let landed = slots.landed.swap(0, Ordering::AcqRel);
            slots.heard.fetch_add(landed, Ordering::AcqRel);
        }
    }

    /// Call this when the scheduler has processed those inputs.
    pub fn update(&self, scheduler: &Scheduler, now: Moment) {
        for slots in self.queues.values() {
            slots.free.store(scheduler.free_slots(slots.number, now).into(), Ordering::Release);
            // After `free`, so that a publisher that sees fewer taken slots also sees the new number of free
            // ones.
            let heard = slots.heard.swap(0, Ordering::AcqRel);
            slots.taken.fetch_sub(heard, Ordering::AcqRel);
        }
        let mut owned = scheduler.shards_to_stay().peekable();
        for (word, number) in self.shards.iter().zip(0..) {
            let (mut bits, end) = (0, (number + 1) * u64::BITS);
            while let Some(shard) = owned.next_if(|shard| *shard < end) {
                bits |= 1 << (shard % u64::BITS);
            }
            word.store(bits, Ordering::Release);
        }
    }

    /// Closes all slots: this process runs no events any more.
    pub fn close(&self) {
        self.queues.values().for_each(|slots| slots.free.store(0, Ordering::Release));
        self.shards.iter().for_each(|word| word.store(0, Ordering::Release));
    }

    /// The owned shards in turn.
    fn next_shard(&self) -> Option<u32> {
        let words = || self.shards.iter().map(|word| word.load(Ordering::Acquire));
        let count: u32 = words().map(u64::count_ones).sum();
        if count == 0 {
            return None;
        }
        let mut skip = u32::try_from(self.turn.fetch_add(1, Ordering::Relaxed) % u64::from(count)).ok()?;
        for (mut word, number) in words().zip(0..) {
            if skip >= word.count_ones() {
                skip -= word.count_ones();
                continue;
            }
            for _ in 0..skip {
                word &= word - 1;
            }
            return Some(number * u64::BITS + word.trailing_zeros());
        }
        // Some shards were lost in between.
        None
    }
}

impl QueueSlots {
    fn take(&self) -> bool {
        if self.free.load(Ordering::Acquire) == 0 {
            return false;
        }
        let before = self.taken.fetch_add(1, Ordering::AcqRel);
        let is_free = before < self.free.load(Ordering::Acquire);
        if !is_free {
            self.taken.fetch_sub(1, Ordering::AcqRel);
        }
        is_free
    }
}

impl Slot<'_> {
    /// The shard the event goes into.
    #[must_use]
    pub const fn shard(&self) -> u32 {
        self.shard
    }

    /// Returns the slot unused: the event was a duplicate or was refused.
    pub fn give_up(self) {
        self.slots.taken.fetch_sub(1, Ordering::AcqRel);
        std::mem::forget(self);
    }
}

impl Drop for Slot<'_> {
    /// The event was published, or the publisher did not wait for the answer: the loop receives the event if
    /// it exists.
    fn drop(&mut self) {
        self.slots.landed.fetch_add(1, Ordering::AcqRel);
    }
}
