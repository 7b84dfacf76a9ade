//! A hash table from ids to ring numbers: each slot is one word, half a piece of the mark and half a number.
//!
//! An unseen id, the usual case, needs this table alone: one memory location, or two neighbouring ones. The
//! table uses open addressing with a piece of the mark in every slot, because a table of numbers alone would
//! have to look into the ring, which is elsewhere in memory, at every step. The piece also gives the slot's
//! home position, so removing and growing need no ring either; and as its top bits are used first, growing
//! goes through both tables in order. A stale entry may stay until its slot is needed: the caller recognises
//! it by its number.

/// Extra slots of even the smallest table, so that one is always empty.
const SPARE: usize = 8;

/// A table from the tags of marks to numbers.
#[derive(Debug, Default)]
pub(super) struct Slots {
    /// The tag in the upper half, the number in the lower; 0 is empty.
    slots: Vec<u64>,
    used: usize,
}

impl Slots {
    /// How many slots this many ids need: two for each, so that searches stay short even with some stale
    /// entries.
    const fn slots_for(ids: usize) -> usize {
        ids * 2 + SPARE
    }

    /// Slots that are not empty.
    pub(super) const fn used(&self) -> usize {
        self.used
    }

    /// Bytes allocated.
    pub(super) const fn bytes(&self) -> usize {
        self.slots.capacity() * size_of::<u64>()
    }

    /// Whether this many fit: a quarter stays empty.
    pub(super) const fn has_room(&self, ids: usize) -> bool {
        ids <= self.slots.len() / 4 * 3
    }

    /// Makes room for this many, and leaves out stale entries.
    pub(super) fn grow(&mut self, ids: usize, is_over: impl Fn(u32) -> bool) {
        let wider = vec![0; Self::slots_for(ids)];
        let before = std::mem::replace(&mut self.slots, wider);
        self.used = 0;
        for slot in before.into_iter().filter(|slot| *slot != 0) {
            let (tag, number) = parts(slot);
            if !is_over(number) {
                self.insert(tag, number);
            }
        }
    }

    /// Empties all slots.
    pub(super) fn clear(&mut self) {
        self.slots.fill(0);
        self.used = 0;
    }

    /// Reads the slots of some tags that are needed next. The reads do not depend on each other, so together
    /// they take little more time than one.
    pub(super) fn look_at(&self, tags: impl Iterator<Item = u32>) {
        let looks = tags.map(|tag| self.slots.get(self.home(tag)).copied().unwrap_or_default());
        // Keeps the compiler from removing the reads, whose result is not used.
        std::hint::black_box(looks.fold(0, |all, slot| all ^ slot));
    }

    /// The first slot with this tag whose number is accepted.
    pub(super) fn find(&self, tag: u32, mut is_it: impl FnMut(u32) -> bool) -> Option<usize> {
        if self.slots.is_empty() {
            return None;
        }
        let mut at = self.home(tag);
        loop {
            let slot = self.slots[at];
            if slot == 0 {
                return None;
            }
            let (there, number) = parts(slot);
            if there == tag && is_it(number) {
                return Some(at);
            }
            at = self.after(at);
        }
    }

    /// Inserts a number; there must be room.
    pub(super) fn insert(&mut self, tag: u32, number: u32) {
        let mut at = self.home(tag);
        while self.slots[at] != 0 {
            at = self.after(at);
        }
        self.slots[at] = whole(tag, number);
        self.used += 1;
    }

    /// Inserts a number in place of an accepted one with this tag, if there is one, and returns the old
    /// number; otherwise in a stale or empty slot. One pass over the slots.
    pub(super) fn replace(
        &mut self,
        tag: u32,
        number: u32,
        mut is_it: impl FnMut(u32) -> bool,
        is_over: impl Fn(u32) -> bool,
    ) -> Option<u32> {
        let mut at = self.home(tag);
        let mut free = None;
        loop {
            let slot = self.slots[at];
            if slot == 0 {
                break;
            }
            let (there, known) = parts(slot);
            if there == tag && is_it(known) {
                self.slots[at] = whole(tag, number);
                return Some(known);
            }
            if free.is_none() && is_over(known) {
                free = Some(at);
            }
            at = self.after(at);
        }
        self.used += usize::from(free.is_none());
        self.slots[free.unwrap_or(at)] = whole(tag, number);
        None
    }

    /// Clears the stale entries among some slots. Returns where to continue.
    pub(super) fn clear_some(&mut self, from: usize, many: usize, is_over: impl Fn(u32) -> bool) -> usize {
        let mut at = from;
        for _ in 0..many.min(self.slots.len()) {
            // Another entry may have moved up into the gap.
            while self.slots[at] != 0 && is_over(parts(self.slots[at]).1) {
                self.remove(at);
            }
            at = self.after(at);
        }
        at
    }

    /// Gives a slot another number under the same tag.
    pub(super) fn renumber(&mut self, at: usize, number: u32) {
        let (tag, _) = parts(self.slots[at]);
        self.slots[at] = whole(tag, number);
    }

    /// Empties a slot and moves up the entries behind it that belong further up, so that no search stops at
    /// the gap.
    fn remove(&mut self, at: usize) {
        let mut gap = at;
        let mut next = self.after(at);
        while self.slots[next] != 0 {
            let home = self.home(parts(self.slots[next]).0);
            if self.steps(home, next) >= self.steps(gap, next) {
                self.slots[gap] = self.slots[next];
                gap = next;
            }
            next = self.after(next);
        }
        self.slots[gap] = 0;
        self.used -= 1;
    }

    /// The home position of a tag: its share of the table, from the top bits down.
    #[allow(clippy::cast_possible_truncation, reason = "less than the number of slots")]
    const fn home(&self, tag: u32) -> usize {
        ((tag as u64 * self.slots.len() as u64) >> 32) as usize
    }

    const fn after(&self, at: usize) -> usize {
        if at + 1 == self.slots.len() { 0 } else { at + 1 }
    }

    /// The number of steps from one slot to another, around the end.
    const fn steps(&self, from: usize, to: usize) -> usize {
        if to >= from { to - from } else { to + self.slots.len() - from }
    }
}

const fn whole(tag: u32, number: u32) -> u64 {
    (tag as u64) << 32 | number as u64
}

#[expect(clippy::cast_possible_truncation, reason = "the halves of a word")]
const fn parts(slot: u64) -> (u32, u32) {
    ((slot >> 32) as u32, slot as u32)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{RandomSource, SeededRandom};
    use std::collections::BTreeSet;

    /// Few tags, all at the end of the table, so that runs are long and go around it.
    #[test]
    fn whatever_is_removed_the_rest_is_found() {
        let mut slots = Slots::default();
        let mut there = BTreeSet::new();
        let mut random = SeededRandom::new(7);
        for number in 0..4_000_u32 {
            let tag = u32::MAX - u32::try_from(random.roll() % 5).unwrap();
            if !slots.has_room(slots.used() + 1) {
                slots.grow((slots.used() * 2).clamp(4, 40), |_| false);
            }
            slots.insert(tag, number);
            there.insert((tag, number));
            if there.len() > 30 {
                let skip = usize::try_from(random.roll() % 30).unwrap();
                let (tag, number) = *there.iter().nth(skip).unwrap();
                let at = slots.find(tag, |found| found == number).unwrap();
                slots.remove(at);
                there.remove(&(tag, number));
                assert_eq!(slots.find(tag, |found| found == number), None);
            }
            assert_eq!(slots.used(), there.len());
            for (tag, number) in &there {
                assert!(slots.find(*tag, |found| found == *number).is_some(), "{number} of {there:?}");
            }
        }
    }
}
