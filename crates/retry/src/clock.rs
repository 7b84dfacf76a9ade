//! The clock and the dice that core does not have.
//!
//! The clock is tokio's, which is the system's monotonic clock, and stands still in tests with paused time.

use std::future::Future;
use std::pin::Pin;
use std::sync::LazyLock;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use redrive_core::{Dice, Moment};
use tokio::time::Sleep;

/// The origin of our moments is a day before the first look at the clock, so that instants from a little
/// before it (a deadline that was set earlier) still have a moment of their own.
const BEFORE: Duration = Duration::from_secs(24 * 60 * 60);

static FIRST_LOOK: LazyLock<Instant> = LazyLock::new(Instant::now);

/// The present moment by tokio's clock. A [`Clock`](redrive_core::Clock) as it stands: hand in `&clock`.
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

/// The instant of a moment; the furthest that can be told where the moment is further still.
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

/// Whether that moment has come, for whoever polls until it does. The timer is made when there is something to
/// wait for.
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

/// The instant after that time from now, by tokio's clock; `None` where it cannot be told.
pub(crate) fn from_now(time: Duration) -> Option<Instant> {
    tokio::time::Instant::now().into_std().checked_add(time)
}

/// The thread's own dice.
#[derive(Debug)]
pub(crate) struct ThreadDice;

impl Dice for ThreadDice {
    fn roll(&mut self) -> u64 {
        fastrand::u64(..)
    }
}
