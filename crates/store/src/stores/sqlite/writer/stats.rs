//! How much was written, and how long it took. One thread counts, and others read: an addition costs no lock.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use crate::stats::Histogram;
use crate::stores::shared::numbers::nanos;

/// Bounds of the changes in a commit.
const BATCH: [u64; 8] = [1, 4, 16, 64, 256, 1_024, 4_096, 16_384];
/// Bounds of the time that a commit takes, in microseconds.
const SYNC_MICROS: [u64; 10] = [100, 250, 500, 1_000, 2_500, 5_000, 10_000, 50_000, 250_000, 1_000_000];

/// How much was written.
#[derive(Debug, Default)]
pub(in crate::stores::sqlite) struct CommitStats {
    batch: Counts<{ BATCH.len() }>,
    sync: Counts<{ SYNC_MICROS.len() }>,
}

impl CommitStats {
    pub(in crate::stores::sqlite) fn count(&self, events: usize, took: Duration) {
        let (events, took) = (events as u64, nanos(took));
        self.batch.add(events, BATCH.iter().position(|bound| events <= *bound));
        self.sync.add(took, SYNC_MICROS.iter().position(|bound| took <= *bound * 1_000));
    }

    /// How many commits, and how many changes in them.
    pub(in crate::stores::sqlite) fn done(&self) -> (u64, u64) {
        (self.batch.count.load(Relaxed), self.batch.sum.load(Relaxed))
    }

    /// How many changes the commits had in them.
    pub(in crate::stores::sqlite) fn batch(&self) -> Histogram {
        self.batch.spread(BATCH, 1.0)
    }

    /// How many seconds they took.
    pub(in crate::stores::sqlite) fn sync(&self) -> Histogram {
        self.sync.spread(SYNC_MICROS.map(|micros| micros * 1_000), 1e9)
    }
}

/// How many values were within each bound and over the one before.
#[derive(Debug)]
struct Counts<const N: usize> {
    within: [AtomicU64; N],
    count: AtomicU64,
    sum: AtomicU64,
}

impl<const N: usize> Default for Counts<N> {
    fn default() -> Self {
        Self { within: std::array::from_fn(|_| AtomicU64::new(0)), count: 0.into(), sum: 0.into() }
    }
}

impl<const N: usize> Counts<N> {
    fn add(&self, value: u64, bucket: Option<usize>) {
        if let Some(bucket) = bucket {
            self.within[bucket].fetch_add(1, Relaxed);
        }
        self.sum.fetch_add(value, Relaxed);
        self.count.fetch_add(1, Relaxed);
    }

    #[expect(clippy::cast_precision_loss, reason = "figures for people")]
    fn spread(&self, bounds: [u64; N], unit: f64) -> Histogram {
        // Read first, so that no bucket has more than all.
        let mut sum = 0;
        let buckets = bounds.iter().zip(&self.within).map(|(bound, within)| {
            sum += within.load(Relaxed);
            (*bound as f64 / unit, sum)
        });
        let buckets: Vec<_> = buckets.collect();
        let count = self.count.load(Relaxed).max(sum);
        Histogram { buckets, count, sum: self.sum.load(Relaxed) as f64 / unit }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_commit_is_in_the_buckets_that_have_room_for_it() {
        let work = CommitStats::default();
        work.count(1, Duration::from_micros(80));
        work.count(5, Duration::from_millis(3));
        work.count(20_000, Duration::from_secs(2));
        assert_eq!(work.done(), (3, 20_006));
        let batch = work.batch();
        assert_eq!((batch.count, batch.buckets[0], batch.buckets[2]), (3, (1.0, 1), (16.0, 2)));
        assert_eq!(batch.buckets.last(), Some(&(16_384.0, 2)));
        let sync = work.sync();
        assert_eq!((sync.count, sync.buckets[0], sync.buckets[5]), (3, (0.0001, 1), (0.005, 2)));
        assert!((sync.sum - 2.00308).abs() < 1e-9, "{}", sync.sum);
    }
}
