//! The operators' vocabulary after a failure, and the decisions that need no store.
//!
//! - [`cause`]: groups dead letters by cause.
//! - [`filter`]: selects events.
//! - [`rule`]: holds events back or reroutes them.
//! - [`job`]: changes many dead letters in the background, at a rate, and stops by itself if they fail again.

pub mod cause;

pub mod filter;

pub mod rule;

pub mod job;

pub use cause::CauseId;
pub use filter::{Filter, FilterSubject};
pub use job::{Job, JobAct, JobId, JobPlan, JobState, JobStep, JobStrategy};
pub use rule::{ActiveRule, ActiveRules, Rule};

/// The operator who makes a change, for the audit log.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Operator {
    /// A name, or a role.
    pub who: String,
    /// Where the command came from: an address, a program.
    pub from: String,
}

impl Operator {
    /// An operator with this name, from this address or program.
    #[must_use]
    pub fn new(who: impl Into<String>, from: impl Into<String>) -> Self {
        Self { who: who.into(), from: from.into() }
    }

    /// The engine itself: a rule ended, a job ended.
    #[must_use]
    pub fn engine() -> Self {
        Self::new("redrive", "engine")
    }
}

/// How a dead letter is redriven.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(default, deny_unknown_fields))]
pub struct RedriveOptions {
    /// Whether the attempts so far count: then it gets one more attempt, and not all that its policy allows.
    /// Its attempt history is kept either way.
    pub keep_attempts: bool,
    /// The queue whose handler runs it. Identity, order and dedupe record stay where they are.
    pub to: Option<String>,
    /// Whether it may run although later events of its key may have run before it.
    pub out_of_order: bool,
}
