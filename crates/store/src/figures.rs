//! What a store can say of itself at any time, without looking at anything.

/// Figures since the store was opened. What a store does not know is not there, and is not zero.
#[derive(Debug, Clone, PartialEq, Default)]
#[non_exhaustive]
pub struct Figures {
    /// Its commits; none for one that does not count them.
    pub commits: Option<Commits>,
    /// The room where the store is; none for one that has no disk, or where the system does not say.
    pub disk: Option<Room>,
}

/// The commits of a store.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Commits {
    /// How many were made.
    pub count: u64,
    /// How many changes they had in them.
    pub batch: Spread,
    /// How long they took, in seconds: nearly all of it is the sync of the disk.
    pub sync: Spread,
}

/// How values are spread: a histogram.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Spread {
    /// Up to which value, and how many were no larger. Without the last one, which has no bound.
    pub buckets: Vec<(f64, u64)>,
    /// How many there were.
    pub count: u64,
    /// Their sum.
    pub sum: f64,
}

/// The room on a disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Room {
    /// Bytes that are free.
    pub free: u64,
    /// Below which publishing stops.
    pub least: u64,
}

impl Room {
    /// Whether publishing stops for want of it.
    #[must_use]
    pub const fn is_low(self) -> bool {
        self.free < self.least
    }
}
