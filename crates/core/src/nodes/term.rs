//! How long a node may act as the owner of its shards.
//!
//! A lease is renewed in the database and runs by the database's clock. Its holder cannot see that clock, so it counts
//! by its own from the instant *before* it sent the renewal: the database wrote the new end after that instant, hence
//! whatever the holder thinks is left is really left. Taken off is a margin, because two clocks do not run equally fast
//! and because between a look at the clock and what is done next some time passes.
//!
//! When nothing is left, the holder acts as if every shard had another owner. That is a courtesy to receivers outside
//! the database; inside it the fence decides.

use std::time::Duration;

use crate::moment::Moment;

/// The part of a lease that its holder does not use: an eighth. Clocks differ by far less; pauses do not.
const MARGIN: u32 = 8;
/// How many renewals a lease has time for.
const BEATS: u32 = 4;
/// How often a node looks around at least.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// How long after the end of somebody's lease to look: its shards are free by the database's clock then, and not by
/// ours alone.
const LOOK_AFTER: Duration = Duration::from_millis(20);

/// How often a lease is renewed.
#[must_use]
pub fn beat_every(lease: Duration) -> Duration {
    lease / BEATS
}

/// When to look around again, where this much is left of the leases of all other owners: when the first of them may be
/// over, and now and then in any case.
#[must_use]
pub fn look_in(left: impl IntoIterator<Item = Duration>) -> Duration {
    left.into_iter().map(|left| left + LOOK_AFTER).fold(LOOK_EVERY, Duration::min)
}

/// A lease, as its holder sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Term {
    lease: Duration,
    /// When nothing is left of it.
    end: Moment,
}

impl Term {
    /// A lease that was renewed by a statement sent `passed` before `now`.
    #[must_use]
    pub fn new(lease: Duration, passed: Duration, now: Moment) -> Self {
        Self { lease, end: now + (lease - lease / MARGIN).saturating_sub(passed) }
    }

    /// What is left of it.
    #[must_use]
    pub const fn left(&self, now: Moment) -> Duration {
        self.end.since(now)
    }

    /// Whether nothing is left of it: its holder owns nothing any more.
    #[must_use]
    pub fn is_over(&self, now: Moment) -> bool {
        self.end <= now
    }

    /// Whether an attempt that may take so long may start: it is to be over before the lease is. One that may take
    /// longer than any lease leaves time for, or for as long as it likes, wants half a lease, which is always left
    /// while renewals arrive.
    #[must_use]
    pub fn has_time_for(&self, time: Option<Duration>, now: Moment) -> bool {
        let half = self.lease / 2;
        let left = self.left(now);
        !left.is_zero() && left >= time.map_or(half, |time| time.min(half))
    }
}
