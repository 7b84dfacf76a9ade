//! Places that are drawn ahead.
//!
//! An event's place is drawn before its row is written, because the checksum has it in it: a round trip. Where no key
//! has an order to be kept, it does not matter when a place was drawn; so each group draws for the next one along with
//! what it writes. What nobody has used soon is left: an old place would be in front of everybody who came meanwhile.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How long a place is as good as one that is drawn now.
const GOOD_FOR: Duration = Duration::from_millis(100);
/// Those that come one by one draw for themselves: it is not likely that another one follows in time.
const GROUP_MIN: usize = 8;
/// How many are drawn ahead at most.
const AHEAD_MAX: usize = 2048;

/// Places that are nobody's yet.
#[derive(Debug, Default)]
pub(super) struct Places(Mutex<Stock>);

#[derive(Debug, Default)]
struct Stock {
    places: Vec<i64>,
    /// When the oldest of them was drawn, at the latest.
    drawn: Option<Instant>,
}

impl Places {
    /// So many, in their order, if there are.
    pub(super) fn take(&self, count: usize) -> Option<Vec<i64>> {
        let mut stock = self.stock();
        if stock.drawn.is_none_or(|drawn| drawn.elapsed() > GOOD_FOR) {
            stock.places.clear();
        }
        if stock.places.len() < count {
            return None;
        }
        Some(stock.places.drain(..count).collect())
    }

    /// How many a group of this size should draw, so that the next one finds enough.
    pub(super) fn wanted(&self, count: usize) -> usize {
        if count < GROUP_MIN {
            return 0;
        }
        (count + count / 2).min(AHEAD_MAX).saturating_sub(self.stock().places.len())
    }

    /// Adds some that were asked for at `asked`.
    pub(super) fn add(&self, places: Vec<i64>, asked: Instant) {
        let mut stock = self.stock();
        if stock.places.is_empty() {
            stock.drawn = Some(asked);
        }
        if stock.places.len() < AHEAD_MAX {
            stock.places.extend(places);
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
        let places = Places::default();
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
        let places = Places::default();
        let Some(long_ago) = Instant::now().checked_sub(2 * GOOD_FOR) else { return };
        places.add(vec![1, 2], long_ago);
        assert_eq!(places.take(1), None);
        places.add(vec![3, 4], Instant::now());
        assert_eq!(places.take(1), Some(vec![3]));
    }
}
