//! backon 1.6: a longest delay that is not the longest, panics, and a total that leaves out the calls.
//!
//! - Jitter is added after the cap, and is as long as the delay itself: up to twice `max_delay`.
//! - The Fibonacci sum is never capped: the first number above `max_delay` stays.
//! - Three additions are plain `+`, which panics where the sum is too long for a `Duration`.
//! - `total_delay` adds up delays. An operation that takes a minute costs nothing.

use std::panic::catch_unwind;
use std::time::Duration;

use backon::{BackoffBuilder, ConstantBuilder, ExponentialBuilder, FibonacciBuilder, Retryable};
use proptest::prelude::*;
use redrive_core::{Backoff, Fault, Jitter, StopReason};
use redrive_retry::{Retry, classify};
use tokio::time::{Instant, sleep};

use crate::redrive_helpers::{policy, waits};

const fn secs(secs: u64) -> Duration {
    Duration::from_secs(secs)
}

const CAP: Duration = secs(10);

fn with_jitter(seed: u64) -> ExponentialBuilder {
    ExponentialBuilder::new()
        .with_min_delay(secs(1))
        .with_max_delay(CAP)
        .with_max_times(20)
        .with_jitter()
        .with_jitter_seed(seed)
}

fn our_waits(jitter: Jitter, seed: u64) -> Vec<Duration> {
    let backoff = Backoff::exponential(secs(1), 2.0, CAP);
    let policy = policy(21).backoff(backoff).jitter(jitter).seed(seed).build().unwrap();
    waits(&policy, Fault::transient()).0
}

#[test]
fn a_max_delay_of_ten_seconds_reaches_twenty_in_backon_and_ten_here() {
    let longest = (0..500).flat_map(|seed| with_jitter(seed).build()).max().unwrap();
    assert!(longest > Duration::from_millis(19_990) && longest < secs(20), "{longest:?}");
    let longest = (0..500).flat_map(|seed| our_waits(Jitter::Full, seed)).max().unwrap();
    assert!(longest > Duration::from_millis(9_990) && longest <= CAP, "{longest:?}");
}

#[test]
fn a_max_delay_of_ten_seconds_gives_thirteen_with_backons_fibonacci() {
    let fibonacci = FibonacciBuilder::new().with_min_delay(secs(1)).with_max_delay(CAP).with_max_times(9);
    let delays: Vec<_> = fibonacci.build().map(|delay| delay.as_secs()).collect();
    assert_eq!(delays, [1, 1, 2, 3, 5, 8, 13, 13, 13]);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Twenty delays, sixteen of them at the cap: all of those are above it, but for a roll of exactly zero.
    #[test]
    fn every_backon_session_with_jitter_passes_its_cap_and_none_of_ours_does(seed in any::<u64>()) {
        prop_assert!(with_jitter(seed).build().filter(|delay| *delay > CAP).count() >= 15);
        for jitter in [Jitter::None, Jitter::Full, Jitter::Equal, Jitter::Decorrelated] {
            prop_assert!(our_waits(jitter, seed).into_iter().all(|wait| wait <= CAP));
        }
    }
}

/// The names are the settings, the numbers the shortest way to the overflow.
#[test]
fn backon_panics_on_overflow_in_three_settings_and_we_in_none() {
    let longest = Duration::MAX;
    let constant =
        || ConstantBuilder::new().with_delay(longest).with_jitter().with_jitter_seed(1).build().last();
    let fibonacci =
        || FibonacciBuilder::new().with_min_delay(longest).with_jitter().with_jitter_seed(1).build().last();
    // The second delay is too long for a `Duration` and becomes the longest; the first is added to it before
    // the comparison that would have refused it.
    let exponential = || {
        let builder = ExponentialBuilder::new().with_factor(1e30).without_max_delay();
        builder.with_total_delay(Some(secs(5))).build().last()
    };
    for (setting, panics) in [
        ("constant, jitter", catch_unwind(constant).is_err()),
        ("fibonacci, jitter", catch_unwind(fibonacci).is_err()),
        ("exponential, total delay", catch_unwind(exponential).is_err()),
    ] {
        assert!(panics, "{setting}: mended?");
    }

    let hour = secs(3600);
    for (backoff, time, reason) in [
        (Backoff::constant(longest), longest, StopReason::TimeSpent),
        (Backoff::table([longest]), longest, StopReason::TimeSpent),
        (Backoff::exponential(secs(1), 1e30, longest), hour, StopReason::TimeSpent),
        (Backoff::exponential(longest, 2.0, longest), longest, StopReason::TimeSpent),
    ] {
        for jitter in [Jitter::None, Jitter::Equal] {
            let policy = policy(4).backoff(backoff.clone()).jitter(jitter).time(time).build().unwrap();
            assert_eq!(waits(&policy, Fault::transient()).1.reason, reason, "{backoff:?} {jitter:?}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn backons_total_delay_leaves_out_the_calls_and_our_time_counts_them() {
    let slow = || async {
        sleep(secs(60)).await;
        Err::<(), _>("down")
    };

    let start = Instant::now();
    let delays =
        ExponentialBuilder::new().with_factor(1.0).with_max_times(100).with_total_delay(Some(secs(5)));
    Retryable::retry(slow, delays).await.unwrap_err();
    assert_eq!(start.elapsed(), secs(6 * 60 + 5), "six calls and five delays, with a total of five seconds");

    let start = Instant::now();
    let policy =
        policy(100).backoff(Backoff::constant(secs(1))).jitter(Jitter::None).time(secs(5)).build().unwrap();
    let stopped = Retry::retry(slow, &policy).classify(classify::all).await.unwrap_err();
    assert_eq!(start.elapsed(), secs(5));
    assert_eq!(stopped.report.reason, StopReason::TimeSpent);
}
