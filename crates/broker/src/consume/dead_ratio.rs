//! The dead-letter ratio: if too large a share of recent messages died, the consumer stops instead of emptying a topic
//! into its dead letters.

use std::collections::VecDeque;

/// When a consumer stops.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct DeadRatio {
    /// How many of the last messages are looked at.
    pub window: usize,
    /// Below this number of messages nothing is concluded.
    pub minimum: usize,
    /// The largest share of dead letters, from 0 to 1.
    pub share: f64,
}

impl Default for DeadRatio {
    /// Half of the last 1,000 messages, of at least 100.
    fn default() -> Self {
        Self { window: 1_000, minimum: 100, share: 0.5 }
    }
}

/// The recent messages of a consumer.
#[derive(Debug)]
pub struct DeadRatioWindow {
    limit: DeadRatio,
    recent: VecDeque<bool>,
    dead: usize,
}

impl DeadRatioWindow {
    /// Without messages so far.
    #[must_use]
    pub fn new(limit: DeadRatio) -> Self {
        Self { limit, recent: VecDeque::new(), dead: 0 }
    }

    /// A message is about to end; returns whether it may. If not, it must not be settled, and nothing is counted.
    #[must_use]
    pub fn allows(&mut self, is_dead: bool) -> bool {
        let total = (self.recent.len() + 1).min(self.limit.window.max(1));
        let leaving = self.recent.len() + 1 > total && self.recent.front() == Some(&true);
        let dead = self.dead + usize::from(is_dead) - usize::from(leaving);
        #[allow(clippy::cast_precision_loss, reason = "counts of a window are far below 2^52")]
        let is_over = is_dead && total >= self.limit.minimum && dead as f64 > self.limit.share * total as f64;
        if is_over {
            return false;
        }
        if self.recent.len() + 1 > total {
            self.recent.pop_front();
        }
        self.recent.push_back(is_dead);
        self.dead = dead;
        true
    }

    /// How many of how many recent messages died.
    #[must_use]
    pub fn counts(&self) -> (usize, usize) {
        (self.dead, self.recent.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn too_many_dead_letters_stop_the_consumer_at_the_one_that_trips_it() {
        let mut window = DeadRatioWindow::new(DeadRatio { window: 10, minimum: 4, share: 0.5 });
        // Below the minimum nothing is concluded.
        assert!([true, true, true].into_iter().all(|dead| window.allows(dead)));
        assert!(!window.allows(true));
        assert_eq!(window.counts(), (3, 3));
        // The one that trips it trips it again, until successes move the window.
        assert!(!window.allows(true));
        assert!((0..7).all(|_| window.allows(false)));
        assert_eq!(window.counts(), (3, 10));
        // An old death leaves as a new one comes, then successes leave.
        let allowed = (0..10).filter(|_| window.allows(true)).count();
        assert!(window.counts().0 <= 5 && allowed >= 2, "{:?}", window.counts());
    }
}
