//! Observers of a policy.
//!
//! An [`Observer`] is attached to a [`Policy`] and is called for every attempt, every wait and every end. The
//! call is synchronous, so the observer must be quick, must not block and should not panic: its panic would
//! end the call. A policy without an observer measures nothing and pays nothing.

use std::time::Duration;

use crate::breaker::BreakerState;
use crate::disposition::{Disposition, Fault, RetryClass};
use crate::moment::Moment;
use crate::policy::Policy;
use crate::report::Report;

/// An attempt that ended.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct AttemptFinished<'a> {
    /// The policy it ran under; its name is the `target` of metrics.
    pub policy: &'a Policy,
    /// Which attempt, from 1.
    pub attempt: u32,
    /// Its outcome.
    pub outcome: Outcome,
    /// How long it took.
    pub took: Duration,
}

/// How an attempt ended, as observers see it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// The handler or classifier reported a disposition.
    Classified(Disposition),
    /// It failed with an error that no classifier knew.
    Unclassified,
    /// The policy's time-out ended it.
    TimedOut,
}

impl Outcome {
    /// The label `disposition` of `redrive_attempts_total`.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Classified(Disposition::Ok) => "ok",
            Self::Classified(Disposition::Retry(_)) => "retry",
            Self::Classified(Disposition::Permanent(_)) => "permanent",
            Self::Classified(Disposition::Drop) => "drop",
            Self::Unclassified => "unclassified",
            Self::TimedOut => "timeout",
        }
    }
}

impl From<Disposition> for Outcome {
    fn from(disposition: Disposition) -> Self {
        Self::Classified(disposition)
    }
}

impl From<Fault> for Outcome {
    fn from(fault: Fault) -> Self {
        Self::Classified(fault.into())
    }
}

impl From<Option<Disposition>> for Outcome {
    fn from(known: Option<Disposition>) -> Self {
        known.map_or(Self::Unclassified, Self::Classified)
    }
}

/// A wait before the next attempt.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct RetryScheduled<'a> {
    /// The policy that chose it.
    pub policy: &'a Policy,
    /// The attempt that failed, from 1.
    pub attempt: u32,
    /// Why another attempt may help.
    pub class: RetryClass,
    /// How long.
    pub delay: Duration,
}

/// A run that ended.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct RunFinished<'a> {
    /// The policy it ran under.
    pub policy: &'a Policy,
    /// The report of the run.
    pub report: &'a Report,
    /// When it ended, by the clock of the run.
    pub now: Moment,
}

impl RunFinished<'_> {
    /// The tokens left in the policy's budget, if it has one.
    #[must_use]
    pub fn budget_tokens(&self) -> Option<u64> {
        self.policy.budget().map(|budget| budget.tokens(self.now))
    }

    /// The state of the policy's breaker, if it has one.
    #[must_use]
    pub fn breaker(&self) -> Option<BreakerState> {
        self.policy.breaker().map(|breaker| breaker.state(self.now))
    }
}

/// Receives what happens under a policy. Every method has an empty default.
///
/// ```
/// use redrive_core::observe::{Observer, RetryScheduled};
/// use redrive_core::Policy;
///
/// #[derive(Debug)]
/// struct Aloud;
/// impl Observer for Aloud {
///     fn waiting(&self, waiting: RetryScheduled<'_>) {
///         eprintln!("attempt {} failed, next in {:?}", waiting.attempt, waiting.delay);
///     }
/// }
/// let policy = Policy::builder().observer(Aloud).build()?;
/// # Ok::<(), redrive_core::PolicyError>(())
/// ```
pub trait Observer: Send + Sync {
    /// An attempt ended.
    fn attempted(&self, attempted: AttemptFinished<'_>) {
        let _ = attempted;
    }

    /// An attempt failed, and another follows after a wait.
    fn waiting(&self, waiting: RetryScheduled<'_>) {
        let _ = waiting;
    }

    /// The run ended.
    fn ended(&self, ended: RunFinished<'_>) {
        let _ = ended;
    }
}
