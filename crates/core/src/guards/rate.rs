//! A rate limit: so many attempts a second, with a burst.
//!
//! It uses the generic cell rate algorithm: one word holds the moment at which the bucket would be full
//! again. Taking a token moves that moment by one interval, and a token is available while it stays within
//! the burst. The limit is exact under concurrency (one compare-and-set decides) and needs no timer and no
//! refill.

use std::time::Duration;

use crate::moment::{Moment, nanos};
use crate::policy::PolicyError;
use crate::sync::{Arc, AtomicU64, change};

/// The settings of a [`Rate`].
#[derive(Debug, Clone, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(deny_unknown_fields))]
pub struct RateSettings {
    /// Tokens a second, above zero.
    pub per_second: f64,
    /// How many attempts may start at once after a pause; at least 1.
    #[cfg_attr(feature = "serde", serde(default = "one"))]
    pub burst: u32,
}

#[cfg(feature = "serde")]
const fn one() -> u32 {
    1
}

/// A rate limit, shared by cloning.
///
/// ```
/// use redrive_core::{Moment, Rate};
/// use std::time::Duration;
///
/// let rate = Rate::new(10.0, 2)?;
/// let start = Moment::from_nanos(0);
/// assert!(rate.take(start).is_ok());
/// assert!(rate.take(start).is_ok());
/// let free = rate.take(start).unwrap_err();
/// assert_eq!(free.since(start), Duration::from_millis(100));
/// assert!(rate.take(free).is_ok());
/// # Ok::<(), redrive_core::PolicyError>(())
/// ```
#[derive(Debug, Clone)]
pub struct Rate(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    settings: RateSettings,
    interval: u64,
    tolerance: u64,
    /// When the bucket will be full, in nanoseconds.
    full_at: AtomicU64,
}

impl Rate {
    /// `per_second` tokens a second, at most `burst` at once.
    ///
    /// # Errors
    /// Refuses a rate that is not a positive number, and a burst of zero.
    pub fn new(per_second: f64, burst: u32) -> Result<Self, PolicyError> {
        Self::from_settings(RateSettings { per_second, burst })
    }

    /// As [`new`](Self::new), from settings.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub fn from_settings(settings: RateSettings) -> Result<Self, PolicyError> {
        let RateSettings { per_second, burst } = settings;
        if !(per_second.is_finite() && per_second > 0.0) {
            return Err(PolicyError::Rate { per_second });
        }
        if burst == 0 {
            return Err(PolicyError::ZeroBurst);
        }
        let interval = nanos(Duration::try_from_secs_f64(1.0 / per_second).unwrap_or(Duration::MAX)).max(1);
        let tolerance = interval.saturating_mul(u64::from(burst));
        Ok(Self(Arc::new(Inner { settings, interval, tolerance, full_at: AtomicU64::new(0) })))
    }

    /// Takes one token.
    ///
    /// # Errors
    /// The moment at which the next token is available.
    pub fn take(&self, now: Moment) -> Result<(), Moment> {
        self.reserve(now, |at| at <= now).map(|_| ())
    }

    /// Takes the next token, also a future one, if `accept` agrees with the moment at which it is available.
    /// A caller that waits until then has its turn and need not ask again; a caller that gives up leaves the
    /// token unused.
    ///
    /// ```
    /// use redrive_core::{Moment, Rate};
    /// use std::time::Duration;
    ///
    /// let rate = Rate::new(10.0, 1)?;
    /// let start = Moment::from_nanos(0);
    /// for turn in 0..3 {
    ///     assert_eq!(rate.reserve(start, |_| true), Ok(start + Duration::from_millis(100) * turn));
    /// }
    /// # Ok::<(), redrive_core::PolicyError>(())
    /// ```
    ///
    /// # Errors
    /// That moment, if `accept` refused it. No token is taken then.
    pub fn reserve(&self, now: Moment, accept: impl Fn(Moment) -> bool) -> Result<Moment, Moment> {
        let Inner { interval, tolerance, full_at, .. } = &*self.0;
        change(full_at, |full| {
            let next = full.max(now.as_nanos()).saturating_add(*interval);
            let at = Moment::from_nanos(next.saturating_sub(*tolerance)).max(now);
            if accept(at) { Ok((next, at)) } else { Err(at) }
        })
    }

    /// The tokens available at `now`.
    #[must_use]
    pub fn available(&self, now: Moment) -> u64 {
        let full = self.0.full_at.load(crate::sync::Ordering::Relaxed);
        let owed = full.saturating_sub(now.as_nanos());
        self.0.tolerance.saturating_sub(owed) / self.0.interval
    }

    /// The settings of this rate limit.
    #[must_use]
    pub fn settings(&self) -> &RateSettings {
        &self.0.settings
    }
}

#[cfg(not(loom))]
#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn over_any_stretch_it_gives_the_rate_and_one_burst() {
        let rate = Rate::new(100.0, 5).unwrap();
        let mut now = Moment::from_nanos(1 << 60);
        let mut given = 0;
        for _ in 0..10_000 {
            now = now + Duration::from_millis(1);
            given += u32::from(rate.take(now).is_ok());
        }
        assert!((1000..=1005).contains(&given), "{given} in ten seconds at 100 a second");
    }

    #[test]
    fn a_pause_saves_up_one_burst_and_no_more() {
        let rate = Rate::new(1000.0, 3).unwrap();
        let now = Moment::from_nanos(0) + Duration::from_secs(3600);
        assert_eq!((0..10).filter(|_| rate.take(now).is_ok()).count(), 3);
        assert_eq!(rate.available(now), 0);
    }

    #[test]
    fn nonsense_is_refused() {
        for per_second in [0.0, -1.0, f64::NAN, f64::INFINITY] {
            assert!(Rate::new(per_second, 1).is_err(), "{per_second}");
        }
        assert!(Rate::new(1.0, 0).is_err());
    }
}
