//! The remembered ids: a ring in the order of time, and tables from ids to ring entries.
//!
//! The oldest id is at the front, so removing by time or by count takes from there. Ring entries have numbers
//! that grow and wrap around; the tables store numbers instead of positions, so the ring may move when it
//! grows. An entry is 24 bytes and its slots in the table 16, of which half are empty: 40 bytes an id,
//! whatever its length.
//!
//! In a large table every slot is a cache miss, and these misses took most of the time of a new id. Three
//! measures avoid them:
//!
//! - New ids go into a small young table, which stays in the cache, and move to the large table in batches. A
//!   batch first reads all its slots before it changes any: these reads do not depend on each other, and the
//!   processor waits for many of them at once.
//! - A removed id leaves its slot behind, whose number is no longer in the ring. Later ids reuse it, and the
//!   rest is cleared piece by piece, in the order of the table.
//! - An id whose rank is above all ids in the large table is not searched for there. Ascending ids touch only
//!   the young table and the two ends of the ring; so do roughly ascending ids, if an id is late by much less
//!   than a batch.

use std::collections::{HashSet, VecDeque};

use super::id::{Rank, ScopedId};
use super::mark::IdMark;
use super::peaks::Peaks;
use super::slots::Slots;
use crate::moment::Moment;

/// The initial capacity.
const FIRST_ROOM: usize = 1024;
/// The most young ids. Their table is 64 KiB.
const LOT_MAX: usize = 4096;
/// A small window has small batches, so that the overhead beside its ids is small.
const LOTS: usize = 64;
/// How many slots are read before they are changed: more than a processor waits for at once, and few enough
/// to stay in its cache until then.
const TOGETHER: usize = 64;
/// How many slots of the large table are cleared for every new id. One pass over the table therefore takes an
/// eighth as many new ids as there are slots: no more than that many stale slots exist at any time, and they
/// are cleared long before their numbers come round again.
const CLEARED_PER_ID: usize = 8;

/// Ids with the moments at which they were committed.
#[derive(Debug)]
pub(super) struct Ids {
    ring: VecDeque<Entry>,
    /// The number of the entry at the front.
    first: u32,
    /// How many ids came since the last batch moved to the large table.
    young: usize,
    young_slots: Slots,
    young_highest: Rank,
    slots: Slots,
    /// Where clearing of the large table continues.
    clear_at: usize,
    peaks: Peaks,
    /// How many ids were removed so far.
    left: u64,
    /// Ring entries whose ids were committed again later. They are few: an id is committed again only after
    /// it expired, except after a restart with a longer time.
    again: HashSet<u32>,
    max: usize,
    lot: usize,
}

#[derive(Debug, Clone, Copy)]
struct Entry {
    mark: IdMark,
    at: Moment,
}

impl Ids {
    pub(super) fn new(max: usize) -> Self {
        Self::in_lots(max, (max / LOTS).clamp(1, LOT_MAX))
    }

    fn in_lots(max: usize, lot: usize) -> Self {
        Self {
            ring: VecDeque::new(),
            first: 0,
            young: 0,
            young_slots: Slots::default(),
            young_highest: Rank::LEAST,
            slots: Slots::default(),
            clear_at: 0,
            peaks: Peaks::default(),
            left: 0,
            again: HashSet::new(),
            max,
            lot,
        }
    }

    /// Entries in the ring, including those that a later entry of the same id replaces.
    pub(super) fn entries(&self) -> usize {
        self.ring.len()
    }

    /// Different ids.
    pub(super) fn ids(&self) -> usize {
        self.ring.len() - self.again.len()
    }

    /// Bytes allocated.
    pub(super) fn bytes(&self) -> usize {
        let aside = self.peaks.bytes() + self.again.capacity() * size_of::<u64>();
        self.ring.capacity() * size_of::<Entry>() + self.slots.bytes() + self.young_slots.bytes() + aside
    }

    /// When an id was committed last.
    pub(super) fn find(&self, id: &ScopedId) -> Option<Moment> {
        let found = match self.seek(&self.young_slots, id.mark) {
            None if !self.peaks.are_below(&id.rank) => self.seek(&self.slots, id.mark),
            found => found,
        };
        found.map(|(_, place)| self.ring[place].at)
    }

    /// Adds an id at the end; it must be absent or expired. `is_new` means that the caller searched and found
    /// nothing. There must be room, and no later moment in the ring.
    pub(super) fn push(&mut self, id: &ScopedId, at: Moment, is_new: bool) {
        self.make_room();
        let number = self.number(self.ring.len());
        let before = if is_new { None } else { self.seek(&self.young_slots, id.mark) };
        self.ring.push_back(Entry { mark: id.mark, at });
        self.young += 1;
        self.young_highest = self.young_highest.max(id.rank);
        if let Some((slot, place)) = before {
            self.again.insert(self.number(place));
            self.young_slots.renumber(slot, number);
        } else {
            self.young_slots.insert(id.mark.tag(), number);
        }
    }

    /// Adds an id at the end that may be present and not expired.
    pub(super) fn push_again(&mut self, id: &ScopedId, at: Moment) {
        self.make_room();
        if let Some((_, place)) = self.seek(&self.slots, id.mark) {
            self.again.insert(self.number(place));
        }
        self.push(id, at, false);
    }

    /// When the oldest was committed.
    pub(super) fn oldest(&self) -> Option<Moment> {
        self.ring.front().map(|entry| entry.at)
    }

    /// Removes the oldest entry, expired or not. Its slot stays behind. Returns whether it was still the
    /// entry of its id: it is not if the id was committed again later.
    pub(super) fn pop(&mut self, is_over: bool) -> bool {
        let Some(Entry { mark, .. }) = self.ring.pop_front() else { return false };
        let was_again = !self.again.is_empty() && self.again.remove(&self.first);
        self.first = self.first.wrapping_add(1);
        self.left += 1;
        self.peaks.leave(self.left);
        // Only an expired id is committed again, and the large table does not have the young ids yet.
        !(was_again || is_over && self.seek(&self.young_slots, mark).is_some())
    }

    /// Moves the young ids into the large table.
    fn mingle(&mut self) {
        let there = self.there();
        let room = self.slots.used() + self.young;
        if !self.slots.has_room(room) {
            let ids = (room * 2).clamp(FIRST_ROOM.min(self.max), self.max);
            self.slots.grow(ids, |number| !there.has(number));
            self.clear_at = 0;
        }
        let mut place = self.ring.len().saturating_sub(self.young);
        while place < self.ring.len() {
            let end = (place + TOGETHER).min(self.ring.len());
            self.slots.look_at(self.ring.range(place..end).map(|entry| entry.mark.tag()));
            for place in place..end {
                let (number, mark) = (self.number(place), self.ring[place].mark);
                let is_it =
                    |number| self.ring.get(there.place(number)).is_some_and(|entry| entry.mark == mark);
                let before = self.slots.replace(mark.tag(), number, is_it, |number| !there.has(number));
                self.again.extend(before);
            }
            place = end;
        }
        let many = self.young * CLEARED_PER_ID;
        self.clear_at = self.slots.clear_some(self.clear_at, many, |number| !there.has(number));
        self.peaks.push(self.young_highest, self.left + self.ring.len() as u64);
        self.young_slots.clear();
        self.young_highest = Rank::LEAST;
        self.young = 0;
    }

    fn make_room(&mut self) {
        if self.ring.len() == self.ring.capacity() {
            let room = (self.ring.len() * 2).clamp(FIRST_ROOM, self.max.max(FIRST_ROOM));
            self.ring.reserve_exact(room.saturating_sub(self.ring.len()).max(1));
        }
        if self.young == self.lot {
            self.mingle();
        }
        let young = self.young_slots.used();
        if !self.young_slots.has_room(young + 1) {
            self.young_slots.grow((young * 2).clamp(FIRST_ROOM.min(self.lot), self.lot), |_| false);
        }
    }

    /// The slot of an id in a table and its position in the ring, if it is still there.
    fn seek(&self, slots: &Slots, mark: IdMark) -> Option<(usize, usize)> {
        let mut place = 0;
        let slot = slots.find(mark.tag(), |number| {
            place = self.there().place(number);
            self.ring.get(place).is_some_and(|entry| entry.mark == mark)
        });
        slot.map(|slot| (slot, place))
    }

    fn there(&self) -> There {
        There { first: self.first, many: self.ring.len() }
    }

    /// The number of the entry at this position.
    #[expect(
        clippy::cast_possible_truncation,
        reason = "numbers wrap around, and the ring is shorter than that"
    )]
    const fn number(&self, place: usize) -> u32 {
        self.first.wrapping_add(place as u32)
    }
}

/// Which numbers are in the ring.
#[derive(Debug, Clone, Copy)]
struct There {
    first: u32,
    many: usize,
}

impl There {
    /// The position of the entry with this number; beyond the end if it is gone.
    const fn place(self, number: u32) -> usize {
        number.wrapping_sub(self.first) as usize
    }

    const fn has(self, number: u32) -> bool {
        self.place(number) < self.many
    }
}

#[cfg(test)]
mod tests;
