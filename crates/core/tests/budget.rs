//! Retries stay a share of first attempts, however many threads ask at once.
//!
//! Eight threads hammer one budget, and counters beside it check the result. A thread counts its deposit
//! *before* it makes it and its grant *after* it got it, so at any moment the counters include every deposit
//! that can have backed the grants they include. A single grant above the allowance is therefore caught while
//! it happens, and not only in the sum.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::thread;
use std::time::Duration;

use redrive_core::budget::{Budget, BudgetSettings, HEAP};
use redrive_core::{Clock, Moment};

const THREADS: u64 = 8;
const OPERATIONS: u64 = 1_000_000;
/// The shares, in thousandths, so that allowances compare in whole numbers.
const SHARES: [u64; 8] = [50, 100, 200, 350, 500, 600, 750, 950];

fn share(thousandths: u64) -> f64 {
    thousandths as f64 / 1_000.0
}

/// Counts the deposits and grants of a budget.
#[derive(Default)]
struct Witness {
    deposits: AtomicU64,
    granted: AtomicU64,
}

impl Witness {
    /// Makes a first attempt, and then as many retries as the budget grants.
    fn hammer(&self, budget: &Budget, thousandths: u64, clock: &impl Clock) {
        self.deposits.fetch_add(1, SeqCst);
        budget.deposit(clock);
        while budget.withdraw(clock.now()) {
            let granted = self.granted.fetch_add(1, SeqCst) + 1;
            let deposits = self.deposits.load(SeqCst);
            assert!(
                granted * 1_000 <= deposits * thousandths,
                "{granted} retries granted for {deposits} first attempts at 0.{thousandths:03}"
            );
        }
    }

    fn share_granted(&self) -> f64 {
        self.granted.load(SeqCst) as f64 / self.deposits.load(SeqCst) as f64
    }
}

/// Hammers from all threads, `operations` in all.
fn from_all_threads(operations: u64, hammer: impl Fn() + Sync) {
    thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| (0..operations / THREADS).for_each(|_| hammer()));
        }
    });
}

#[test]
fn with_time_standing_still_the_share_is_exact_from_eight_threads() {
    let now = Moment::from_nanos(1 << 50);
    for thousandths in SHARES {
        let budget = Budget::share_of(share(thousandths)).unwrap();
        let witness = Witness::default();
        from_all_threads(OPERATIONS, || witness.hammer(&budget, thousandths, &now));
        println!("asked for {}, got {:.6}", share(thousandths), witness.share_granted());
        let granted = witness.granted.load(SeqCst) + budget.tokens(now);
        assert_eq!(
            granted,
            OPERATIONS * thousandths / 1_000,
            "0.{thousandths:03}: nothing above and nothing lost"
        );
        assert!(witness.share_granted() > share(thousandths) * 0.99);
        assert_eq!(budget.spent(), witness.granted.load(SeqCst));
    }
}

#[test]
fn while_the_window_turns_nothing_is_granted_above_the_share() {
    for thousandths in SHARES {
        let settings =
            BudgetSettings { share: share(thousandths), floor: 0.0, window: Duration::from_secs(1) };
        let budget = Budget::new(settings).unwrap();
        let witness = Witness::default();
        // Every reading of the clock advances it by 10 µs, so the ring turns once in some 5,000 operations.
        let nanos = AtomicU64::new(1 << 50);
        let clock = || Moment::from_nanos(nanos.fetch_add(10_000, SeqCst));
        from_all_threads(OPERATIONS, || witness.hammer(&budget, thousandths, &clock));
        println!("asked for {}, got {:.6}", share(thousandths), witness.share_granted());
        assert!(
            witness.share_granted() > share(thousandths) * 0.99,
            "0.{thousandths:03}: turning costs tokens only by accident"
        );
    }
}

#[test]
fn an_outage_adds_the_share_to_the_load_and_no_more() {
    let budget = Budget::share_of(0.1).unwrap();
    // Every call fails and wants a retry, for a minute at a hundred calls a second.
    let at = |call: u64| Moment::from_nanos(0) + Duration::from_millis(call * 10);
    let calls = 6_000;
    let retries = (0..calls).filter(|&call| {
        budget.deposit(&at(call));
        budget.withdraw(at(call))
    });
    assert_eq!(retries.count(), 600, "a load of 1.1, where three attempts each would make it 3");
}

#[test]
fn a_healthy_call_reads_no_clock() {
    let budget = Budget::share_of(0.1).unwrap();
    let looks = Cell::new(0u64);
    let clock = || {
        looks.set(looks.get() + 1);
        Moment::from_nanos(0)
    };
    (0..100 * HEAP).for_each(|_| budget.deposit(&clock));
    assert!(looks.get() <= 2 * 100, "{} looks at the clock for a hundred heaps", looks.get());
    assert_eq!(budget.tokens(Moment::from_nanos(0)), 100 * HEAP / 10, "and every call was counted");
}
