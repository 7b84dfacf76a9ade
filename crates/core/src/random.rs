//! Randomness as a parameter.
//!
//! A function that needs a random wait takes a [`RandomSource`]. Production passes the thread's own generator, a test
//! passes [`SeededRandom`], and the same seed gives the same waits on every machine.

use std::time::Duration;

/// A source of random bits.
pub trait RandomSource {
    /// The next 64 bits.
    fn roll(&mut self) -> u64;
}

impl<D: RandomSource + ?Sized> RandomSource for &mut D {
    fn roll(&mut self) -> u64 {
        (**self).roll()
    }
}

/// A random source that gives the same numbers for the same seed (SplitMix64: 64 bits of state, passes the
/// usual test batteries, not for secrets).
///
/// ```
/// use redrive_core::{RandomSource, SeededRandom};
///
/// assert_eq!(SeededRandom::new(7).roll(), SeededRandom::new(7).roll());
/// assert_ne!(SeededRandom::new(7).roll(), SeededRandom::new(8).roll());
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SeededRandom(u64);

impl SeededRandom {
    /// A random source with this seed.
    #[must_use]
    pub const fn new(seed: u64) -> Self {
        Self(seed)
    }
}

impl RandomSource for SeededRandom {
    fn roll(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.0)
    }
}

/// SplitMix64's finaliser: neighbouring inputs give unrelated outputs.
pub(crate) const fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// A duration drawn evenly from `low..=high`; `low` if `high` is smaller.
pub(crate) fn uniform(random: &mut impl RandomSource, low: Duration, high: Duration) -> Duration {
    let span = high.saturating_sub(low).as_nanos() + 1;
    let roll = u128::from(random.roll());
    // floor(span * roll / 2^64), computed in two halves: the product of a long span (94 bits) and a roll (64
    // bits) fits no integer type.
    let drawn = (span >> 64) * roll + (((span & u128::from(u64::MAX)) * roll) >> 64);
    low.saturating_add(from_nanos(drawn))
}

/// A duration of `nanos` nanoseconds, capped at the largest duration.
fn from_nanos(nanos: u128) -> Duration {
    const SECOND: u128 = 1_000_000_000;
    let part = u32::try_from(nanos % SECOND).unwrap_or_default();
    u64::try_from(nanos / SECOND).map_or(Duration::MAX, |whole| Duration::new(whole, part))
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Fixed(u64);
    impl RandomSource for Fixed {
        fn roll(&mut self) -> u64 {
            self.0
        }
    }

    #[test]
    fn uniform_reaches_both_ends_and_nothing_beyond() {
        for (low, high) in [
            (Duration::ZERO, Duration::ZERO),
            (Duration::ZERO, Duration::from_nanos(1)),
            (Duration::from_millis(3), Duration::from_secs(9)),
            (Duration::ZERO, Duration::MAX),
            (Duration::from_secs(u64::MAX / 2), Duration::MAX),
        ] {
            assert_eq!(uniform(&mut Fixed(0), low, high), low);
            // With 64 random bits, a longer span is reached to within one part in 2^64 of its top.
            let top = uniform(&mut Fixed(u64::MAX), low, high);
            assert!(top <= high && high.saturating_sub(top) <= high / u32::MAX, "{top:?} of {high:?}");
        }
    }

    #[test]
    fn crossed_ends_give_the_lower_one() {
        let five = Duration::from_secs(5);
        assert_eq!(uniform(&mut Fixed(u64::MAX), five, Duration::from_secs(1)), five);
    }
}
