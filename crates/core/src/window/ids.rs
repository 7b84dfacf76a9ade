//! The ids that are remembered: a ring in the order of time, and a table that says where each is in it.
//!
//! The oldest is at the front, so forgetting is taking from there, by time as by count. Ring entries have numbers
//! that grow and wrap around; the table keeps numbers instead of places, so the ring may move when it grows. An
//! entry is 24 bytes and its slot in the table 8, of which a quarter is empty: 35 bytes an id, whatever its length.

use std::collections::VecDeque;

use super::mark::Mark;
use super::slots::Slots;
use crate::moment::Moment;

/// What is set aside at first.
const FIRST_ROOM: usize = 1024;

/// Ids with the moments at which they were committed.
#[derive(Debug)]
pub(super) struct Ids {
    ring: VecDeque<Entry>,
    /// The number of the entry at the front.
    first: u32,
    slots: Slots,
    max: usize,
}

#[derive(Debug, Clone, Copy)]
struct Entry {
    mark: Mark,
    at: Moment,
}

/// What was taken from the front.
#[derive(Debug, Clone, Copy)]
pub(super) struct Oldest {
    pub(super) at: Moment,
    /// Whether it was still the entry of its id; not where the id was committed again later.
    pub(super) counted: bool,
}

impl Ids {
    pub(super) fn new(max: usize) -> Self {
        Self { ring: VecDeque::new(), first: 0, slots: Slots::default(), max }
    }

    /// Entries in the ring, those included that are no longer an id's own.
    pub(super) fn entries(&self) -> usize {
        self.ring.len()
    }

    /// Different ids.
    pub(super) const fn ids(&self) -> usize {
        self.slots.used()
    }

    /// Bytes that are set aside.
    pub(super) fn bytes(&self) -> usize {
        self.ring.capacity() * size_of::<Entry>() + self.slots.bytes()
    }

    /// When an id was committed last.
    pub(super) fn find(&self, mark: Mark) -> Option<Moment> {
        let mut found = None;
        self.slots.find(mark.tag(), |number| {
            let entry = &self.ring[self.place(number)];
            found = (entry.mark == mark).then_some(entry.at);
            found.is_some()
        });
        found
    }

    /// Puts an id at the end. There must be room, and nothing later in the ring.
    pub(super) fn push(&mut self, mark: Mark, at: Moment) {
        self.make_room();
        let number = self.number(self.ring.len());
        let before = self.slots.find(mark.tag(), |number| self.ring[self.place(number)].mark == mark);
        self.ring.push_back(Entry { mark, at });
        match before {
            Some(slot) => self.slots.renumber(slot, number),
            None => self.slots.insert(mark.tag(), number),
        }
    }

    /// When the oldest was committed.
    pub(super) fn oldest(&self) -> Option<Moment> {
        self.ring.front().map(|entry| entry.at)
    }

    /// Takes the oldest away.
    pub(super) fn pop(&mut self) -> Option<Oldest> {
        let Entry { mark, at } = self.ring.pop_front()?;
        let slot = self.slots.find(mark.tag(), |number| number == self.first);
        if let Some(slot) = slot {
            self.slots.remove(slot);
        }
        self.first = self.first.wrapping_add(1);
        Some(Oldest { at, counted: slot.is_some() })
    }

    fn make_room(&mut self) {
        if self.ring.len() == self.ring.capacity() {
            let room = (self.ring.len() * 2).clamp(FIRST_ROOM, self.max.max(FIRST_ROOM));
            self.ring.reserve_exact(room.saturating_sub(self.ring.len()).max(1));
        }
        if !self.slots.has_room() {
            self.slots.grow((self.slots.used() * 2).clamp(FIRST_ROOM, self.max.max(FIRST_ROOM)));
        }
    }

    /// Where the entry with this number is.
    const fn place(&self, number: u32) -> usize {
        number.wrapping_sub(self.first) as usize
    }

    /// The number of the entry at this place.
    #[expect(
        clippy::cast_possible_truncation,
        reason = "numbers wrap around, and the ring is shorter than that"
    )]
    const fn number(&self, place: usize) -> u32 {
        self.first.wrapping_add(place as u32)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mark(n: u32) -> Mark {
        Mark::of("", &n.to_be_bytes())
    }

    #[test]
    fn numbers_may_wrap_around() {
        let mut ids = Ids::new(10);
        ids.first = u32::MAX - 3;
        for n in 0..100 {
            if ids.entries() == 10 {
                assert!(ids.pop().is_some_and(|oldest| oldest.counted));
            }
            ids.push(mark(n), Moment::from_nanos(u64::from(n)));
            for known in n.saturating_sub(9)..=n {
                assert_eq!(ids.find(mark(known)), Some(Moment::from_nanos(u64::from(known))));
            }
            assert_eq!(n.checked_sub(10).and_then(|gone| ids.find(mark(gone))), None);
        }
    }

    #[test]
    fn an_id_that_is_committed_again_counts_once() {
        let mut ids = Ids::new(10);
        ids.push(mark(1), Moment::from_nanos(1));
        ids.push(mark(2), Moment::from_nanos(2));
        ids.push(mark(1), Moment::from_nanos(3));
        assert_eq!((ids.ids(), ids.entries()), (2, 3));
        assert!(ids.pop().is_some_and(|oldest| !oldest.counted));
        assert_eq!(ids.find(mark(1)), Some(Moment::from_nanos(3)));
    }

    /// What the page on benchmarks says.
    #[test]
    fn an_id_takes_thirty_five_bytes() {
        let mut ids = Ids::new(100_000);
        (0..100_000).for_each(|n| ids.push(mark(n), Moment::default()));
        assert_eq!(ids.bytes() / 100_000, 34);
    }
}
