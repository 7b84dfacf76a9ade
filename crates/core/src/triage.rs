//! What an operator does when something has failed: the words, and what is decided without looking at a store.
//!
//! - [`cause`]: which dead letters died of the same thing.
//! - [`filter`]: which events are meant.
//! - [`rule`]: what is held back, and what goes elsewhere.
//! - [`job`]: a change to many letters that goes on in the background, at a rate, and stops by itself.

pub mod cause;

pub mod filter;

pub mod rule;

pub mod job;

pub use cause::CauseId;
pub use filter::{Filter, Subject};
pub use job::{Job, JobAct, JobId, JobPlan, JobState, Step, Strategy};
pub use rule::{Control, Controls, Rule};

/// Who changes something, for the audit.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Operator {
    /// A name, or a role.
    pub who: String,
    /// From where: an address, a program.
    pub from: String,
}

impl Operator {
    /// Somebody, from somewhere.
    #[must_use]
    pub fn new(who: impl Into<String>, from: impl Into<String>) -> Self {
        Self { who: who.into(), from: from.into() }
    }

    /// The engine itself: a rule's time was over, a job ended.
    #[must_use]
    pub fn engine() -> Self {
        Self::new("redrive", "engine")
    }
}

/// How a dead letter is put back.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(default, deny_unknown_fields))]
pub struct Redrive {
    /// Whether the attempts so far count: then it has one more, and not all that its policy allows. Its story is
    /// kept either way.
    pub keep_attempts: bool,
    /// The queue whose handler is to run it. Identity, order and receipt stay where they are.
    pub to: Option<String>,
    /// Whether it may run although later ones of its key may have run before it.
    pub out_of_order: bool,
}
