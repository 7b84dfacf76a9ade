//! The distribution of the waits, measured.
//!
//! Every test uses a seeded random source, so it sees the same waits on every machine and a bound that holds
//! once holds always.
#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use proptest::prelude::*;
use redrive_core::run::{Admission, Run, Verdict};
use redrive_core::{Backoff, Fault, Jitter, Moment, Policy, RandomSource, SeededRandom};

const MS: fn(u64) -> Duration = Duration::from_millis;

/// `count` waits before retry `n`, each drawn as if `previous` had been the wait before.
fn draws(jitter: Jitter, backoff: &Backoff, n: u32, previous: Duration, seed: u64, count: usize) -> Vec<f64> {
    let mut random = SeededRandom::new(seed);
    (0..count).map(|_| jitter.draw(backoff, n, previous, &mut random).as_secs_f64()).collect()
}

/// The largest distance between the distribution of the draws and an even one (Kolmogorov–Smirnov).
fn farthest_from_even(draws: &mut [f64], low: f64, high: f64) -> f64 {
    draws.sort_by(f64::total_cmp);
    let count = draws.len() as f64;
    let ranked = draws.iter().enumerate().map(|(rank, draw)| {
        let even = (draw - low) / (high - low);
        (even - rank as f64 / count).max((rank + 1) as f64 / count - even)
    });
    ranked.fold(0.0, f64::max)
}

/// Pearson's chi-square over a hundred equal buckets.
fn chi_square(draws: &[f64], low: f64, high: f64) -> f64 {
    let mut buckets = [0u32; 100];
    for draw in draws {
        #[allow(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "0 to 100, and the fraction is not wanted"
        )]
        let bucket = ((draw - low) / (high - low) * 100.0) as usize;
        buckets[bucket.min(99)] += 1;
    }
    let even = draws.len() as f64 / 100.0;
    buckets.iter().map(|&seen| (f64::from(seen) - even).powi(2) / even).sum()
}

#[test]
fn each_jitter_spreads_evenly_over_its_own_range() {
    let grows = Backoff::exponential(MS(100), 2.0, MS(10_000));
    let none = Duration::ZERO;
    for (jitter, n, previous, low, high) in [
        (Jitter::Full, 1, none, MS(0), MS(100)),
        (Jitter::Full, 4, none, MS(0), MS(800)),
        (Jitter::Full, 40, none, MS(0), MS(10_000)),
        (Jitter::Equal, 1, none, MS(50), MS(100)),
        (Jitter::Equal, 4, none, MS(400), MS(800)),
        (Jitter::Equal, 40, none, MS(5_000), MS(10_000)),
        (Jitter::Decorrelated, 1, none, MS(100), MS(300)),
        (Jitter::Decorrelated, 2, MS(250), MS(100), MS(750)),
        (Jitter::Decorrelated, 2, MS(10), MS(100), MS(300)),
        (Jitter::Decorrelated, 9, MS(9_000), MS(100), MS(10_000)),
    ] {
        let what = format!("{jitter:?} before retry {n} after {previous:?}");
        let (low, high) = (low.as_secs_f64(), high.as_secs_f64());
        let count = 20_000;
        let mut seen = draws(jitter, &grows, n, previous, 7, count);

        let mean = seen.iter().sum::<f64>() / count as f64;
        let off = (mean - (low + high) / 2.0).abs() / (high - low);
        assert!(off < 0.01, "{what}: the mean is {mean}");

        // One in a thousand even distributions is further off than this.
        let chi = chi_square(&seen, low, high);
        assert!(chi < 148.2, "{what}: chi-square {chi} over 100 buckets");
        let far = farthest_from_even(&mut seen, low, high) * (count as f64).sqrt();
        assert!(far < 1.95, "{what}: Kolmogorov–Smirnov {far}");

        let (least, most) = (seen[0], seen[count - 1]);
        let edge = (high - low) / 1_000.0;
        assert!((low..low + edge).contains(&least), "{what}: {least} at least");
        assert!(most <= high && most > high - edge, "{what}: {most} at most, never above {high}");
    }
}

#[test]
fn no_jitter_is_the_ceiling_itself_and_throws_no_dice() {
    struct Glued;
    impl RandomSource for Glued {
        fn roll(&mut self) -> u64 {
            panic!("no draw is needed")
        }
    }
    let backoff = Backoff::default();
    let wait = Jitter::None.draw(&backoff, 3, Duration::ZERO, &mut Glued);
    assert_eq!(wait, MS(400));
}

fn any_duration() -> impl Strategy<Value = Duration> {
    prop_oneof![
        4 => (0u64..100_000).prop_map(Duration::from_micros),
        4 => (0u64..100_000).prop_map(Duration::from_millis),
        1 => any::<(u64, u32)>().prop_map(|(secs, nanos)| Duration::new(secs / 8, nanos)),
        1 => Just(Duration::ZERO),
        1 => Just(Duration::MAX),
    ]
}

fn any_backoff() -> impl Strategy<Value = Backoff> {
    let factor = prop_oneof![1.0..8.0, Just(1.0), Just(f64::MAX)];
    prop_oneof![
        any_duration().prop_map(Backoff::constant),
        (any_duration(), any_duration(), any_duration()).prop_map(|(a, b, c)| Backoff::linear(a, b, c)),
        (any_duration(), factor, any_duration()).prop_map(|(a, f, c)| Backoff::exponential(a, f, c)),
        prop::collection::vec(any_duration(), 1..6).prop_map(Backoff::table),
    ]
}

fn any_jitter() -> impl Strategy<Value = Jitter> {
    prop::sample::select(vec![Jitter::None, Jitter::Full, Jitter::Equal, Jitter::Decorrelated])
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2_000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn under_no_setting_does_a_wait_pass_the_cap(
        backoff in any_backoff(), jitter in any_jitter(), n in prop_oneof![1u32..40, any::<u32>()],
        previous in any_duration(), seed in any::<u64>(),
    ) {
        let mut random = SeededRandom::new(seed);
        for _ in 0..20 {
            let wait = jitter.draw(&backoff, n, previous, &mut random);
            prop_assert!(wait <= backoff.cap(), "{wait:?}");
            if jitter != Jitter::Decorrelated {
                prop_assert!(wait <= backoff.ceiling(n), "{wait:?} is above the ceiling of this retry");
            }
            if jitter == Jitter::Equal {
                prop_assert!(wait >= backoff.ceiling(n) / 2, "{wait:?} is below half the ceiling");
            }
        }
    }
}

/// A chain of waits long past the point at which the backoff has reached its cap.
fn chain_at_the_cap(
    count: usize,
    mut draw: impl FnMut(Duration, &mut SeededRandom) -> Duration,
) -> Vec<Duration> {
    let mut random = SeededRandom::new(11);
    let mut previous = MS(10_000);
    (0..count)
        .map(|_| {
            previous = draw(previous, &mut random);
            previous
        })
        .collect()
}

fn share_at(cap: Duration, waits: &[Duration]) -> f64 {
    waits.iter().filter(|&&wait| wait == cap).count() as f64 / waits.len() as f64
}

#[test]
fn at_the_cap_the_jitter_is_alive() {
    let cap = MS(10_000);
    let backoff = Backoff::exponential(MS(100), 2.0, cap);
    for jitter in [Jitter::Full, Jitter::Equal, Jitter::Decorrelated] {
        let waits = chain_at_the_cap(10_000, |previous, random| jitter.draw(&backoff, 50, previous, random));
        let mut buckets = HashMap::new();
        for wait in &waits {
            *buckets.entry(wait.as_millis()).or_insert(0u32) += 1;
        }
        let fullest = buckets.values().max().copied().unwrap();
        assert!(fullest <= 100, "{jitter:?}: {fullest} of 10,000 in one millisecond");
        assert!(share_at(cap, &waits) < 0.001, "{jitter:?}: waits that are the cap itself");
    }
}

/// `min(cap, uniform(base, previous · 3))`, the textbook form: it draws first and clamps then.
fn textbook(base: Duration, cap: Duration, previous: Duration, random: &mut SeededRandom) -> Duration {
    let above = Backoff::constant((previous * 3).saturating_sub(base));
    (base + Jitter::Full.draw(&above, 1, previous, random)).min(cap)
}

#[test]
fn textbook_decorrelated_jitter_piles_up_on_the_cap_and_ours_does_not() {
    let (base, cap) = (MS(100), MS(10_000));
    let backoff = Backoff::exponential(base, 2.0, cap);
    let theirs = chain_at_the_cap(10_000, |previous, random| textbook(base, cap, previous, random));
    let ours = chain_at_the_cap(10_000, |previous, random| {
        Jitter::Decorrelated.draw(&backoff, 50, previous, random)
    });
    let (theirs, ours) = (share_at(cap, &theirs), share_at(cap, &ours));
    println!("waits that are the cap itself: textbook {theirs:.3}, ours {ours:.4}");
    assert!(theirs > 0.2 && ours < 0.001, "textbook {theirs}, ours {ours}");
}

/// The first wait of each of `count` runs under one policy.
fn first_waits(seed: u64, count: usize) -> Vec<Duration> {
    let policy = Policy::builder()
        .backoff(Backoff::constant(Duration::from_secs(10)))
        .no_budget()
        .seed(seed)
        .build()
        .unwrap();
    let now = Moment::from_nanos(0);
    let first_wait = |_| {
        // The same random source for every run: only the policy's own can make a difference.
        let mut random = SeededRandom::new(0);
        let mut run = Run::new(&policy);
        assert_eq!(run.admit(&policy, &now, &mut random), Admission::Go { deadline: None });
        match run.settle(&policy, Fault::transient(), None, &now, &mut random) {
            Verdict::RetryAt(at) => at.since(now),
            other => panic!("{other:?}"),
        }
    };
    (0..count).map(first_wait).collect()
}

#[test]
fn two_thousand_runs_of_one_policy_wait_two_thousand_different_times() {
    let waits = first_waits(42, 2_000);
    assert_eq!(waits.iter().collect::<HashSet<_>>().len(), 2_000);
    assert_eq!(waits, first_waits(42, 2_000), "and the same seed makes the same two thousand");
    let others: HashSet<_> = first_waits(43, 2_000).into_iter().collect();
    assert!(waits.iter().all(|wait| !others.contains(wait)), "another seed makes others");
}
