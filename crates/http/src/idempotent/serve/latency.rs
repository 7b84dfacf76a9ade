//! The usual duration of an operation: the suggested wait for clients that ask while it runs.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// A bucket for each power of two of milliseconds: the last is over a day.
const BUCKETS: usize = 28;

/// After this many runs the past counts half, so that changes show.
const RUNS_MAX: u32 = 1024;

/// The times of runs, roughly.
#[derive(Debug, Default)]
pub(in crate::idempotent) struct LatencyHistogram([AtomicU32; BUCKETS]);

impl LatencyHistogram {
    pub(in crate::idempotent) fn took(&self, time: Duration) {
        let millis = u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        let bucket = (u64::BITS - millis.leading_zeros()) as usize;
        self.0[bucket.min(BUCKETS - 1)].fetch_add(1, Ordering::Relaxed);
        if self.0.iter().map(|count| count.load(Ordering::Relaxed)).sum::<u32>() > RUNS_MAX {
            // A race halves twice, which is no worse than halving once.
            self.0.iter().for_each(|count| count.store(count.load(Ordering::Relaxed) / 2, Ordering::Relaxed));
        }
    }

    /// The 95th percentile; `None` before the first run.
    pub(in crate::idempotent) fn usual(&self) -> Option<Duration> {
        let counts = self.0.each_ref().map(|count| u64::from(count.load(Ordering::Relaxed)));
        let all: u64 = counts.iter().sum();
        let mut seen = 0;
        let bucket = counts.iter().position(|count| {
            seen += count;
            all > 0 && seen * 100 >= all * 95
        });
        bucket.map(|bucket| Duration::from_millis(1 << bucket))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_usual_time_is_what_most_runs_stay_below() {
        let pace = LatencyHistogram::default();
        assert_eq!(pace.usual(), None);
        for _ in 0..99 {
            pace.took(Duration::from_millis(3));
        }
        pace.took(Duration::from_secs(60));
        assert_eq!(pace.usual(), Some(Duration::from_millis(4)));
        for _ in 0..5000 {
            pace.took(Duration::from_millis(900));
        }
        assert_eq!(pace.usual(), Some(Duration::from_millis(1024)), "the past is forgotten");
    }
}
