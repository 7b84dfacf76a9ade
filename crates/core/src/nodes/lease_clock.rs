//! How long a node may act as the owner of its shards.
//!
//! A lease is renewed in the database and runs by the database's clock. The node cannot see that clock, so it
//! counts by its own clock from the instant *before* it sent the renewal. The database wrote the new end
//! after that instant, so the lease lasts at least as long as the node assumes. The node subtracts a margin,
//! because two clocks do not run equally fast and because some time passes between reading the clock and
//! acting.
//!
//! When the lease has run out, the node acts as if every shard had another owner. This protects receivers
//! outside the database; inside it, the fencing token decides.

use std::time::Duration;

use crate::moment::Moment;

/// The part of a lease that the node does not use: an eighth. Clocks differ by far less; pauses may not.
const MARGIN: u32 = 8;
/// How many renewals fit into a lease.
const BEATS: u32 = 4;
/// How often a node reads the table at least.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// How long after the end of another node's lease to read the table: by then its shards are free by the
/// database's clock too, and not only by ours.
const LOOK_AFTER: Duration = Duration::from_millis(20);

/// How often a node renews its lease.
#[must_use]
pub fn beat_every(lease: Duration) -> Duration {
    lease / BEATS
}

/// When to read the table again, given the time left of the other owners' leases: when the first of them may
/// have run out, and regularly in any case.
#[must_use]
pub fn look_in(left: impl IntoIterator<Item = Duration>) -> Duration {
    left.into_iter().map(|left| left + LOOK_AFTER).fold(LOOK_EVERY, Duration::min)
}

/// A node's lease, as the node sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LeaseClock {
    lease: Duration,
    /// When it runs out.
    end: Moment,
}

impl LeaseClock {
    /// A lease that was renewed by a statement sent `passed` before `now`.
    #[must_use]
    pub fn new(lease: Duration, passed: Duration, now: Moment) -> Self {
        Self { lease, end: now + (lease - lease / MARGIN).saturating_sub(passed) }
    }

    /// The time left.
    #[must_use]
    pub const fn left(&self, now: Moment) -> Duration {
        self.end.since(now)
    }

    /// Whether the lease has run out: the node owns nothing any more.
    #[must_use]
    pub fn is_over(&self, now: Moment) -> bool {
        self.end <= now
    }

    /// Whether an attempt with this time limit may start: the lease must outlast it, or have half its length
    /// left if the limit is longer than that or absent. While renewals arrive, half a lease is always left.
    #[must_use]
    pub fn has_time_for(&self, time: Option<Duration>, now: Moment) -> bool {
        let half = self.lease / 2;
        let left = self.left(now);
        !left.is_zero() && left >= time.map_or(half, |time| time.min(half))
    }
}
