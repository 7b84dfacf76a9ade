//! The clock of events, which outlive the process.
//!
//! Moments are nanoseconds since the Unix epoch, so they mean the same after a restart. Within a process they come
//! from tokio's monotonic clock, anchored once at the time of day: a clock that is set back does not delay retries,
//! and paused time works in tests. If the time of day runs ahead (the machine slept, or its clock was corrected after
//! the start), the clock follows it; it never goes backwards.
//!
//! Processes that share a store may have times of day that are hours apart, yet must agree on the present. There the
//! store's own clock counts: every renewal of the lease reads it, and the monotonic clock carries it on in between.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use redrive_core::Moment;
use redrive_store::nodes::NodeLease as Tenure;
use tokio::time::Instant;

/// How far ahead the time of day may be before the clock follows it.
const SLACK: Duration = Duration::from_secs(1);

/// A clock for events.
#[derive(Debug)]
pub struct EventClock {
    anchor: Moment,
    /// When it began to run; `None` if it stands still.
    start: Option<Instant>,
    /// What was added since, in nanoseconds.
    ahead: AtomicU64,
    follows: bool,
    /// The clock of a shared store, which then replaces this one.
    shared: Option<Shared>,
}

/// The clock of a store that several processes share.
#[derive(Debug)]
struct Shared {
    tenure: Arc<Tenure>,
    /// The last moment shown, and when.
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

/// The moment to show if the store says `time` and `last` was shown before: never less than `last`. The clock stands
/// still if the store is slightly behind, because the earlier reading arrived later. A store clock that was set back
/// is not waited for: events would be late by as much.
fn shown(last: Moment, run: Duration, time: Moment) -> Moment {
    if last.since(time) > SLACK { last + run } else { time.max(last) }
}

impl EventClock {
    /// The time of day.
    #[must_use]
    pub fn wall() -> Self {
        Self { follows: true, ..Self::paused_at(time_of_day()) }
    }

    /// A time of day that is wrong by `seconds`, for tests: a machine with an unset clock.
    #[must_use]
    pub fn wrong_by(seconds: i64) -> Self {
        let by = Duration::from_secs(seconds.unsigned_abs());
        let day = if seconds < 0 { SystemTime::now() - by } else { SystemTime::now() + by };
        Self { follows: true, ..Self::paused_at(day.into()) }
    }

    /// The same, if several processes share a store: the store's clock instead of the time of day.
    pub(crate) fn of_store(self, tenure: Option<Arc<Tenure>>) -> Self {
        let Some(tenure) = tenure.filter(|_| self.follows) else { return self };
        let last = Mutex::new((tenure.time(), Instant::now()));
        Self { follows: false, shared: Some(Shared { tenure, last }), ..self }
    }

    /// Time that passes only as tokio's does: with paused time, when the test advances it.
    #[must_use]
    pub fn paused_at(anchor: Moment) -> Self {
        let (start, ahead) = (Some(Instant::now()), AtomicU64::new(0));
        Self { anchor, start, ahead, follows: false, shared: None }
    }

    /// Time that stands still, and passes when [`testing::pass`](crate::testing::pass) advances it.
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

    /// When the clock of calls outside the engine began: budgets, breakers and rates may be shared with them.
    pub(crate) fn origin(&self) -> Moment {
        Moment::from_nanos(self.now().since(redrive_retry::clock()).as_nanos().try_into().unwrap_or(u64::MAX))
    }

    /// Reads the time of day, and follows it if it is ahead. Called now and then, by many tasks at once: it sets a
    /// target rather than adds a step, so tasks that notice the same jump advance the clock once.
    pub(crate) fn follow(&self) {
        if let Some(place) = self.behind(time_of_day()) {
            self.reach(place);
        }
    }

    /// Continues from `newest` if the time of day is behind it: an earlier process with the same store had reached
    /// that moment, and waiting events would wait that much longer. Returns by how much the time of day is behind.
    pub(crate) fn go_on_from(&self, newest: Moment) -> Option<Duration> {
        let place = self.behind(newest)?;
        self.reach(place);
        Some(Duration::from_nanos(place))
    }

    /// How much must have been added in all for this time of day; `None` if the clock is near enough.
    fn behind(&self, day: Moment) -> Option<u64> {
        let run = self.start.map_or(Duration::ZERO, |start| start.elapsed());
        let place = nanos(day.since(self.anchor + run));
        let added = self.ahead.load(Ordering::Relaxed);
        (self.follows && place.saturating_sub(added) > nanos(SLACK)).then_some(place)
    }

    fn reach(&self, place: u64) {
        self.ahead.fetch_max(place, Ordering::Relaxed);
    }

    /// Advances time at once, for tests.
    pub(crate) fn pass(&self, time: Duration) {
        self.ahead.fetch_add(nanos(time), Ordering::Relaxed);
    }

    /// The instant at which a moment comes.
    pub(crate) fn instant(&self, moment: Moment) -> Instant {
        let now = Instant::now();
        // Tokio's timers do not reach further than some years.
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

        let clock = EventClock::wall();
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
    fn a_time_of_day_that_is_behind_an_earlier_process_goes_on_from_there() {
        let clock = EventClock::wrong_by(-3600);
        let newest = time_of_day();
        let behind = clock.go_on_from(newest).expect("it is noticed");
        assert!(behind.abs_diff(Duration::from_secs(3600)) < Duration::from_secs(60), "{behind:?}");
        assert!(clock.now() >= newest && clock.now().since(newest) < Duration::from_secs(60));
        assert_eq!(EventClock::wall().go_on_from(newest), None, "it is not behind");
        assert_eq!(EventClock::still_at(Moment::from_nanos(0)).go_on_from(newest), None, "it stands still");
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
        let clock = EventClock::wall();
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
        assert_eq!(EventClock::still_at(now).behind(day(60)), None, "it stands still");
    }
}
