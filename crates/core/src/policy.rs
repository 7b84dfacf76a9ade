//! A policy: which attempts are retried, how often, how soon, and out of which budget.
//!
//! A [`Policy`] is a value. It is checked when it is built and is cheap to clone. Every clone shares the same
//! budget, breaker, limit and rate, so give one policy to all callers of one downstream.
//!
//! # Defaults
//!
//! | setting | default | why |
//! |---|---|---|
//! | `name` | `"default"` | the `target` of metrics |
//! | `attempts` | 3 | the SRE book's limit for one request |
//! | `backoff` | exponential, 100 ms · 2ⁿ⁻¹, cap 10 s | |
//! | `jitter` | full | fewest calls under contention |
//! | `time` | none | the deadline usually comes from the caller |
//! | `attempt_time` | none | a time-out costs a timer, and clients often have their own |
//! | `not_before_max` | 300 s | a server may ask for a day; no call waits that long |
//! | `budget` | 10 % of first attempts, at least 10 a second, over 10 s | without one, overload is not retried at all |
//! | `breaker`, `limit`, `rate` | none | |
//!
//! ```
//! use redrive_core::{Backoff, Budget, Jitter, Policy};
//! use std::time::Duration;
//!
//! let policy = Policy::builder()
//!     .name("payments")
//!     .attempts(5)
//!     .backoff(Backoff::exponential(Duration::from_millis(50), 2.0, Duration::from_secs(2)))
//!     .jitter(Jitter::Full)
//!     .time(Duration::from_secs(10))
//!     .attempt_time(Duration::from_secs(3))
//!     .budget(Budget::share_of(0.2)?)
//!     .build()?;
//! # Ok::<(), redrive_core::PolicyError>(())
//! ```

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::breaker::Breaker;
use crate::budget::Budget;
use crate::limit::Limit;
use crate::moment::Moment;
use crate::observe::{Observer, Outcome};
use crate::random::{RandomSource, SeededRandom, mix};
use crate::rate::Rate;
use crate::report::StopReason;
use crate::run::{RetryState, Verdict};

mod builder;
mod error;
mod plan;

pub use builder::{PolicyBuilder, PolicySettings};
pub use error::PolicyError;
pub use plan::{Horizon, Tuning};

/// Which attempts are retried, how often, how soon, and out of which budget. See the [module](self) for the
/// defaults.
#[derive(Clone)]
pub struct Policy(Arc<Inner>);

struct Inner {
    settings: PolicySettings,
    budget: Option<Budget>,
    breaker: Option<Breaker>,
    limit: Option<Limit>,
    rate: Option<Rate>,
    observers: Vec<Box<dyn Observer>>,
    /// See [`Policy::is_plain`].
    plain: bool,
    /// The seed, and how many runs have received a random source from it.
    seed: Option<(u64, AtomicU64)>,
}

impl Default for Policy {
    fn default() -> Self {
        let budget = Some(Budget::default());
        let settings = PolicySettings::default();
        Self(Arc::new(Inner {
            settings,
            budget,
            breaker: None,
            limit: None,
            rate: None,
            observers: Vec::new(),
            plain: true,
            seed: None,
        }))
    }
}

impl Policy {
    /// Starts from the defaults.
    #[must_use]
    pub fn builder() -> PolicyBuilder {
        PolicyBuilder::default()
    }

    /// The name, which is the `target` of metrics.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.0.settings.name
    }

    /// The settings it was built from. A budget or breaker that was passed in as a value appears with its own
    /// settings.
    #[must_use]
    #[inline]
    pub fn settings(&self) -> &PolicySettings {
        &self.0.settings
    }

    /// The budget, if it has one.
    #[must_use]
    #[inline]
    pub fn budget(&self) -> Option<&Budget> {
        self.0.budget.as_ref()
    }

    /// The breaker, if it has one.
    #[must_use]
    #[inline]
    pub fn breaker(&self) -> Option<&Breaker> {
        self.0.breaker.as_ref()
    }

    /// The concurrency limit, if it has one.
    #[must_use]
    pub fn limit(&self) -> Option<&Limit> {
        self.0.limit.as_ref()
    }

    /// The rate limit, if it has one.
    #[must_use]
    pub fn rate(&self) -> Option<&Rate> {
        self.0.rate.as_ref()
    }

    pub(crate) fn observers(&self) -> &[Box<dyn Observer>] {
        &self.0.observers
    }

    /// Whether the two are clones of each other, with the same budget and breaker.
    #[must_use]
    #[inline]
    pub fn is(&self, other: &Policy) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// Whether it has an observer.
    #[must_use]
    #[inline]
    pub fn is_observed(&self) -> bool {
        !self.0.observers.is_empty()
    }

    /// Whether an attempt needs neither the clock nor a permit: no limit on time, rate or concurrency, and no
    /// observer. It is computed once, so that a call makes one check.
    #[inline]
    pub(crate) fn is_plain(&self) -> bool {
        self.0.plain
    }

    /// The random source for the next run, if the policy is seeded: the same seed gives the same sequence of
    /// runs, and no two runs share a sequence.
    pub(crate) fn seeded(&self) -> Option<SeededRandom> {
        let (seed, runs) = self.0.seed.as_ref()?;
        Some(SeededRandom::new(mix(seed.wrapping_add(mix(runs.fetch_add(1, Ordering::Relaxed))))))
    }

    /// Decides what follows an attempt: a function of its arguments and of the tokens in the budget.
    ///
    /// It never plans a wait that would end after the deadline or after the policy's total time; it stops
    /// instead. It asks the budget last, so that a retry refused for another reason costs no token.
    pub fn decide(
        &self,
        history: &RetryState,
        outcome: Outcome,
        now: Moment,
        random: &mut impl RandomSource,
    ) -> Verdict {
        let verdict = self.0.settings.plan(history, outcome, now, random);
        match verdict {
            // Inside another retry, the outer retry makes the next attempt, but this policy's budget still
            // pays for it.
            Verdict::Dead(StopReason::AttemptsSpent) if history.nested && self.is_broke(now) => {
                Verdict::Dead(StopReason::BudgetSpent)
            }
            Verdict::RetryAt(at) if self.is_open_after(at) => Verdict::Dead(StopReason::BreakerOpen),
            Verdict::RetryAt(_) if self.is_broke(now) => Verdict::Dead(StopReason::BudgetSpent),
            verdict => verdict,
        }
    }

    /// Whether there is a budget without a token; takes a token if there is one.
    fn is_broke(&self, now: Moment) -> bool {
        self.budget().is_some_and(|budget| !budget.withdraw(now))
    }

    fn is_open_after(&self, at: Moment) -> bool {
        self.breaker().and_then(Breaker::open_until).is_some_and(|until| until > at)
    }

    /// The reason why an attempt at `at` would be too late, if it would.
    pub(crate) fn too_late(&self, history: &RetryState, at: Moment) -> Option<StopReason> {
        self.0.settings.too_late(history, at)
    }
}

impl fmt::Debug for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Policy").field(&self.0.settings).finish()
    }
}

#[cfg(feature = "serde")]
impl serde::Serialize for Policy {
    fn serialize<S: serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        self.0.settings.serialize(to)
    }
}

#[cfg(feature = "serde")]
impl<'de> serde::Deserialize<'de> for Policy {
    fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let settings = PolicySettings::deserialize(from)?;
        settings.build().map_err(serde::de::Error::custom)
    }
}
