//! What time it is, for events that outlive the process.
//!
//! Moments are nanoseconds since the Unix epoch, so that they mean the same after a restart. Within a process
//! they come from tokio's monotonic clock, anchored once at the time of day, so that a clock that is set back
//! does not make retries wait, and paused time works in tests. Where the time of day runs ahead (the machine
//! slept, or was set right after the start), it is followed; never backwards.
//!
//! Where several processes share a store, their times of day may be hours apart, and what one of them calls now must be
//! now for all. There the store's own clock is the only one: it is heard of with each renewal of the lease, and runs by
//! the monotonic clock in between.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use redrive_core::Moment;
use redrive_store::nodes::Tenure;
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
    /// The clock of a store that is shared: what is shown then.
    shared: Option<Shared>,
}

/// The clock of a store that several processes share.
#[derive(Debug)]
struct Shared {
    tenure: Arc<Tenure>,
    /// What was shown last, and when.
    last: Mutex<(Moment, Instant)>,
}

impl Shared {
    fn now(&self) -> Moment {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let time = shown(last.0, last.1.elapsed(), self.tenure.time());
        *last = (time, Instant::now());
        time
    }
}

/// What is shown where the store says that it is `time`, and something else was shown before: never less than that. It
/// stands still where the store is somewhat behind, for then it was not heard of as quickly before. One that was set
/// back is not waited for: events would be late by as much.
fn shown(last: Moment, run: Duration, time: Moment) -> Moment {
    if last.since(time) > SLACK { last + run } else { time.max(last) }
}

impl Timepiece {
    /// The time of day.
    #[must_use]
    pub fn wall() -> Self {
        Self { follows: true, ..Self::paused_at(time_of_day()) }
    }

    /// A time of day that is wrong by so many seconds, for tests: that of a machine whose clock nobody has set.
    #[must_use]
    pub fn wrong_by(seconds: i64) -> Self {
        let by = Duration::from_secs(seconds.unsigned_abs());
        let day = if seconds < 0 { SystemTime::now() - by } else { SystemTime::now() + by };
        Self { follows: true, ..Self::paused_at(day.into()) }
    }

    /// The same, where several processes share a store: its clock instead of the time of day.
    pub(crate) fn of_store(self, tenure: Option<Arc<Tenure>>) -> Self {
        let Some(tenure) = tenure.filter(|_| self.follows) else { return self };
        let last = Mutex::new((tenure.time(), Instant::now()));
        Self { follows: false, shared: Some(Shared { tenure, last }), ..self }
    }

    /// Time that passes only as tokio's does: with paused time, when a test says so.
    #[must_use]
    pub fn paused_at(anchor: Moment) -> Self {
        let (start, ahead) = (Some(Instant::now()), AtomicU64::new(0));
        Self { anchor, start, ahead, follows: false, shared: None }
    }

    /// Time that stands still, and passes when [`testing::pass`](crate::testing::pass) says so.
    #[must_use]
    pub fn still_at(anchor: Moment) -> Self {
        Self { start: None, ..Self::paused_at(anchor) }
    }

    /// The present moment.
    #[must_use]
    pub fn now(&self) -> Moment {
        let run = self.start.map_or(Duration::ZERO, |start| start.elapsed());
        let time = self.shared.as_ref().map_or(self.anchor + run, Shared::now);
        time + Duration::from_nanos(self.ahead.load(Ordering::Relaxed))
    }

    /// When the clock began that calls outside of the engine go by: budgets, breakers and rates may be shared with
    /// them.
    pub(crate) fn origin(&self) -> Moment {
        Moment::from_nanos(self.now().since(redrive_retry::clock()).as_nanos().try_into().unwrap_or(u64::MAX))
    }

    /// Looks at the time of day, and follows it where it is ahead. To be called now and then, by many at once: what is
    /// reached is a place and no step, so that those who noticed the same go there together.
    pub(crate) fn follow(&self) {
        if let Some(place) = self.behind(time_of_day()) {
            self.reach(place);
        }
    }

    /// How much has to have been added for this to be the time of day; none where it is near enough.
    fn behind(&self, day: Moment) -> Option<u64> {
        let run = self.start.map_or(Duration::ZERO, |start| start.elapsed());
        let place = nanos(day.since(self.anchor + run));
        let added = self.ahead.load(Ordering::Relaxed);
        (self.follows && place.saturating_sub(added) > nanos(SLACK)).then_some(place)
    }

    fn reach(&self, place: u64) {
        self.ahead.fetch_max(place, Ordering::Relaxed);
    }

    /// Has time pass at once, for tests.
    pub(crate) fn pass(&self, time: Duration) {
        self.ahead.fetch_add(nanos(time), Ordering::Relaxed);
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

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;

    use super::*;

    #[test]
    fn many_that_follow_at_once_go_as_far_as_one() {
        const HOUR: Duration = Duration::from_secs(3600);

        let clock = Timepiece::wall();
        let all_noticed = Barrier::new(8);
        let day = clock.now() + HOUR;
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    let place = clock.behind(day).expect("an hour is noticed");
                    all_noticed.wait();
                    clock.reach(place);
                });
            }
        });
        let now = clock.now();
        assert!(now >= day && now.since(day) < HOUR, "{:?} after the time of day", now.since(day));
        assert_eq!(clock.behind(day), None, "it is there");
    }

    #[test]
    fn a_store_s_clock_is_shown_and_never_goes_back() {
        let at = |millis: u64| Moment::from_nanos((1 << 60) + millis * 1_000_000);
        for (what, last, run, time, expected) in [
            ("it runs", 1_000, 10, 1_010, 1_010),
            ("it was heard of late before", 1_000, 10, 1_500, 1_500),
            ("it is heard of late now", 1_000, 10, 990, 1_000),
            ("it was set an hour ahead", 1_000, 10, 3_600_000, 3_600_000),
            ("it was set back", 9_000, 10, 1_000, 9_010),
        ] {
            assert_eq!(shown(at(last), Duration::from_millis(run), at(time)), at(expected), "{what}");
        }
    }

    #[test]
    fn the_time_of_day_is_followed_from_where_it_is_and_never_back() {
        let clock = Timepiece::wall();
        let day = |seconds| clock.now() + Duration::from_secs(seconds);
        for seconds in [60, 7200] {
            let before = day(seconds);
            clock.reach(clock.behind(before).expect("it is noticed"));
            assert!(clock.now() >= before && clock.now().since(before) < Duration::from_secs(30));
        }
        let now = clock.now();
        assert_eq!(clock.behind(clock.anchor), None);
        clock.reach(0);
        assert!(clock.now() >= now);
        assert_eq!(Timepiece::still_at(now).behind(day(60)), None, "it stands still");
    }
}
