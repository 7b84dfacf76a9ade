//! The highest rank in the large table, among the ids that are still remembered.
//!
//! Ids go into the table in batches of some thousands and leave in the same order, so the highest rank is the
//! maximum of a sliding window. A batch that is followed by a higher one need not be kept: it leaves first.
//! Ascending ids need one entry; other ids need at most one for each batch.

use std::collections::VecDeque;

use super::id::Rank;

/// Batches that are not followed by a higher one, the highest first.
#[derive(Debug, Default)]
pub(super) struct Peaks {
    lots: VecDeque<Lot>,
}

#[derive(Debug)]
struct Lot {
    /// How many ids had come when the batch was complete.
    end: u64,
    highest: Rank,
}

impl Peaks {
    /// Records a batch that went into the table.
    pub(super) fn push(&mut self, highest: Rank, end: u64) {
        while self.lots.pop_back_if(|lot| lot.highest <= highest).is_some() {}
        self.lots.push_back(Lot { end, highest });
    }

    /// Records that this many of all ids are gone.
    pub(super) fn leave(&mut self, gone: u64) {
        while self.lots.pop_front_if(|lot| lot.end <= gone).is_some() {}
    }

    /// Whether a rank is above all ids in the table, so that its id is not in there.
    pub(super) fn are_below(&self, rank: &Rank) -> bool {
        self.lots.front().is_none_or(|lot| rank.is_above(&lot.highest))
    }

    /// Bytes allocated.
    pub(super) fn bytes(&self) -> usize {
        self.lots.capacity() * size_of::<Lot>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{RandomSource, SeededRandom};

    #[test]
    fn the_highest_is_that_of_the_lots_that_are_left() {
        let mut random = SeededRandom::new(11);
        let mut peaks = Peaks::default();
        let mut lots: Vec<(u8, u64)> = Vec::new();
        let (mut end, mut gone) = (0, 0);
        for _ in 0..5_000 {
            let rank = u8::try_from(random.roll() % 9).unwrap();
            end += 1 + random.roll() % 3;
            peaks.push(Rank::of(&[rank]), end);
            lots.push((rank, end));
            if end - gone > 20 {
                gone += random.roll() % 20;
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
