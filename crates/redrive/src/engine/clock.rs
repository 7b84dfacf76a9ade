//! What time it is, for events that outlive the process.
//!
//! Moments are nanoseconds since the Unix epoch, so that they mean the same after a restart. Within a process
//! they come from tokio's monotonic clock, anchored once at the time of day, so that a clock that is set back
//! does not make retries wait, and paused time works in tests. Where the time of day runs ahead (the machine
//! slept, or was set right after the start), it is followed; never backwards.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use redrive_core::Moment;
use tokio::time::Instant;

/// How far ahead the time of day may be before it is followed.
const SLACK: Duration = Duration::from_secs(1);

/// A clock for events.
#[derive(Debug)]
pub struct Timepiece {
    anchor: Moment,
    /// When it began to run; none where it stands.
    start: Option<Instant>,
    /// What was added since, in nanoseconds.
    ahead: AtomicU64,
    follows: bool,
}

impl Timepiece {
    /// The time of day.
    #[must_use]
    pub fn wall() -> Self {
        Self { anchor: time_of_day(), start: Some(Instant::now()), ahead: AtomicU64::new(0), follows: true }
    }

    /// Time that passes only as tokio's does: with paused time, when a test says so.
    #[must_use]
    pub fn paused_at(anchor: Moment) -> Self {
        Self { anchor, start: Some(Instant::now()), ahead: AtomicU64::new(0), follows: false }
    }

    /// Time that stands still, and passes when [`testing::pass`](crate::testing::pass) says so.
    #[must_use]
    pub fn still_at(anchor: Moment) -> Self {
        Self { anchor, start: None, ahead: AtomicU64::new(0), follows: false }
    }

    /// The present moment.
    #[must_use]
    pub fn now(&self) -> Moment {
        let run = self.start.map_or(Duration::ZERO, |start| start.elapsed());
        self.anchor + run + Duration::from_nanos(self.ahead.load(Ordering::Relaxed))
    }

    /// When the clock began that calls outside of the engine go by: budgets, breakers and rates may be shared with
    /// them.
    pub(crate) fn origin(&self) -> Moment {
        Moment::from_nanos(self.now().since(redrive_retry::clock()).as_nanos().try_into().unwrap_or(u64::MAX))
    }

    /// Looks at the time of day, and follows it where it is ahead. To be called now and then.
    pub(crate) fn follow(&self) {
        let ahead = time_of_day().since(self.now());
        if self.follows && ahead > SLACK {
            let nanos = u64::try_from(ahead.as_nanos()).unwrap_or(u64::MAX);
            self.ahead.fetch_add(nanos, Ordering::Relaxed);
        }
    }

    /// Has time pass at once, for tests.
    pub(crate) fn pass(&self, time: Duration) {
        let nanos = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        self.ahead.fetch_add(nanos, Ordering::Relaxed);
    }

    /// The instant at which a moment comes.
    pub(crate) fn instant(&self, moment: Moment) -> Instant {
        let now = Instant::now();
        // Tokio's timers do not go further than some years.
        let wait = moment.since(self.now()).min(Duration::from_secs(86_400 * 365));
        now + wait
    }
}

/// The time of day as a moment.
fn time_of_day() -> Moment {
    SystemTime::now().into()
}
