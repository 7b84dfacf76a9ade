//! The highest rank in the large table, of what is still remembered.
//!
//! Ids go into the table some thousands at a time and leave in the same order, so the highest of them is the maximum
//! of a window that slides. A lot that is followed by a higher one need not be kept: it leaves first. With ids that
//! ascend there is one entry; with any others no more than there are lots.

use std::collections::VecDeque;

use super::id::Rank;

/// Lots that are not followed by a higher one, the highest first.
#[derive(Debug, Default)]
pub(super) struct Peaks {
    lots: VecDeque<Lot>,
}

#[derive(Debug)]
struct Lot {
    /// How many ids had come when it was complete.
    end: u64,
    highest: Rank,
}

impl Peaks {
    /// A lot went into the table.
    pub(super) fn push(&mut self, highest: Rank, end: u64) {
        while self.lots.pop_back_if(|lot| lot.highest <= highest).is_some() {}
        self.lots.push_back(Lot { end, highest });
    }

    /// So many of all that came are gone by now.
    pub(super) fn leave(&mut self, gone: u64) {
        while self.lots.pop_front_if(|lot| lot.end <= gone).is_some() {}
    }

    /// Whether a rank is above those of all that is in the table, and so is nothing in there.
    pub(super) fn are_below(&self, rank: &Rank) -> bool {
        self.lots.front().is_none_or(|lot| rank.is_above(&lot.highest))
    }

    /// Bytes that are set aside.
    pub(super) fn bytes(&self) -> usize {
        self.lots.capacity() * size_of::<Lot>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Dice, Seeded};

    #[test]
    fn the_highest_is_that_of_the_lots_that_are_left() {
        let mut dice = Seeded::new(11);
        let mut peaks = Peaks::default();
        let mut lots: Vec<(u8, u64)> = Vec::new();
        let (mut end, mut gone) = (0, 0);
        for _ in 0..5_000 {
            let rank = u8::try_from(dice.roll() % 9).unwrap();
            end += 1 + dice.roll() % 3;
            peaks.push(Rank::of(&[rank]), end);
            lots.push((rank, end));
            if end - gone > 20 {
                gone += dice.roll() % 20;
                peaks.leave(gone);
            }
            lots.retain(|(_, end)| *end > gone);
            for asked in 0..10_u8 {
                let expected = lots.iter().all(|(rank, _)| *rank < asked);
                assert_eq!(peaks.are_below(&Rank::of(&[asked])), expected, "{asked} of {lots:?}");
            }
        }
    }

    #[test]
    fn ids_that_ascend_need_one_entry() {
        let mut peaks = Peaks::default();
        (0..100_u8).for_each(|n| peaks.push(Rank::of(&[n]), u64::from(n)));
        assert_eq!(peaks.lots.len(), 1);
    }
}
