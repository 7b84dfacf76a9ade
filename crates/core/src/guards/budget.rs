//! Retries as a share of first attempts.
//!
//! Backoff limits how fast one caller retries. Only a budget limits how much load all callers together add to
//! a downstream that is already failing: with three attempts each, a total outage triples the load; with a
//! budget of a tenth, the load grows by a tenth (the SRE book's figures).
//!
//! # How it works
//!
//! Every first attempt deposits `share` of a token, and every retry withdraws one token. Deposits older than
//! the window expire. In addition, `floor` retries a second are always allowed, so that a caller with little
//! traffic can retry at all.
//!
//! # Why so
//!
//! The usual implementation keeps a ring of counters behind a mutex and asks "is there enough?" before it
//! withdraws: between the two steps another thread can take the same token, and reading the clock costs more
//! than the rest of the call. Here:
//!
//! - A deposit is one atomic addition. Only two of every [`HEAP`] deposits read the clock. A deposit lands in
//!   `fresh`, a heap of deposits that are not counted yet.
//! - A withdrawal is rare and is about to wait anyway. It first counts the heap into the ring's current slot
//!   and into `balance`, then takes one token out of `balance` by compare-and-set. Only `balance` decides, so
//!   no token is spent twice.
//! - Tokens are spent oldest first. The balance therefore always consists of the newest deposits, and
//!   expiring a slot is one line: the balance may not exceed the deposits of the remaining slots.
//! - To keep the heap fresh, the first deposit into an empty heap reads the clock, and every [`HEAP`]th
//!   deposit counts the heap. The budget assumes that the deposits in the heap arrived evenly since that
//!   clock reading, and spreads them over the slots between.
//!
//! # What it costs
//!
//! One uncontended atomic addition on a first-try success. The limit is exact: over any history, the budget
//! grants at most `share · first attempts` retries plus the floor. When in doubt it refuses: a withdrawal
//! that runs while another thread counts the heap may be refused although a token is about to arrive, and
//! deposits that are counted at the very instant at which the ring turns may expire with the oldest slot.

use std::time::Duration;

use crate::moment::{Clock, Moment, nanos};
use crate::policy::PolicyError;
use crate::rate::Rate;
use crate::sync::{Arc, AtomicU64, Ordering, change};

/// The settings of a [`Budget`]. Defaults: a share of 0.1, a floor of 10 a second, a window of 10 s.
#[derive(Debug, Clone, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(default, deny_unknown_fields))]
pub struct BudgetSettings {
    /// Retries as a share of first attempts, from 0 to 1. The SRE book's 10 %.
    pub share: f64,
    /// Retries a second that are always allowed, on top of the share; zero for none. Finagle's 10.
    pub floor: f64,
    /// How long a deposit counts. Finagle's 10 s.
    #[cfg_attr(feature = "serde", serde(with = "crate::config::duration"))]
    pub window: Duration,
}

impl Default for BudgetSettings {
    fn default() -> Self {
        Self { share: 0.1, floor: 10.0, window: Duration::from_secs(10) }
    }
}

/// The most deposits that lie uncounted.
pub const HEAP: u64 = if cfg!(loom) { 2 } else { 1024 };

/// Slots in the ring: a deposit expires at most a tenth of the window early or late.
const SLOTS: usize = if cfg!(loom) { 2 } else { 10 };

/// One token, in the fixed-point unit of the balance. The unit is decimal, so that ten deposits of 0.2 are
/// exactly two tokens.
const TOKEN: u64 = 1_000_000_000;

/// The value of `clock` before the clock was first read.
const NEVER: u64 = u64::MAX;

/// A retry budget, shared by cloning. Give the same one to all callers of one downstream.
///
/// ```
/// use redrive_core::{Budget, Moment};
///
/// let budget = Budget::share_of(0.2)?;
/// let now = Moment::from_nanos(0);
/// for _ in 0..10 {
///     budget.deposit(&now);
/// }
/// assert!(budget.withdraw(now));
/// assert!(budget.withdraw(now));
/// assert!(!budget.withdraw(now), "two retries for ten calls, and not one more");
/// # Ok::<(), redrive_core::PolicyError>(())
/// ```
#[derive(Debug, Clone)]
pub struct Budget(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    settings: BudgetSettings,
    share: u64,
    slot_nanos: u64,
    floor: Option<Rate>,
    /// Deposits that are not counted yet.
    fresh: AtomicU64,
    /// The number of the current slot, counted from time zero.
    clock: AtomicU64,
    /// The deposits that each slot of the ring received.
    received: [AtomicU64; SLOTS],
    /// The tokens that can be spent. Only this word decides.
    balance: AtomicU64,
    spent: AtomicU64,
}

impl Default for Budget {
    fn default() -> Self {
        Self::made(BudgetSettings::default(), Rate::new(10.0, 10).ok())
    }
}

impl Budget {
    /// A budget with these settings.
    ///
    /// # Errors
    /// Refuses a share outside 0–1, a floor that is negative or not a number, and a window below 10 ns.
    pub fn new(settings: BudgetSettings) -> Result<Self, PolicyError> {
        let BudgetSettings { share, floor, window } = settings;
        if !(0.0..=1.0).contains(&share) {
            return Err(PolicyError::Share { share });
        }
        if !(floor.is_finite() && (0.0..=1e9).contains(&floor)) {
            return Err(PolicyError::Floor { floor });
        }
        if window < Duration::from_nanos(SLOTS as u64) {
            return Err(PolicyError::Window { window });
        }
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "0 to 1e9, checked above")]
        let burst = (floor.ceil() as u32).max(1);
        let floor = if floor > 0.0 { Some(Rate::new(floor, burst)?) } else { None };
        Ok(Self::made(settings, floor))
    }

    /// A budget with this share, no floor, and the default window.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub fn share_of(share: f64) -> Result<Self, PolicyError> {
        Self::new(BudgetSettings { share, floor: 0.0, ..BudgetSettings::default() })
    }

    fn made(settings: BudgetSettings, floor: Option<Rate>) -> Self {
        #[allow(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            clippy::cast_precision_loss,
            reason = "0 to 1e9; rounded down, never more than was asked, but for the double's own last bits"
        )]
        let share = (settings.share * TOKEN as f64 + 1e-3) as u64;
        Self(Arc::new(Inner {
            share,
            slot_nanos: nanos(settings.window) / SLOTS as u64,
            settings,
            floor,
            fresh: AtomicU64::new(0),
            clock: AtomicU64::new(NEVER),
            received: std::array::from_fn(|_| AtomicU64::new(0)),
            balance: AtomicU64::new(0),
            spent: AtomicU64::new(0),
        }))
    }

    /// Records a first attempt. Most calls do not read the clock.
    #[inline]
    pub fn deposit(&self, clock: &impl Clock) {
        let lying = self.0.fresh.fetch_add(1, Ordering::Relaxed);
        if lying == 0 {
            self.turn(self.slot(clock.now()));
        } else if (lying + 1).is_multiple_of(HEAP) {
            self.count(clock.now());
        }
    }

    /// Takes the token for one retry, or returns `false` if there is none.
    #[must_use]
    pub fn withdraw(&self, now: Moment) -> bool {
        self.count(now);
        let inner = &*self.0;
        let taken =
            change(&inner.balance, |balance| balance.checked_sub(TOKEN).map(|left| (left, ())).ok_or(()))
                .is_ok()
                || inner.floor.as_ref().is_some_and(|floor| floor.take(now).is_ok());
        if taken {
            inner.spent.fetch_add(1, Ordering::Relaxed);
        }
        taken
    }

    /// The retries that could be made now.
    #[must_use]
    pub fn tokens(&self, now: Moment) -> u64 {
        self.count(now);
        let floor = self.0.floor.as_ref().map_or(0, |floor| floor.available(now));
        self.0.balance.load(Ordering::Relaxed) / TOKEN + floor
    }

    /// An id that differs from every other live budget's; clones share it. It lets a caller avoid paying
    /// twice.
    #[must_use]
    #[inline]
    pub fn id(&self) -> usize {
        &raw const *self.0 as usize
    }

    /// The retries granted so far.
    #[must_use]
    pub fn spent(&self) -> u64 {
        self.0.spent.load(Ordering::Relaxed)
    }

    /// The settings of this budget.
    #[must_use]
    pub fn settings(&self) -> &BudgetSettings {
        &self.0.settings
    }

    fn slot(&self, now: Moment) -> u64 {
        now.as_nanos() / self.0.slot_nanos
    }

    /// Brings ring and balance up to `now`: expires old deposits, then counts the heap.
    fn count(&self, now: Moment) {
        let inner = &*self.0;
        let slot = self.slot(now);
        let passed = self.turn(slot);
        let fresh = inner.fresh.swap(0, Ordering::AcqRel);
        if fresh == 0 {
            return;
        }
        let worth = fresh.saturating_mul(inner.share);
        // Assume an even stream since the clock was last read: each slot gets the same share, and shares of
        // slots that have left the ring expire.
        let each = worth / (passed + 1);
        let earlier = passed.min(SLOTS as u64 - 1);
        let present = if passed == earlier { worth - each * earlier } else { each };
        // Update the ring before the balance, so that a turn in between sees the deposit. In the other order
        // that turn would always expire it.
        for back in 1..=earlier {
            inner.received[index(slot - back)].fetch_add(each, Ordering::AcqRel);
        }
        inner.received[index(slot)].fetch_add(present, Ordering::AcqRel);
        inner.balance.fetch_add(each * earlier + present, Ordering::AcqRel);
    }

    /// Advances the ring to `slot` and expires the slots that fall off. Returns how many slots passed to the
    /// thread that advanced it.
    fn turn(&self, slot: u64) -> u64 {
        let inner = &*self.0;
        let last = inner.clock.load(Ordering::Acquire);
        if last == NEVER {
            let _ = inner.clock.compare_exchange(NEVER, slot, Ordering::AcqRel, Ordering::Acquire);
            return 0;
        }
        if slot <= last
            || inner.clock.compare_exchange(last, slot, Ordering::AcqRel, Ordering::Acquire).is_err()
        {
            return 0;
        }
        let passed = slot - last;
        for turned in 0..passed.min(SLOTS as u64) {
            inner.received[index(slot - turned)].store(0, Ordering::Release);
        }
        let alive =
            inner.received.iter().fold(0u64, |sum, slot| sum.saturating_add(slot.load(Ordering::Acquire)));
        let _: Result<(), ()> = change(&inner.balance, |balance| Ok((balance.min(alive), ())));
        passed
    }
}

#[allow(clippy::cast_possible_truncation, reason = "a remainder below the number of slots")]
const fn index(slot: u64) -> usize {
    (slot % SLOTS as u64) as usize
}

#[cfg(not(loom))]
#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> Moment {
        // On the edge of a slot, so that the tests can say what falls into which.
        Moment::from_nanos(0) + Duration::from_millis(1_000_000 + millis)
    }

    fn drain(budget: &Budget, now: Moment) -> u32 {
        (0..).take_while(|_| budget.withdraw(now)).count().try_into().unwrap()
    }

    #[test]
    fn what_is_older_than_the_window_is_forgotten() {
        let budget = Budget::share_of(0.5).unwrap();
        (0..100).for_each(|_| budget.deposit(&at(0)));
        assert_eq!(budget.tokens(at(0)), 50);
        (0..10).for_each(|_| budget.deposit(&at(8_000)));
        assert_eq!(budget.tokens(at(8_000)), 55);
        assert_eq!(drain(&budget, at(11_000)), 5, "the first hundred are gone, the last ten are not");
        assert_eq!(drain(&budget, at(60_000)), 0);
    }

    #[test]
    fn a_heap_that_nobody_looked_into_is_taken_to_have_arrived_evenly() {
        let budget = Budget::share_of(0.5).unwrap();
        (0..200).for_each(|call| budget.deposit(&at(call * 50)));
        assert_eq!(budget.tokens(at(9_950)), 100, "ten slots, ten tokens in each");
        assert_eq!(budget.tokens(at(10_000)), 90);
        assert_eq!(budget.tokens(at(15_000)), 40);

        let budget = Budget::share_of(0.5).unwrap();
        (0..400).for_each(|call| budget.deposit(&at(call * 50)));
        assert_eq!(budget.tokens(at(19_950)), 100, "of twenty slots, the last ten");
    }

    #[test]
    fn the_oldest_tokens_are_spent_first() {
        let budget = Budget::share_of(1.0).unwrap();
        (0..4).for_each(|_| budget.deposit(&at(0)));
        assert_eq!(budget.tokens(at(0)), 4);
        (0..4).for_each(|_| budget.deposit(&at(5_000)));
        assert_eq!(budget.tokens(at(5_000)), 8);
        for _ in 0..3 {
            assert!(budget.withdraw(at(6_000)));
        }
        assert_eq!(drain(&budget, at(11_000)), 4, "three of the old ones were spent, the fourth forgotten");
    }

    #[test]
    fn a_quiet_hour_of_healthy_traffic_leaves_one_window_of_credit() {
        let budget = Budget::share_of(0.1).unwrap();
        // 10 a second for an hour; the budget reads the clock only every HEAP deposits.
        for call in 0..36_000 {
            budget.deposit(&at(call * 100));
        }
        let credit = drain(&budget, at(3_600_000));
        assert!((8..=12).contains(&credit), "about ten tokens, whenever the heap was last counted: {credit}");
    }

    #[test]
    fn the_floor_is_there_without_traffic_and_bounded_by_the_second() {
        let budget =
            Budget::new(BudgetSettings { share: 0.0, floor: 2.0, ..BudgetSettings::default() }).unwrap();
        let granted = (0..10_000).filter(|milli| budget.withdraw(at(*milli))).count();
        assert!((20..=22).contains(&granted), "{granted} in ten seconds at two a second");
    }

    #[test]
    fn time_that_jumps_back_changes_nothing() {
        let budget = Budget::share_of(0.5).unwrap();
        (0..10).for_each(|_| budget.deposit(&at(5_000)));
        assert!(budget.withdraw(at(0)));
        assert_eq!(drain(&budget, at(5_000)), 4);
    }

    #[test]
    fn nonsense_is_refused() {
        for share in [-0.1, 1.1, f64::NAN] {
            assert!(Budget::share_of(share).is_err(), "{share}");
        }
        for floor in [-1.0, f64::NAN, f64::INFINITY] {
            assert!(Budget::new(BudgetSettings { floor, ..BudgetSettings::default() }).is_err(), "{floor}");
        }
        let window = Duration::ZERO;
        assert!(Budget::new(BudgetSettings { window, ..BudgetSettings::default() }).is_err());
    }
}
