//! Telling whoever listens.
//!
//! An [`Observer`] hangs on a [`Policy`] and hears of every attempt, every wait and every end. It is called
//! in line, so it must be quick, must not block and should not panic: the call would. Without one, nothing is
//! measured and nothing is paid.

use std::time::Duration;

use crate::breaker::BreakerState;
use crate::disposition::{Class, Disposition, Fault};
use crate::moment::Moment;
use crate::policy::Policy;
use crate::report::Report;

/// An attempt that ended.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct Attempted<'a> {
    /// The policy it ran under; its name is the `target` of metrics.
    pub policy: &'a Policy,
    /// Which attempt, from 1.
    pub attempt: u32,
    /// What was said of it.
    pub outcome: Outcome,
    /// How long it took.
    pub took: Duration,
}

/// How an attempt ended, as observers see it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// It said something.
    Said(Disposition),
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
            Self::Said(Disposition::Ok) => "ok",
            Self::Said(Disposition::Retry(_)) => "retry",
            Self::Said(Disposition::Permanent(_)) => "permanent",
            Self::Said(Disposition::Discard) => "discard",
            Self::Unclassified => "unclassified",
            Self::TimedOut => "timeout",
        }
    }
}

impl From<Disposition> for Outcome {
    fn from(disposition: Disposition) -> Self {
        Self::Said(disposition)
    }
}

impl From<Fault> for Outcome {
    fn from(fault: Fault) -> Self {
        Self::Said(fault.into())
    }
}

impl From<Option<Disposition>> for Outcome {
    fn from(known: Option<Disposition>) -> Self {
        known.map_or(Self::Unclassified, Self::Said)
    }
}

/// A wait that was chosen.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct Waiting<'a> {
    /// The policy that chose it.
    pub policy: &'a Policy,
    /// The attempt that failed, from 1.
    pub attempt: u32,
    /// Why another may help.
    pub class: Class,
    /// How long.
    pub delay: Duration,
}

/// A run that ended.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct Ended<'a> {
    /// The policy it ran under.
    pub policy: &'a Policy,
    /// What happened.
    pub report: &'a Report,
    /// When, by the clock of the run.
    pub now: Moment,
}

impl Ended<'_> {
    /// The tokens left in the policy's budget, if it has one.
    #[must_use]
    pub fn budget_tokens(&self) -> Option<u64> {
        self.policy.budget().map(|budget| budget.tokens(self.now))
    }

    /// Where the policy's breaker is, if it has one.
    #[must_use]
    pub fn breaker(&self) -> Option<BreakerState> {
        self.policy.breaker().map(|breaker| breaker.state(self.now))
    }
}

/// Hears what happens under a policy. Every method has an empty default.
///
/// ```
/// use redrive_core::observe::{Observer, Waiting};
/// use redrive_core::Policy;
///
/// #[derive(Debug)]
/// struct Aloud;
/// impl Observer for Aloud {
///     fn waiting(&self, waiting: Waiting<'_>) {
///         eprintln!("attempt {} failed, next in {:?}", waiting.attempt, waiting.delay);
///     }
/// }
/// let policy = Policy::builder().observer(Aloud).build()?;
/// # Ok::<(), redrive_core::PolicyError>(())
/// ```
pub trait Observer: Send + Sync {
    /// An attempt ended.
    fn attempted(&self, attempted: Attempted<'_>) {
        let _ = attempted;
    }

    /// It failed, and another follows after a wait.
    fn waiting(&self, waiting: Waiting<'_>) {
        let _ = waiting;
    }

    /// The run ended.
    fn ended(&self, ended: Ended<'_>) {
        let _ = ended;
    }
}
