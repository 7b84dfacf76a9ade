//! How long to wait before the n-th retry, before jitter.
//!
//! [`Backoff::ceiling`] is the longest wait that a retry may get; [`Jitter`](crate::Jitter) then chooses a
//! wait at or below it. Every shape is safe for every input: with up to `u32::MAX` retries and
//! [`Duration::MAX`], the wait stops at the cap, and no calculation overflows, panics or wraps.

use std::sync::Arc;
use std::time::Duration;

use crate::policy::PolicyError;

/// The shape of the waits between attempts.
///
/// The default is [`Exponential`](Backoff::Exponential) from 100 ms, doubling, capped at 10 s.
///
/// ```
/// use redrive_core::Backoff;
/// use std::time::Duration;
///
/// let backoff = Backoff::default();
/// assert_eq!(backoff.ceiling(1), Duration::from_millis(100));
/// assert_eq!(backoff.ceiling(4), Duration::from_millis(800));
/// assert_eq!(backoff.ceiling(u32::MAX), Duration::from_secs(10));
/// ```
#[derive(Debug, Clone, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "snake_case", deny_unknown_fields))]
#[non_exhaustive]
pub enum Backoff {
    /// The same wait every time. Zero is allowed and means an immediate retry.
    Constant {
        /// The wait.
        #[cfg_attr(feature = "serde", serde(with = "crate::config::duration"))]
        delay: Duration,
    },
    /// `base + (n − 1) · step`, at most `cap`.
    Linear {
        /// The first wait.
        #[cfg_attr(feature = "serde", serde(with = "crate::config::duration"))]
        base: Duration,
        /// The amount that each further wait adds.
        #[cfg_attr(feature = "serde", serde(with = "crate::config::duration"))]
        step: Duration,
        /// The longest wait.
        #[cfg_attr(feature = "serde", serde(with = "crate::config::duration"))]
        cap: Duration,
    },
    /// `base · factor^(n − 1)`, at most `cap`.
    Exponential {
        /// The first wait.
        #[cfg_attr(feature = "serde", serde(with = "crate::config::duration"))]
        base: Duration,
        /// The factor by which each further wait grows; at least 1.
        factor: f64,
        /// The longest wait.
        #[cfg_attr(feature = "serde", serde(with = "crate::config::duration"))]
        cap: Duration,
    },
    /// These waits in this order; the last one repeats for the remaining attempts.
    Table {
        /// The waits, at least one.
        #[cfg_attr(feature = "serde", serde(with = "crate::config::durations"))]
        delays: Arc<[Duration]>,
    },
}

impl Default for Backoff {
    fn default() -> Self {
        Self::exponential(Duration::from_millis(100), 2.0, Duration::from_secs(10))
    }
}

impl Backoff {
    /// No wait at all between attempts.
    pub const NONE: Backoff = Backoff::Constant { delay: Duration::ZERO };

    /// The same wait, `delay`, before every retry.
    #[must_use]
    pub const fn constant(delay: Duration) -> Self {
        Self::Constant { delay }
    }

    /// The first wait is `base`; each further wait is longer by `step`, up to `cap`.
    #[must_use]
    pub const fn linear(base: Duration, step: Duration, cap: Duration) -> Self {
        Self::Linear { base, step, cap }
    }

    /// The first wait is `base`; each further wait is `factor` times as long, up to `cap`.
    #[must_use]
    pub const fn exponential(base: Duration, factor: f64, cap: Duration) -> Self {
        Self::Exponential { base, factor, cap }
    }

    /// One wait for each retry, in this order; the last one repeats.
    #[must_use]
    pub fn table(delays: impl Into<Arc<[Duration]>>) -> Self {
        Self::Table { delays: delays.into() }
    }

    /// The longest wait that retry `n` (counted from 1) may get.
    #[must_use]
    pub fn ceiling(&self, n: u32) -> Duration {
        let grown = n.saturating_sub(1);
        match self {
            Self::Constant { delay } => *delay,
            Self::Linear { base, step, cap } => base.saturating_add(step.saturating_mul(grown)).min(*cap),
            Self::Exponential { base, factor, cap } => exponential(*base, *factor, grown).min(*cap),
            Self::Table { delays } => {
                let last = delays.len().saturating_sub(1);
                let index = usize::try_from(grown).unwrap_or(last).min(last);
                delays.get(index).copied().unwrap_or_default()
            }
        }
    }

    /// The longest wait that any retry may get.
    #[must_use]
    pub fn cap(&self) -> Duration {
        match self {
            Self::Constant { delay } => *delay,
            Self::Linear { cap, .. } | Self::Exponential { cap, .. } => *cap,
            Self::Table { delays } => delays.iter().max().copied().unwrap_or_default(),
        }
    }

    pub(crate) fn check(&self) -> Result<(), PolicyError> {
        match self {
            Self::Constant { .. } => Ok(()),
            Self::Linear { base, cap, .. } if cap < base => {
                Err(PolicyError::CapBelowBase { cap: *cap, base: *base })
            }
            Self::Linear { .. } => Ok(()),
            Self::Exponential { factor, .. } if !factor.is_finite() || *factor < 1.0 => {
                Err(PolicyError::Factor { factor: *factor })
            }
            Self::Exponential { base, .. } if base.is_zero() => Err(PolicyError::ZeroBase),
            Self::Exponential { base, cap, .. } if cap < base => {
                Err(PolicyError::CapBelowBase { cap: *cap, base: *base })
            }
            Self::Exponential { .. } => Ok(()),
            Self::Table { delays } if delays.is_empty() => Err(PolicyError::EmptyTable),
            Self::Table { .. } => Ok(()),
        }
    }
}

/// `base · factor^grown`, or [`Duration::MAX`] if the result does not fit into a [`Duration`].
fn exponential(base: Duration, factor: f64, grown: u32) -> Duration {
    // A double holds nanoseconds exactly up to 104 days; for longer waits the last nanosecond does not
    // matter.
    let nanos = base.as_nanos();
    #[allow(clippy::cast_precision_loss, reason = "see above")]
    let grown = (nanos as f64) * factor.powf(f64::from(grown));
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "checked to be in range")]
    if grown < 9e15 {
        Duration::from_nanos(grown as u64)
    } else {
        Duration::try_from_secs_f64(grown / 1e9).unwrap_or(Duration::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MS: fn(u64) -> Duration = Duration::from_millis;

    #[test]
    fn each_shape_gives_its_first_waits_to_the_nanosecond() {
        for (backoff, want) in [
            (Backoff::constant(MS(7)), [7, 7, 7, 7, 7]),
            (Backoff::linear(MS(10), MS(5), MS(22)), [10, 15, 20, 22, 22]),
            (Backoff::exponential(MS(100), 2.0, MS(1000)), [100, 200, 400, 800, 1000]),
            (Backoff::exponential(MS(100), 1.5, MS(9000)), [100, 150, 225, 337, 506]),
            (Backoff::table([MS(1), MS(50), MS(3)]), [1, 50, 3, 3, 3]),
        ] {
            let got: Vec<_> = (1..=5).map(|n| backoff.ceiling(n).as_millis()).collect();
            assert_eq!(got, want, "{backoff:?}");
        }
    }

    fn any_duration() -> impl Strategy<Value = Duration> {
        prop_oneof![
            any::<(u64, u32)>().prop_map(|(secs, nanos)| Duration::new(secs / 8, nanos)),
            (0u64..10_000).prop_map(Duration::from_millis),
            Just(Duration::MAX),
        ]
    }

    proptest! {
        #[test]
        fn no_input_overflows_or_passes_the_cap(
            base in any_duration(), step in any_duration(), cap in any_duration(),
            factor in prop_oneof![1.0..1e3, Just(1.0), Just(f64::MAX)], n in any::<u32>(),
        ) {
            for backoff in [Backoff::linear(base, step, cap), Backoff::exponential(base, factor, cap)] {
                prop_assert!(backoff.ceiling(n) <= cap);
                prop_assert!(backoff.ceiling(u32::MAX) <= cap);
                prop_assert!(backoff.ceiling(n) <= backoff.ceiling(n.saturating_add(1)), "waits never shrink");
            }
        }
    }
}
