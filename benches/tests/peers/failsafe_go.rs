//! failsafe-go: jitter around what the server asked.
//!
//! Its rule, as a model, because it is not written in Rust: the delay that `Retry-After` asks for goes
//! through the same jitter as any other, which is as likely to shorten it as to lengthen it. Nothing bounds
//! what the server may ask but a duration in all, where one is set, and that comes early too: it cuts the
//! wait short and tries once more. Redrive goes upwards from the floor, never below it, and stops where the
//! floor is above `not_before_max` or ends too late.

use std::time::Duration;

use proptest::prelude::*;
use redrive_core::{Backoff, Fault, Jitter, RandomSource, SeededRandom, StopReason};

use crate::redrive_helpers::{policy, waits};

/// The model: the delay that was asked for, and up to `factor` of it more or less.
fn jitter_around_retry_after(asked: Duration, factor: f64, random: &mut impl RandomSource) -> Duration {
    #[allow(clippy::cast_precision_loss, reason = "a fraction, wanted to a few digits")]
    let roll = random.roll() as f64 / u64::MAX as f64;
    asked.mul_f64(1.0 + factor * (1.0 - 2.0 * roll))
}

const DAY: Duration = Duration::from_secs(24 * 60 * 60);

#[test]
fn jitter_around_retry_after_comes_too_early_every_second_time() {
    let (asked, mut random) = (Duration::from_secs(30), SeededRandom::new(9));
    let early = (0..1000).filter(|_| jitter_around_retry_after(asked, 0.1, &mut random) < asked).count();
    assert!((400..600).contains(&early), "{early}");
}

#[test]
fn a_server_that_asks_for_a_day_gets_it_there_and_an_end_here() {
    assert!(jitter_around_retry_after(DAY, 0.1, &mut SeededRandom::new(9)) > DAY / 2);
    let (waits, report) = waits(&policy(3).build().unwrap(), Fault::transient().not_before(DAY));
    assert_eq!((waits.len(), report.reason), (0, StopReason::NotBeforeTooFar));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn we_never_come_before_the_server_asked_and_never_much_later(
        asked in 0u64..=300_000, base in 1u64..5_000, seed in any::<u64>(),
        jitter in prop_oneof![
            Just(Jitter::None), Just(Jitter::Full), Just(Jitter::Equal), Just(Jitter::Decorrelated)
        ],
    ) {
        let (asked, base) = (Duration::from_millis(asked), Duration::from_millis(base));
        let cap = Duration::from_secs(10);
        let backoff = Backoff::exponential(base, 2.0, cap);
        let policy = policy(5).backoff(backoff).jitter(jitter).seed(seed).build().unwrap();
        let (waits, report) = waits(&policy, Fault::transient().not_before(asked));
        prop_assert_eq!((waits.len(), report.reason), (4, StopReason::AttemptsSpent));
        for wait in waits {
            prop_assert!(wait >= asked, "{wait:?} although {asked:?} was asked");
            prop_assert!(wait <= (asked + cap.max(asked / 10)).max(cap), "{wait:?} for {asked:?}");
        }
    }

    #[test]
    fn what_is_asked_beyond_the_policys_limit_ends_it(beyond in 1u64.., limit in 0u64..100_000) {
        let limit = Duration::from_millis(limit);
        let asked = limit.saturating_add(Duration::from_nanos(beyond));
        let policy = policy(3).not_before_max(limit).build().unwrap();
        let (waits, report) = waits(&policy, Fault::transient().not_before(asked));
        prop_assert_eq!((waits.len(), report.reason), (0, StopReason::NotBeforeTooFar));
    }
}
