//! Time as a parameter.
//!
//! A [`Moment`] is a number of nanoseconds since an origin that the caller chose: process start, the Unix
//! epoch, the first step of a simulation. Only differences matter here, so any origin works as long as all
//! moments share it. Arithmetic saturates: a deadline that is too far away to represent means "never" and
//! does not panic.
//!
//! Reading the time costs about as much as everything else on the path of a first-try success, so that path
//! does not read it. For this reason some functions take a [`Clock`], which they read only if they need the
//! time.

use std::fmt;
use std::num::NonZeroU64;
use std::ops::Add;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// A point in time, in nanoseconds since the caller's origin.
///
/// ```
/// use redrive_core::Moment;
/// use std::time::{Duration, SystemTime, UNIX_EPOCH};
///
/// let start = Moment::from_nanos(0);
/// let later = start + Duration::from_millis(250);
/// assert_eq!(later.since(start), Duration::from_millis(250));
/// assert_eq!(start.since(later), Duration::ZERO);
/// ```
///
/// It fits into one word, also as an `Option`: a call carries several optional moments.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Moment(
    /// The nanoseconds plus one, so that zero can mean `None`.
    NonZeroU64,
);

impl Moment {
    /// The last moment that can be represented: some 584 years after the origin. Sums stop here.
    pub const FAR: Moment = Moment(NonZeroU64::MAX);

    /// The moment `nanos` after the origin.
    #[must_use]
    pub const fn from_nanos(nanos: u64) -> Self {
        match NonZeroU64::new(nanos.saturating_add(1)) {
            Some(at) => Self(at),
            None => Self::FAR,
        }
    }

    /// Nanoseconds since the origin.
    #[must_use]
    pub const fn as_nanos(self) -> u64 {
        self.0.get() - 1
    }

    /// The time that passed since `earlier`, or zero if `earlier` is later.
    #[must_use]
    pub const fn since(self, earlier: Moment) -> Duration {
        Duration::from_nanos(self.0.get().saturating_sub(earlier.0.get()))
    }
}

/// Converts a time of day into nanoseconds since the Unix epoch. A time before the epoch becomes the epoch.
impl From<SystemTime> for Moment {
    fn from(time: SystemTime) -> Self {
        Self::default() + time.duration_since(UNIX_EPOCH).unwrap_or_default()
    }
}

/// Converts the moment of an event into a time of day.
impl From<Moment> for SystemTime {
    fn from(moment: Moment) -> Self {
        UNIX_EPOCH + Duration::from_nanos(moment.as_nanos())
    }
}

impl fmt::Debug for Moment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Moment").field(&self.as_nanos()).finish()
    }
}

impl Default for Moment {
    fn default() -> Self {
        Self::from_nanos(0)
    }
}

impl Add<Duration> for Moment {
    type Output = Moment;

    fn add(self, wait: Duration) -> Moment {
        Moment(self.0.saturating_add(nanos(wait)))
    }
}

/// A source of the current time.
///
/// A [`Moment`] is a clock that stands still, for tests and batch code.
pub trait Clock {
    /// The current moment.
    fn now(&self) -> Moment;
}

impl Clock for Moment {
    fn now(&self) -> Moment {
        *self
    }
}

impl<F: Fn() -> Moment> Clock for F {
    fn now(&self) -> Moment {
        self()
    }
}

/// A duration in whole nanoseconds, at most `u64::MAX` of them.
pub(crate) fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nanoseconds_come_back_as_they_went_in() {
        for nanos in [0, 1, 1 << 40, u64::MAX - 1] {
            assert_eq!(Moment::from_nanos(nanos).as_nanos(), nanos);
        }
        assert_eq!(size_of::<Option<Moment>>(), size_of::<u64>());
    }

    #[test]
    fn a_sum_beyond_the_end_of_time_stays_there() {
        assert_eq!(Moment::from_nanos(5) + Duration::MAX, Moment::FAR);
        assert_eq!(Moment::FAR + Duration::from_nanos(1), Moment::FAR);
        assert_eq!(Moment::from_nanos(u64::MAX), Moment::FAR);
    }
}
