//! The clock and the dice that core does not have.
//!
//! The clock is tokio's: the system's monotonic clock, which stands still in tests with paused time.

use std::future::Future;
use std::pin::Pin;
use std::sync::LazyLock;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use redrive_core::{Moment, RandomSource};
use tokio::time::Sleep;

/// The origin of our moments is a day before the first look at the clock, so that instants from a little
/// before it (a deadline that was set earlier) still have a moment of their own.
const BEFORE: Duration = Duration::from_secs(24 * 60 * 60);

static FIRST_LOOK: LazyLock<Instant> = LazyLock::new(Instant::now);

/// The present moment by tokio's clock. It is a [`Clock`](redrive_core::Clock): pass `&clock`.
#[must_use]
pub fn clock() -> Moment {
    moment(tokio::time::Instant::now().into_std())
}

/// The moment of an instant.
#[must_use]
pub fn moment(instant: Instant) -> Moment {
    let first = *FIRST_LOOK;
    let since = match instant.checked_duration_since(first) {
        Some(after) => BEFORE.saturating_add(after),
        None => BEFORE.saturating_sub(first.duration_since(instant)),
    };
    Moment::from_nanos(0) + since
}

/// The instant of a moment; the furthest possible one if the moment is out of range.
#[must_use]
pub fn instant(moment: Moment) -> Instant {
    let since = moment.since(Moment::from_nanos(0));
    let first = *FIRST_LOOK;
    match since.checked_sub(BEFORE) {
        Some(after) => first.checked_add(after).unwrap_or(first + BEFORE * 365),
        None => first.checked_sub(BEFORE - since).unwrap_or(first),
    }
}

/// Sleeps until that moment.
pub(crate) fn sleep_until(until: Moment) -> Sleep {
    tokio::time::sleep_until(instant(until).into())
}

/// Polls until the moment has come. The timer is created only if needed.
///
/// The clock is asked as well as the timer: a timer is never ready for a task that has used up its share of the
/// thread, as an attempt that loops may have.
pub(crate) fn poll_until(
    until: Moment,
    timer: &mut Option<Pin<Box<Sleep>>>,
    cx: &mut Context<'_>,
) -> Poll<()> {
    if clock() >= until {
        return Poll::Ready(());
    }
    timer.get_or_insert_with(|| Box::pin(sleep_until(until))).as_mut().poll(cx)
}

/// The instant `time` from now, by tokio's clock; `None` if out of range.
pub(crate) fn from_now(time: Duration) -> Option<Instant> {
    tokio::time::Instant::now().into_std().checked_add(time)
}

/// The random source of the thread: fast, seeded from the system, not for secrets.
#[derive(Debug, Clone, Copy, Default)]
pub struct ThreadRandom;

impl RandomSource for ThreadRandom {
    fn roll(&mut self) -> u64 {
        fastrand::u64(..)
    }
}
