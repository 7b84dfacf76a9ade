//! Statistics of a store, available at any time without a query.

/// Statistics since the store was opened. A value that a store does not know is `None`, not zero.
#[derive(Debug, Clone, PartialEq, Default)]
#[non_exhaustive]
pub struct CommitAndDiskStats {
    /// Its commits; `None` if it does not count them.
    pub commits: Option<Commits>,
    /// Disk space; `None` if the store has no disk, or the system does not report it.
    pub disk: Option<DiskSpace>,
}

/// The commits of a store.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Commits {
    /// How many were made.
    pub count: u64,
    /// How many changes each had.
    pub batch: Histogram,
    /// How long they took, in seconds: mostly the sync of the disk.
    pub sync: Histogram,
}

/// A histogram.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Histogram {
    /// Upper bounds, each with how many values were not above it. Without the last bucket, which has no bound.
    pub buckets: Vec<(f64, u64)>,
    /// How many values there were.
    pub count: u64,
    /// Their sum.
    pub sum: f64,
}

/// Space on a disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DiskSpace {
    /// Free bytes.
    pub free: u64,
    /// The bytes that publishing needs; below, it stops.
    pub least: u64,
}

impl DiskSpace {
    /// Whether publishing stops for lack of space.
    #[must_use]
    pub const fn is_low(self) -> bool {
        self.free < self.least
    }
}
