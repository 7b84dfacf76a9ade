//! Where an event goes that is published by a process that could run it at once.
//!
//! Where several processes share a store, a shard by the hash is mostly somebody else's: that one has to hear of the event
//! and load it. An event without a key may be in any shard, so one for which there is a place here goes into a shard of
//! ours, and is handed out from the memory of whoever published it. Everything else goes by the hash: what has a key or
//! waits for its time, what nobody runs here, and whatever is more than there are places, so that the others get work
//! when there is too much for one.
//!
//! The loop says after each round how many places are free ([`Near::update`]); a publisher takes one before it publishes,
//! and it counts until the loop has heard of the event. What is told by then is in the loop's own figures, so a place is
//! given once. A publisher takes no lock and allocates nothing: it looks up the queue, and changes a counter or two.
//!
//! All of it is about speed. A place that is gone, or a shard that has another owner by the time of the commit, makes the
//! event run later or elsewhere, and never twice or not at all.

use std::collections::HashMap;
use std::sync::Arc;

use crate::event::Event;
use crate::moment::Moment;
use crate::planted::{Flaw, has};
use crate::scheduler::Scheduler;
use crate::sync::{AtomicU64, Ordering};

/// The free places of a process, and the shards that it owns.
#[derive(Debug)]
pub struct Near {
    queues: HashMap<Arc<str>, Places>,
    /// The shards, a bit each.
    shards: Box<[AtomicU64]>,
    /// Which of them is next.
    turn: AtomicU64,
}

/// The places of a queue.
#[derive(Debug)]
struct Places {
    /// Its number in the scheduler.
    number: usize,
    /// How many were free when the loop said so last.
    free: AtomicU64,
    /// How many were taken that the loop's figures do not have yet.
    taken: AtomicU64,
    /// Those of them whose publish was answered.
    landed: AtomicU64,
    /// Those of which the loop has heard since.
    heard: AtomicU64,
}

/// A place for an event that is about to be published. It is free again when the loop has heard of the event, or of
/// none although it was answered.
#[derive(Debug)]
pub struct Place<'a> {
    places: &'a Places,
    shard: u32,
}

impl Near {
    /// For these queues, in the order of the scheduler, and so many shards. Nothing is free yet.
    #[must_use]
    pub fn new(queues: impl IntoIterator<Item = Arc<str>>, shards: u32) -> Self {
        let places = |number| Places {
            number,
            free: AtomicU64::new(0),
            taken: AtomicU64::new(0),
            landed: AtomicU64::new(0),
            heard: AtomicU64::new(0),
        };
        Self {
            queues: queues.into_iter().enumerate().map(|(number, name)| (name, places(number))).collect(),
            shards: (0..shards.div_ceil(u64::BITS)).map(|_| AtomicU64::new(0)).collect(),
            turn: AtomicU64::new(0),
        }
    }

    /// A place for an event that is published at `at`, if it may go anywhere and would start at once here.
    pub fn take(&self, event: &Event, at: Moment) -> Option<Place<'_>> {
        if (event.key.is_some() && !has(Flaw::KeysGoNear)) || event.when.moment(at) > at {
            return None;
        }
        let places = self.queues.get(event.queue.as_str()).filter(|places| places.take())?;
        let shard = self.next_shard();
        if shard.is_none() {
            places.taken.fetch_sub(1, Ordering::AcqRel);
        }
        Some(Place { places, shard: shard? })
    }

    /// To be called before the loop takes in what it was told: whatever was answered until now is among that.
    pub fn hear(&self) {
        for places in self.queues.values() {
            let landed = places.landed.swap(0, Ordering::AcqRel);
            places.heard.fetch_add(landed, Ordering::AcqRel);
        }
    }

    /// To be called when the scheduler has acted on what it was told.
    pub fn update(&self, scheduler: &Scheduler, now: Moment) {
        for places in self.queues.values() {
            places.free.store(scheduler.free_places(places.number, now).into(), Ordering::Release);
            // After that, so that whoever sees fewer taken sees that fewer are free.
            let heard = places.heard.swap(0, Ordering::AcqRel);
            places.taken.fetch_sub(heard, Ordering::AcqRel);
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

    /// Nothing runs here any more.
    pub fn close(&self) {
        self.queues.values().for_each(|places| places.free.store(0, Ordering::Release));
        self.shards.iter().for_each(|word| word.store(0, Ordering::Release));
    }

    /// Our shards in turn.
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
        // Some of them were lost in between.
        None
    }
}

impl Places {
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

impl Place<'_> {
    /// In which shard.
    #[must_use]
    pub const fn shard(&self) -> u32 {
        self.shard
    }

    /// Nothing will come of it: it was a duplicate, or refused.
    pub fn give_up(self) {
        self.places.taken.fetch_sub(1, Ordering::AcqRel);
        std::mem::forget(self);
    }
}

impl Drop for Place<'_> {
    /// It was published, or nobody waited for the answer: the loop hears of it, if it is there.
    fn drop(&mut self) {
        self.places.landed.fetch_add(1, Ordering::AcqRel);
    }
}
