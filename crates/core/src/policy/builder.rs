//! Builds a policy, and defines its form in configuration.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use super::{Inner, Policy, PolicyError};
use crate::backoff::Backoff;
use crate::breaker::{Breaker, BreakerSettings};
use crate::budget::{Budget, BudgetSettings};
use crate::jitter::Jitter;
use crate::limit::{Limit, LimitSettings};
use crate::observe::Observer;
use crate::rate::{Rate, RateSettings};

/// A policy as plain data, as in a configuration file. [`build`](Self::build) checks it.
///
/// With the feature `serde` it can be read and written: durations are strings such as `"250ms"`, missing keys
/// have their defaults, and unknown keys are refused. A configuration without a budget says `budget =
/// "none"`; an empty budget, `{ share = 0, floor = 0 }`, is different and grants no retry at all.
#[derive(Debug, Clone, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(default, deny_unknown_fields))]
pub struct PolicySettings {
    /// The name of the downstream, in metrics and logs.
    pub name: String,
    /// The most attempts, including the first one.
    pub attempts: u32,
    /// How the waits grow.
    pub backoff: Backoff,
    /// How the waits are spread.
    pub jitter: Jitter,
    /// The total time, attempts and waits together.
    #[cfg_attr(
        feature = "serde",
        serde(with = "crate::config::optional", skip_serializing_if = "Option::is_none")
    )]
    pub time: Option<Duration>,
    /// The time limit of one attempt.
    #[cfg_attr(
        feature = "serde",
        serde(with = "crate::config::optional", skip_serializing_if = "Option::is_none")
    )]
    pub attempt_time: Option<Duration>,
    /// The longest wait that the downstream may ask for.
    #[cfg_attr(feature = "serde", serde(with = "crate::config::duration"))]
    pub not_before_max: Duration,
    /// Retries as a share of first attempts.
    #[cfg_attr(feature = "serde", serde(with = "crate::config::budget"))]
    pub budget: Option<BudgetSettings>,
    /// When to stop calling the downstream.
    #[cfg_attr(feature = "serde", serde(skip_serializing_if = "Option::is_none"))]
    pub breaker: Option<BreakerSettings>,
    /// How many attempts may run at once.
    #[cfg_attr(feature = "serde", serde(skip_serializing_if = "Option::is_none"))]
    pub limit: Option<LimitSettings>,
    /// How many attempts may start each second.
    #[cfg_attr(feature = "serde", serde(skip_serializing_if = "Option::is_none"))]
    pub rate: Option<RateSettings>,
}

impl Default for PolicySettings {
    fn default() -> Self {
        Self {
            name: "default".to_owned(),
            attempts: 3,
            backoff: Backoff::default(),
            jitter: Jitter::default(),
            time: None,
            attempt_time: None,
            not_before_max: Duration::from_secs(300),
            budget: Some(BudgetSettings::default()),
            breaker: None,
            limit: None,
            rate: None,
        }
    }
}

impl PolicySettings {
    /// A policy with these settings, and its own budget and breaker.
    ///
    /// ```
    /// use redrive_core::policy::PolicySettings;
    ///
    /// let policy = PolicySettings { attempts: 5, ..PolicySettings::default() }.build()?;
    /// assert_eq!(policy.settings().attempts, 5);
    /// # Ok::<(), redrive_core::PolicyError>(())
    /// ```
    ///
    /// # Errors
    /// Which setting is invalid, and what to change.
    pub fn build(self) -> Result<Policy, PolicyError> {
        self.builder().build()
    }

    /// Starts a builder from these settings, for example to share a budget or a breaker.
    #[must_use]
    pub fn builder(self) -> PolicyBuilder {
        PolicyBuilder { settings: self, ..PolicyBuilder::default() }
    }

    fn check(&self) -> Result<(), PolicyError> {
        if self.attempts == 0 {
            return Err(PolicyError::ZeroAttempts);
        }
        self.backoff.check()?;
        let (first, cap) = (self.backoff.ceiling(1), self.backoff.cap());
        if self.jitter == Jitter::Decorrelated && first >= cap {
            return Err(PolicyError::NoRoom { first, cap });
        }
        for (what, time) in [("a time in all", self.time), ("an attempt time-out", self.attempt_time)] {
            if time.is_some_and(|time| time.is_zero()) {
                return Err(PolicyError::ZeroTime { what });
            }
        }
        Ok(())
    }
}

/// Builds a [`Policy`]. Starts from the [defaults](super).
#[derive(Default)]
pub struct PolicyBuilder {
    settings: PolicySettings,
    budget: Option<Budget>,
    breaker: Option<Breaker>,
    limit: Option<Limit>,
    rate: Option<Rate>,
    observers: Vec<Box<dyn Observer>>,
    seed: Option<u64>,
}

impl PolicyBuilder {
    /// The name of the downstream, in metrics and logs. Default `"default"`.
    #[must_use]
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.settings.name = name.into();
        self
    }

    /// The most attempts, including the first one. Default 3.
    #[must_use]
    pub fn attempts(mut self, attempts: u32) -> Self {
        self.settings.attempts = attempts;
        self
    }

    /// How the waits grow. Default: exponential from 100 ms, doubling, at most 10 s.
    #[must_use]
    pub fn backoff(mut self, backoff: Backoff) -> Self {
        self.settings.backoff = backoff;
        self
    }

    /// How the waits are spread. Default: full.
    #[must_use]
    pub fn jitter(mut self, jitter: Jitter) -> Self {
        self.settings.jitter = jitter;
        self
    }

    /// The total time, attempts and waits together. Default: no limit.
    #[must_use]
    pub fn time(mut self, time: Duration) -> Self {
        self.settings.time = Some(time);
        self
    }

    /// The time limit of one attempt. Default: no limit.
    #[must_use]
    pub fn attempt_time(mut self, time: Duration) -> Self {
        self.settings.attempt_time = Some(time);
        self
    }

    /// The longest wait that the downstream may ask for; a longer one stops the run. Default 300 s. The
    /// jitter is added to the requested wait, up to a tenth of it or this retry's ceiling.
    #[must_use]
    pub fn not_before_max(mut self, wait: Duration) -> Self {
        self.settings.not_before_max = wait;
        self
    }

    /// A budget, which other policies may share. Default: 10 % of first attempts and 10 a second.
    #[must_use]
    pub fn budget(mut self, budget: Budget) -> Self {
        self.settings.budget = Some(budget.settings().clone());
        self.budget = Some(budget);
        self
    }

    /// No budget. Then only the number of attempts limits transient faults, and overload is not retried.
    #[must_use]
    pub fn no_budget(mut self) -> Self {
        self.settings.budget = None;
        self.budget = None;
        self
    }

    /// A breaker, which other policies may share. Default: none.
    #[must_use]
    pub fn breaker(mut self, breaker: Breaker) -> Self {
        self.settings.breaker = Some(breaker.settings().clone());
        self.breaker = Some(breaker);
        self
    }

    /// A limit on concurrent attempts, which other policies may share. Default: none.
    #[must_use]
    pub fn limit(mut self, limit: Limit) -> Self {
        self.settings.limit = Some(limit.settings().clone());
        self.limit = Some(limit);
        self
    }

    /// A limit on attempts a second, which other policies may share. Attempts wait for it. Default: none.
    #[must_use]
    pub fn rate(mut self, rate: Rate) -> Self {
        self.settings.rate = Some(rate.settings().clone());
        self.rate = Some(rate);
        self
    }

    /// Adds an observer of every attempt, wait and end. Call it again to add more.
    #[must_use]
    pub fn observer(mut self, observer: impl Observer + 'static) -> Self {
        self.observers.push(Box::new(observer));
        self
    }

    /// A random source with this seed instead of the thread's own, for tests: the same waits each time.
    #[must_use]
    pub fn seed(mut self, seed: u64) -> Self {
        self.seed = Some(seed);
        self
    }

    /// Builds the policy.
    ///
    /// # Errors
    /// Which setting is invalid, and what to change.
    ///
    /// ```
    /// use redrive_core::Policy;
    ///
    /// let refused = Policy::builder().attempts(0).build().unwrap_err();
    /// assert!(refused.to_string().contains("use at least 1"));
    /// ```
    pub fn build(self) -> Result<Policy, PolicyError> {
        let Self { settings, budget, breaker, limit, rate, observers, seed } = self;
        settings.check()?;
        let budget = handed_or_made(budget, settings.budget.as_ref(), Budget::new)?;
        let breaker = handed_or_made(breaker, settings.breaker.as_ref(), Breaker::new)?;
        let limit = handed_or_made(limit, settings.limit.as_ref(), Limit::from_settings)?;
        let rate = handed_or_made(rate, settings.rate.as_ref(), Rate::from_settings)?;
        let plain = settings.time.is_none()
            && settings.attempt_time.is_none()
            && limit.is_none()
            && rate.is_none()
            && observers.is_empty();
        let seed = seed.map(|seed| (seed, AtomicU64::new(0)));
        Ok(Policy(Arc::new(Inner { settings, budget, breaker, limit, rate, observers, plain, seed })))
    }
}

/// The part that the caller passed in, or one made from the settings.
fn handed_or_made<T, S: Clone>(
    handed: Option<T>,
    settings: Option<&S>,
    make: impl FnOnce(S) -> Result<T, PolicyError>,
) -> Result<Option<T>, PolicyError> {
    match handed {
        Some(part) => Ok(Some(part)),
        None => settings.cloned().map(make).transpose(),
    }
}

impl std::fmt::Debug for PolicyBuilder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("PolicyBuilder").field(&self.settings).finish_non_exhaustive()
    }
}
