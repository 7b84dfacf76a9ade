//! Every interleaving of the lock-free parts, as far as two or three threads reach.
//!
//! `RUSTFLAGS="--cfg loom" cargo test -p redrive-core --release --test loom -- --nocapture`
//!
//! Under `--cfg loom` the atomics are loom's, the budget's ring has two slots and its heap holds two
//! deposits, so that a handful of operations meets every branch. Without it this file is empty.
#![cfg(loom)]
#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use loom::thread;
use redrive_core::Moment;
use redrive_core::breaker::{Breaker, BreakerSettings, BreakerState};
use redrive_core::budget::{Budget, BudgetSettings};
use redrive_core::limit::{Limit, LoadSignal};

/// How often loom may preempt a thread. Without a bound, three threads at a budget take hours; two
/// preemptions find nearly all that can be found, and three fit into a minute.
const PREEMPTIONS: usize = 3;

type Work = Box<dyn FnOnce() -> u64 + Send>;

/// Runs the model through its interleavings and prints how many there were.
fn every_interleaving(name: &str, model: impl Fn() + Send + Sync + 'static) {
    let seen = Arc::new(AtomicU64::new(0));
    let counter = Arc::clone(&seen);
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(PREEMPTIONS);
    builder.check(move || {
        counter.fetch_add(1, SeqCst);
        model();
    });
    println!("{name}: {} interleavings", seen.load(SeqCst));
}

/// Runs all of these at once, the last on this thread and the others on their own threads, and adds up their
/// results.
fn at_once<const N: usize>(work: [Work; N]) -> u64 {
    let mut work = Vec::from(work);
    let mine = work.pop();
    let threads: Vec<_> = work.into_iter().map(thread::spawn).collect();
    let said = mine.map_or(0, |mine| mine());
    said + threads.into_iter().map(|thread| thread.join().unwrap()).sum::<u64>()
}

/// A moment in the n-th slot of a budget with a window of two seconds.
fn slot(n: u64) -> Moment {
    Moment::from_nanos(0) + Duration::from_secs(100 + n)
}

fn budget(share: f64) -> Budget {
    Budget::new(BudgetSettings { share, floor: 0.0, window: Duration::from_secs(2) }).unwrap()
}

fn deposit(budget: &Budget, now: Moment) -> Work {
    let budget = budget.clone();
    Box::new(move || {
        budget.deposit(&now);
        0
    })
}

fn withdraw(budget: &Budget, now: Moment) -> Work {
    let budget = budget.clone();
    Box::new(move || u64::from(budget.withdraw(now)))
}

fn drain(budget: &Budget, now: Moment) -> u64 {
    (0..).take_while(|_| budget.withdraw(now)).count() as u64
}

#[test]
fn a_budget_is_neither_overdrawn_nor_robbed_while_time_stands_still() {
    for (share, before, allowed) in [(1.0, 0, 1), (0.5, 1, 1), (0.5, 3, 2)] {
        every_interleaving(&format!("a deposit and two withdrawals at {share}"), move || {
            let budget = budget(share);
            (0..before).for_each(|_| budget.deposit(&slot(0)));
            let work = [deposit(&budget, slot(0)), withdraw(&budget, slot(0)), withdraw(&budget, slot(0))];
            let granted = at_once(work);
            assert!(granted <= allowed, "{granted} granted, {allowed} allowed");
            assert_eq!(granted + drain(&budget, slot(0)), allowed, "and nothing is lost");
            assert_eq!(budget.spent(), allowed);
        });
    }
}

#[test]
fn two_deposits_fill_the_heap_while_another_is_spent() {
    every_interleaving("two deposits and a withdrawal", || {
        let budget = budget(0.5);
        let work = [deposit(&budget, slot(0)), deposit(&budget, slot(0)), withdraw(&budget, slot(0))];
        let granted = at_once(work);
        assert_eq!(granted + drain(&budget, slot(0)), 1);
    });
}

#[test]
fn a_budget_is_not_overdrawn_while_its_ring_turns() {
    // The withdrawals disagree about the slot, by one and by more than the ring is long.
    for (first, second) in [(0, 1), (1, 2), (0, 5)] {
        every_interleaving(&format!("withdrawals in slots {first} and {second}"), move || {
            let budget = budget(1.0);
            budget.deposit(&slot(0));
            let work = [
                deposit(&budget, slot(first)),
                withdraw(&budget, slot(first)),
                withdraw(&budget, slot(second)),
            ];
            let granted = at_once(work);
            let later = drain(&budget, slot(second));
            assert!(granted + later <= 2, "{granted} granted, {later} later, 2 allowed");
            assert_eq!(drain(&budget, slot(second + 3)), 0, "and all is forgotten in the end");
        });
    }
}

#[test]
fn a_half_open_breaker_lets_exactly_its_probes_through() {
    every_interleaving("three calls and two probes", || {
        let breaker = opened(2);
        // Passes are kept until all threads have asked, because dropping one frees its probe.
        let kept = Arc::new(Mutex::new(Vec::new()));
        let probe = || -> Work {
            let (breaker, kept) = (breaker.clone(), Arc::clone(&kept));
            Box::new(move || {
                let pass = breaker.admit(&slot(9)).ok();
                let made = u64::from(pass.is_some());
                kept.lock().unwrap().extend(pass);
                made
            })
        };
        assert_eq!(at_once([probe(), probe(), probe()]), 2);
        for pass in kept.lock().unwrap().drain(..) {
            pass.succeeded();
        }
        assert_eq!(breaker.state(slot(9)), BreakerState::Closed);
    });
}

#[test]
fn a_probe_that_is_given_up_leaves_its_place_whoever_asks_meanwhile() {
    every_interleaving("a probe given up beside one that succeeds", || {
        let breaker = opened(1);
        let (giving_up, succeeding) = (breaker.clone(), breaker.clone());
        let made = at_once([
            Box::new(move || u64::from(giving_up.admit(&slot(9)).is_ok())),
            Box::new(move || {
                let Ok(pass) = succeeding.admit(&slot(9)) else {
                    return 0;
                };
                pass.succeeded();
                1
            }),
        ]);
        assert!(made >= 1, "the breaker let at least one call through");
        breaker.admit(&slot(9)).expect("the probe is free again").succeeded();
        assert_eq!(breaker.state(slot(9)), BreakerState::Closed);
    });
}

/// A breaker that has just opened, for a second.
fn opened(probes: u32) -> Breaker {
    let breaker = Breaker::new(BreakerSettings {
        window: 1,
        least_calls: 1,
        open_for: Duration::from_secs(1),
        probes,
        ..BreakerSettings::default()
    })
    .unwrap();
    breaker.admit(&slot(0)).unwrap().failed(slot(0));
    breaker
}

#[test]
fn a_limit_of_one_holds_and_every_permit_comes_back() {
    every_interleaving("three permits of a limit of one", || {
        let limit = Limit::fixed(1).unwrap();
        let inside = Arc::new(AtomicU64::new(0));
        let enter = || -> Work {
            let (limit, inside) = (limit.clone(), Arc::clone(&inside));
            Box::new(move || {
                let Some(permit) = limit.acquire() else {
                    return 0;
                };
                assert_eq!(inside.fetch_add(1, SeqCst), 0, "two at once");
                thread::yield_now();
                inside.fetch_sub(1, SeqCst);
                permit.settle(LoadSignal::Fine);
                1
            })
        };
        assert!(at_once([enter(), enter(), enter()]) >= 1);
        assert_eq!((limit.used(), limit.width()), (0, 1));
    });
}
