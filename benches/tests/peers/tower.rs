//! tower 0.5.3: jitter that is the same for everybody, and a budget that is not kept.
//!
//! - `make_backoff` clones the maker's random source with its state, so every session begins at the same
//!   number.
//! - Jitter is computed from seconds and nanoseconds apart, and each is cut to a whole number: one second has
//!   none.
//! - A withdrawal costs `1 / share` deposits cut to a whole number: from above one half on, one.
//! - `withdraw` looks at the sum and then subtracts; between the two another thread looks at the same sum.

use std::collections::HashSet;
use std::time::Duration;

use proptest::prelude::*;
use redrive_core::{Backoff, Budget, Fault, Jitter, Moment};
use tokio::time::Instant;
use tower::retry::backoff::{Backoff as _, ExponentialBackoff, ExponentialBackoffMaker, MakeBackoff};
use tower::retry::budget::{Budget as _, TpsBudget};
use tower::util::rng::HasherRng;

use crate::redrive_helpers::{crowd, policy, shows, still, waits};

const MINUTE: Duration = Duration::from_secs(60);

fn maker(base: Duration, jitter: f64) -> ExponentialBackoffMaker {
    ExponentialBackoffMaker::new(base, MINUTE, jitter, HasherRng::new()).unwrap()
}

fn next_wait(session: &mut ExponentialBackoff) -> Duration {
    session.next_backoff().deadline() - Instant::now()
}

/// The first waits of `calls` calls under one policy with this base.
fn our_first_waits(base: Duration, calls: usize) -> HashSet<Duration> {
    let backoff = Backoff::exponential(base, 2.0, MINUTE);
    let policy = policy(2).backoff(backoff).jitter(Jitter::Equal).build().unwrap();
    (0..calls).map(|_| waits(&policy, Fault::transient()).0[0]).collect()
}

#[test]
fn all_sessions_of_one_tower_maker_begin_with_the_same_wait_and_ours_do_not() {
    let _still = still();
    let mut maker = ExponentialBackoffMaker::default();
    let theirs: HashSet<_> = (0..2000).map(|_| next_wait(&mut maker.make_backoff())).collect();
    assert_eq!(theirs.len(), 1, "2000 sessions");
    // Twenty-five million nanoseconds to choose from: two of 2000 draws may fall on the same one.
    assert!(our_first_waits(Duration::from_millis(50), 2000).len() >= 1990);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn two_sessions_of_a_tower_maker_stay_together_and_ours_part(base in 1u64..5000, jitter in 0.01..1.0) {
        let _still = still();
        let base = Duration::from_millis(base);
        let mut maker = maker(base, jitter);
        let (mut one, mut other) = (maker.make_backoff(), maker.make_backoff());
        for _ in 0..5 {
            prop_assert!(next_wait(&mut one) == next_wait(&mut other));
        }
        prop_assert!(our_first_waits(base, 10).len() > 1);
    }

    #[test]
    fn towers_jitter_moves_whole_seconds_by_whole_seconds_only(base in 1u64..30, jitter in 0.01..1.0) {
        let _still = still();
        let wait = next_wait(&mut maker(Duration::from_secs(base), jitter).make_backoff());
        prop_assert_eq!(wait.subsec_nanos(), 0);
    }

    #[test]
    fn every_share_above_one_half_is_one_to_tower_and_itself_to_us(hundredths in 51u32..100) {
        let _still = still();
        let share = f64::from(hundredths) / 100.0;
        #[allow(clippy::cast_possible_truncation, reason = "two digits")]
        let theirs = TpsBudget::new(Duration::from_secs(10), 0, share as f32);
        let (ours, now) = (Budget::share_of(share).unwrap(), Moment::default());
        for _ in 0..1000 {
            theirs.deposit();
            ours.deposit(&now);
        }
        prop_assert_eq!((0..1000).filter(|_| theirs.withdraw()).count(), 1000);
        let granted = (0..1000).filter(|_| ours.withdraw(now)).count();
        prop_assert_eq!(granted, 10 * usize::try_from(hundredths).unwrap());
    }
}

#[test]
fn a_base_of_one_second_has_no_jitter_in_tower_and_has_it_here() {
    let _still = still();
    let second = Duration::from_secs(1);
    // A maker of its own for each, so that the shared random source is not to blame.
    let theirs: HashSet<_> = (0..1000).map(|_| next_wait(&mut maker(second, 0.99).make_backoff())).collect();
    assert_eq!(theirs, HashSet::from([second]));
    assert!(our_first_waits(second, 1000).len() >= 990);
}

#[test]
fn a_tower_budget_of_six_tenths_lets_a_thousand_of_a_thousand_through_and_ours_six_hundred() {
    let _still = still();
    let theirs = TpsBudget::new(Duration::from_secs(10), 0, 0.6);
    let (ours, now) = (Budget::share_of(0.6).unwrap(), Moment::default());
    for _ in 0..1000 {
        theirs.deposit();
        ours.deposit(&now);
    }
    assert_eq!((0..1000).filter(|_| theirs.withdraw()).count(), 1000);
    assert_eq!((0..1000).filter(|_| ours.withdraw(now)).count(), 600);
}

/// One token behind every door, and all threads want it.
#[test]
fn threads_overdraw_towers_budget_and_not_ours() {
    const DOORS: usize = 5000;
    let overdrawn = || {
        let theirs: Vec<_> = (0..DOORS).map(|_| TpsBudget::new(MINUTE, 0, 1.0)).collect();
        theirs.iter().for_each(TpsBudget::deposit);
        crowd(4, DOORS, |door| theirs[door].withdraw()).into_iter().any(|granted| granted > 1)
    };
    assert!(shows(overdrawn), "mended?");

    let now = Moment::default();
    let ours: Vec<_> = (0..DOORS).map(|_| Budget::share_of(1.0).unwrap()).collect();
    ours.iter().for_each(|budget| budget.deposit(&now));
    let granted = crowd(8, DOORS, |door| ours[door].withdraw(now));
    assert!(granted.iter().all(|&granted| granted == 1), "a token was spent twice, or never");
}
