//! Seqs that are drawn ahead.
//!
//! An event's seq is drawn before its row is written, because the checksum covers it: a round trip. If no key has an
//! order to keep, it does not matter when a seq was drawn; so each group draws seqs for the next one in the same
//! statement. Unused seqs are dropped soon: an old seq would sort before all events published meanwhile.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How long a reserved seq may be used.
const GOOD_FOR: Duration = Duration::from_millis(100);
/// Smaller groups draw for themselves: another one is not likely to follow in time.
const GROUP_MIN: usize = 8;
/// How many seqs are reserved at most.
const AHEAD_MAX: usize = 2048;

/// Reserved seqs.
#[derive(Debug, Default)]
pub(in crate::stores::postgres) struct SeqReserve(Mutex<Stock>);

#[derive(Debug, Default)]
struct Stock {
    seqs: Vec<i64>,
    /// When the oldest of them was drawn, at the latest.
    drawn: Option<Instant>,
}

impl SeqReserve {
    /// `count` seqs in order, if there are as many.
    pub(in crate::stores::postgres) fn take(&self, count: usize) -> Option<Vec<i64>> {
        let mut stock = self.stock();
        if stock.drawn.is_none_or(|drawn| drawn.elapsed() > GOOD_FOR) {
            stock.seqs.clear();
        }
        if stock.seqs.len() < count {
            return None;
        }
        Some(stock.seqs.drain(..count).collect())
    }

    /// How many seqs a group of this size should draw, so that the next one finds enough.
    pub(in crate::stores::postgres) fn wanted(&self, count: usize) -> usize {
        if count < GROUP_MIN {
            return 0;
        }
        (count + count / 2).min(AHEAD_MAX).saturating_sub(self.stock().seqs.len())
    }

    /// Adds seqs that were requested at `asked`.
    pub(in crate::stores::postgres) fn add(&self, places: Vec<i64>, asked: Instant) {
        let mut stock = self.stock();
        if stock.seqs.is_empty() {
            stock.drawn = Some(asked);
        }
        if stock.seqs.len() < AHEAD_MAX {
            stock.seqs.extend(places);
        }
    }

    fn stock(&self) -> std::sync::MutexGuard<'_, Stock> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_given_out_once_and_in_their_order() {
        let places = SeqReserve::default();
        assert_eq!(places.take(1), None);
        assert_eq!((places.wanted(1), places.wanted(8)), (0, 12));
        places.add((1..=12).collect(), Instant::now());
        assert_eq!(places.wanted(8), 0);
        assert_eq!(places.take(8), Some((1..=8).collect()));
        assert_eq!(places.take(8), None);
        assert_eq!(places.take(4), Some(vec![9, 10, 11, 12]));
    }

    #[test]
    fn what_was_drawn_long_ago_is_left() {
        let places = SeqReserve::default();
        let Some(long_ago) = Instant::now().checked_sub(2 * GOOD_FOR) else { return };
        places.add(vec![1, 2], long_ago);
        assert_eq!(places.take(1), None);
        places.add(vec![3, 4], Instant::now());
        assert_eq!(places.take(1), Some(vec![3]));
    }
}
