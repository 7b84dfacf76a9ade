//! Where an id is in the ring: a table of words, half of each a piece of the mark and half a number.
//!
//! An id that was never seen, the usual case, is answered from here alone: one place in memory, or two that are
//! neighbours. Open addressing with a piece of the mark in every slot, because a table of numbers would have to
//! look into the ring, which is somewhere else in memory, at every step. The piece also says where a slot belongs,
//! so removing and growing need no ring either; and as it is used from the top, growing goes through both tables
//! in order. What is no longer wanted may stay until it is in the way: whoever asks knows it by its number.

/// Slots that even the smallest table has, so that one is always empty.
const SPARE: usize = 8;

/// A table from marks' tags to numbers.
#[derive(Debug, Default)]
pub(super) struct Slots {
    /// Tag in the upper half, number in the lower; 0 is empty.
    slots: Vec<u64>,
    used: usize,
}

impl Slots {
    /// How many slots are there for so many ids: two for each, so that searches are short, also where the ids of
    /// some are no longer wanted.
    const fn slots_for(ids: usize) -> usize {
        ids * 2 + SPARE
    }

    /// Slots that are not empty.
    pub(super) const fn used(&self) -> usize {
        self.used
    }

    /// Bytes that are set aside.
    pub(super) const fn bytes(&self) -> usize {
        self.slots.capacity() * size_of::<u64>()
    }

    /// Whether so many fit: a quarter stays empty.
    pub(super) const fn has_room(&self, ids: usize) -> bool {
        ids <= self.slots.len() / 4 * 3
    }

    /// Makes room for so many, and leaves out those that are no longer wanted.
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

    /// Looks at the places of some tags that are needed next. One look waits for none of the others, so together
    /// they take little more time than one.
    pub(super) fn look_at(&self, tags: impl Iterator<Item = u32>) {
        let looks = tags.map(|tag| self.slots.get(self.home(tag)).copied().unwrap_or_default());
        // Nothing is done with them, which is a reason to leave them out, if they were not asked for.
        std::hint::black_box(looks.fold(0, |all, slot| all ^ slot));
    }

    /// Where the first slot is with this tag whose number is accepted.
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

    /// Puts a number in, for which there must be room.
    pub(super) fn insert(&mut self, tag: u32, number: u32) {
        let mut at = self.home(tag);
        while self.slots[at] != 0 {
            at = self.after(at);
        }
        self.slots[at] = whole(tag, number);
        self.used += 1;
    }

    /// Puts a number in, in the place of one with this tag that is accepted, if there is one, and gives that; else
    /// in the place of one that is no longer wanted, or in an empty one. In one way through the slots.
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

    /// Goes through some slots and empties those that are no longer wanted. Says where to go on.
    pub(super) fn clear_some(&mut self, from: usize, many: usize, is_over: impl Fn(u32) -> bool) -> usize {
        let mut at = from;
        for _ in 0..many.min(self.slots.len()) {
            // Another one may move up into the gap.
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

    /// Empties a slot, and moves up those that were put further on because of it: no search stops at the gap.
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

    /// Where a tag belongs: its share of the table, from the top bits down.
    #[allow(clippy::cast_possible_truncation, reason = "less than the number of slots")]
    const fn home(&self, tag: u32) -> usize {
        ((tag as u64 * self.slots.len() as u64) >> 32) as usize
    }

    const fn after(&self, at: usize) -> usize {
        if at + 1 == self.slots.len() { 0 } else { at + 1 }
    }

    /// Steps from one slot on to another, around the end.
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
    use crate::{Dice, Seeded};
    use std::collections::BTreeSet;

    /// Few tags, all at the end of the table, so that runs are long and go around it.
    #[test]
    fn whatever_is_removed_the_rest_is_found() {
        let mut slots = Slots::default();
        let mut there = BTreeSet::new();
        let mut dice = Seeded::new(7);
        for number in 0..4_000_u32 {
            let tag = u32::MAX - u32::try_from(dice.roll() % 5).unwrap();
            if !slots.has_room(slots.used() + 1) {
                slots.grow((slots.used() * 2).clamp(4, 40), |_| false);
            }
            slots.insert(tag, number);
            there.insert((tag, number));
            if there.len() > 30 {
                let skip = usize::try_from(dice.roll() % 30).unwrap();
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
