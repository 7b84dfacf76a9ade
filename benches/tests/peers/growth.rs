//! How much more a downstream is asked when it is down: layers that multiply, and retries without a budget.

use std::cell::Cell;
use std::pin::Pin;

use proptest::prelude::*;
use redrive_core::{Backoff, Budget, Policy};
use redrive_retry::blocking::Retry as _;
use redrive_retry::{Retry, classify};

use crate::redrive_helpers::{policy, still};

const ATTEMPTS: u32 = 3;

/// Every layer tries three times and knows nothing of the others, as most code does.
fn naive(layers: u32, calls: &Cell<u32>) -> Result<(), &'static str> {
    if layers == 0 {
        calls.set(calls.get() + 1);
        return Err("down");
    }
    (1..ATTEMPTS).fold(naive(layers - 1, calls), |result, _| result.or_else(|_| naive(layers - 1, calls)))
}

fn blocking(policy: &Policy, layers: u32, calls: &Cell<u32>) -> Result<(), &'static str> {
    if layers == 0 {
        calls.set(calls.get() + 1);
        return Err("down");
    }
    let inner = || blocking(policy, layers - 1, calls);
    inner.retry(policy).classify(classify::all).call().map_err(|stopped| stopped.error.unwrap())
}

type Asked<'a> = Pin<Box<dyn Future<Output = Result<(), &'static str>> + 'a>>;

fn asynchronous<'a>(policy: &'a Policy, layers: u32, calls: &'a Cell<u32>) -> Asked<'a> {
    Box::pin(async move {
        if layers == 0 {
            calls.set(calls.get() + 1);
            return Err("down");
        }
        let inner = || asynchronous(policy, layers - 1, calls);
        let result = Retry::retry(inner, policy).classify(classify::all).await;
        result.map_err(|stopped| stopped.error.unwrap())
    })
}

#[tokio::test]
async fn five_naive_layers_of_three_attempts_make_243_calls_and_five_of_ours_make_3() {
    let policy = policy(ATTEMPTS).backoff(Backoff::NONE).build().unwrap();
    for (layers, multiplied) in [(1, 3), (2, 9), (3, 27), (5, 243)] {
        let calls = Cell::new(0);
        naive(layers, &calls).unwrap_err();
        assert_eq!(calls.replace(0), multiplied);
        blocking(&policy, layers, &calls).unwrap_err();
        assert_eq!(calls.replace(0), 3, "{layers} layers, blocking");
        asynchronous(&policy, layers, &calls).await.unwrap_err();
        assert_eq!(calls.replace(0), 3, "{layers} layers, async");
    }
}

/// Attempts made for so many calls while everything fails.
fn outage(policy: &Policy, calls: u32) -> u32 {
    let _still = still();
    let attempts = Cell::new(0);
    for _ in 0..calls {
        let down = || {
            attempts.set(attempts.get() + 1);
            Err::<(), _>("down")
        };
        down.retry(policy).classify(classify::all).call().unwrap_err();
    }
    attempts.get()
}

/// The figures of the SRE book, chapter "Handling Overload".
#[test]
fn a_total_outage_triples_the_load_without_a_budget_and_adds_a_tenth_with_one() {
    let patient = || Policy::builder().attempts(ATTEMPTS).backoff(Backoff::NONE);
    assert_eq!(outage(&patient().no_budget().build().unwrap(), 1000), 3000);
    assert_eq!(outage(&patient().budget(Budget::share_of(0.1).unwrap()).build().unwrap(), 1000), 1100);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn whatever_the_share_the_load_grows_by_it_and_no_more(
        hundredths in 0u32..=100, hundreds in 1u32..20, attempts in 3u32..10,
    ) {
        let calls = hundreds * 100;
        let budget = Budget::share_of(f64::from(hundredths) / 100.0).unwrap();
        let policy =
            Policy::builder().attempts(attempts).backoff(Backoff::NONE).budget(budget).build().unwrap();
        prop_assert_eq!(outage(&policy, calls), calls + hundreds * hundredths);
    }
}
