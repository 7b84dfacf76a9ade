//! Why a policy is refused, and what to change.

use std::time::Duration;

use crate::breaker::BreakerSettings;

/// Why a policy was refused when it was built.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum PolicyError {
    /// The policy allows no attempt.
    #[error("zero attempts would never call anything; use at least 1, which means no retry")]
    ZeroAttempts,
    /// The cap is shorter than the first wait.
    #[error("the cap of {cap:?} is below the base of {base:?}; raise the cap or lower the base")]
    CapBelowBase {
        /// The cap.
        cap: Duration,
        /// The base.
        base: Duration,
    },
    /// The factor is not a number, is infinite, or shrinks the waits.
    #[error("a factor of {factor} does not grow; use a finite number of at least 1")]
    Factor {
        /// The factor.
        factor: f64,
    },
    /// All waits would be zero.
    #[error(
        "an exponential backoff from zero stays at zero; raise the base, or use a constant backoff of 0s"
    )]
    ZeroBase,
    /// The table has no first wait.
    #[error("the table of delays is empty; give at least one")]
    EmptyTable,
    /// Decorrelated jitter has no range to draw from.
    #[error(
        "decorrelated jitter draws between the first wait ({first:?}) and the cap ({cap:?}) and needs room there; \
         raise the cap, or use full jitter"
    )]
    NoRoom {
        /// The first wait.
        first: Duration,
        /// The cap.
        cap: Duration,
    },
    /// A time limit of zero.
    #[error("{what} of zero ends every call before it starts; leave it out for no limit")]
    ZeroTime {
        /// Which limit.
        what: &'static str,
    },
    /// The share is outside 0–1.
    #[error("a budget share of {share} is outside 0 to 1; 0.1 lets retries add a tenth to the load")]
    Share {
        /// The share.
        share: f64,
    },
    /// The floor is not a rate.
    #[error(
        "a budget floor of {floor} per second is not a valid rate; use a number from 0 (no floor) to 1e9"
    )]
    Floor {
        /// The floor.
        floor: f64,
    },
    /// The window is too short for its slots.
    #[error("a budget window of {window:?} forgets everything at once; use some seconds")]
    Window {
        /// The window.
        window: Duration,
    },
    /// The breaker's settings are outside their ranges.
    #[error(
        "the breaker settings are out of range: failing must be above 0 and at most 1, window 1 to 40 calls, least_calls 1 to window, probes 1 to 1000, open_for above zero; got {0:?}"
    )]
    Breaker(BreakerSettings),
    /// The limit is zero, too large, or `most` is below `least`.
    #[error(
        "a limit of {least} to {most} at once is out of range; least must be at least 1, most at least as large and at most 524288"
    )]
    Limit {
        /// The smallest width.
        least: u32,
        /// The largest width.
        most: u32,
    },
    /// The rate is not a positive number.
    #[error("a rate of {per_second} per second is not valid; use a number above zero, or leave the rate out")]
    Rate {
        /// The rate.
        per_second: f64,
    },
    /// The burst lets nothing through.
    #[error("a burst of zero allows nothing; use at least 1")]
    ZeroBurst,
}
