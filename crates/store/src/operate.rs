//! Operators' commands, and their results.
//!
//! A command is one commit, with its line in the audit: there is no change without the line, and no line without the
//! change. A command for several events changes each of them or says why not; one refusal does not undo the others.

use std::sync::Arc;

use redrive_core::event::{AttemptHistory, Fingerprint, State};
use redrive_core::ledger::{RequestScope, Resolution};
use redrive_core::triage::{CauseId, JobId, JobPlan, JobState, Operator, RedriveOptions, Rule};
use redrive_core::{Event, Moment};

mod audit_entry;
mod failing;

pub(crate) use failing::{Failed, Failings};
pub use failing::{FailingGroup, FailingQuery, Retrying};

pub(crate) use audit_entry::{AuditEntry, lines_asked, refused};

/// How many events one command may name; use a job for more.
const TARGETS_MAX: usize = 10_000;

/// An operator's command.
#[derive(Debug, Clone, PartialEq)]
pub struct OperatorCommand {
    /// The operator.
    pub by: Operator,
    /// When.
    pub at: Moment,
    /// The action.
    pub what: OperatorAction,
}

/// The action of a command.
#[derive(Debug, Clone, PartialEq)]
pub enum OperatorAction {
    /// Changes events.
    Events(Vec<EventRef>, EventAction),
    /// Redrives a dead letter with another payload, under a new id, at its old position.
    Edit(EventRef, Box<EditedEvent>),
    /// Unblocks the key behind its head. The head stays a dead letter.
    SkipHead {
        /// The queue.
        queue: String,
        /// The tenant.
        tenant: String,
        /// The key.
        key: String,
    },
    /// Removes everything that blocks a key: rules and dead letters.
    Unpark {
        /// The queue.
        queue: String,
        /// The tenant.
        tenant: String,
        /// The key.
        key: String,
    },
    /// Sets a rule, until `until` if given. It replaces a rule of the same kind and target.
    Set {
        /// The rule.
        rule: Rule,
        /// Until when.
        until: Option<Moment>,
        /// Why, as text.
        why: String,
    },
    /// Lifts a rule.
    Lift(Rule),
    /// Starts a job.
    Start(Box<JobPlan>),
    /// Changes the state of a job: paused, running again, cancelled; or it ended by itself.
    Turn(JobId, JobState, String),
    /// Imports dead letters from another store, with their attempt histories.
    Import(Vec<ImportedLetter>),
    /// Resolves a request of unknown outcome.
    Resolve {
        /// The request.
        scope: RequestScope,
        /// Its real outcome.
        resolution: Resolution,
        /// Why, as text.
        why: String,
    },
    /// Records a change of the program around the store. It changes nothing here but the audit.
    Note {
        /// The verb in the audit.
        verb: &'static str,
        /// The target.
        target: String,
        /// How many.
        count: u64,
        /// A remark.
        note: String,
    },
}

impl OperatorAction {
    /// The verb in the audit.
    #[must_use]
    pub const fn word(&self) -> &'static str {
        match self {
            Self::Events(_, act) => act.word(),
            Self::Edit(..) => "edit",
            Self::SkipHead { .. } => "skip-head",
            Self::Unpark { .. } => "unpark-key",
            Self::Set { rule, .. } => rule.word(),
            Self::Lift(_) => "lift",
            Self::Start(_) => "start-job",
            Self::Turn(_, JobState::Running, _) => "resume-job",
            Self::Turn(_, JobState::Paused, _) => "pause-job",
            Self::Turn(_, JobState::Cancelled, _) => "cancel-job",
            Self::Turn(_, JobState::Done | JobState::Stopped, _) => "end-job",
            Self::Import(_) => "import",
            Self::Resolve { .. } => "resolve",
            Self::Note { verb, .. } => verb,
        }
    }
}

impl OperatorAction {
    /// The existing job that it is about.
    pub(crate) const fn job(&self) -> Option<JobId> {
        match self {
            Self::Turn(id, ..) => Some(*id),
            _ => None,
        }
    }
}

/// Refuses to route events between queues if workers lease from either of them: such a queue has no handler to route
/// to or from. Each queue with whether it is pulled from.
pub(crate) fn check_route(from: (&str, bool), to: (&str, bool)) -> Result<(), Refusal> {
    match [from, to].into_iter().find(|(_, pulls)| *pulls) {
        None => Ok(()),
        Some((queue, _)) => {
            let what = format!("the queue {queue} has no handler: external workers lease its events");
            Err(Refusal::Senseless(what))
        }
    }
}

/// Refuses a command for too many events.
pub(crate) fn check_targets<T>(targets: &[T]) -> Result<(), Refusal> {
    let few = targets.len() <= TARGETS_MAX;
    let what = || format!("a command may name at most {TARGETS_MAX} events; start a job for more");
    if few { Ok(()) } else { Err(Refusal::Senseless(what())) }
}

/// A reference to an event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EventRef {
    /// The tenant.
    pub tenant: String,
    /// The queue that it was published to.
    pub queue: String,
    /// The event id.
    pub id: String,
    /// The expected revision; `None` for the present one.
    pub rev: Option<u32>,
}

impl EventRef {
    /// The event with this id, at its present revision.
    #[must_use]
    pub fn new(tenant: impl Into<String>, queue: impl Into<String>, id: impl Into<String>) -> Self {
        Self { tenant: tenant.into(), queue: queue.into(), id: id.into(), rev: None }
    }
}

/// An action on events.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EventAction {
    /// Runs a dead letter again: same identity, attempt history kept.
    Redrive(RedriveOptions),
    /// Discards an event that has not ended. It can be restored while its dedupe record is kept.
    Discard,
    /// Makes a discarded event a dead letter again. It blocks no key.
    Restore,
    /// Makes a waiting event a dead letter.
    Kill,
    /// Makes a waiting event due now.
    RetryNow,
}

impl EventAction {
    /// The verb in the audit.
    #[must_use]
    pub const fn word(&self) -> &'static str {
        match self {
            Self::Redrive(_) => "redrive",
            Self::Discard => "discard",
            Self::Restore => "restore",
            Self::Kill => "kill",
            Self::RetryNow => "retry-now",
        }
    }
}

/// The replacement of a dead letter.
#[derive(Debug, Clone, PartialEq)]
pub struct EditedEvent {
    /// The new event. It takes tenant, queue and key from the original.
    pub event: Arc<Event>,
    /// The fingerprint of its content.
    pub fingerprint: Fingerprint,
    /// Whether it may run although later events of its key may have run before it.
    pub out_of_order: bool,
}

/// A dead letter from another store.
#[derive(Debug, Clone, PartialEq)]
pub struct ImportedLetter {
    /// The event.
    pub event: Arc<Event>,
    /// The fingerprint of its content.
    pub fingerprint: Fingerprint,
    /// When it was published.
    pub published: Moment,
    /// When it died.
    pub died: Moment,
    /// How many attempts were made.
    pub attempts: u32,
    /// Why it died.
    pub reason: redrive_core::event::DeadReason,
    /// Its attempt history.
    pub history: Option<Arc<AttemptHistory>>,
}

/// The result of a command.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct CommandResult {
    /// How many events were changed; 1 for a rule or a job.
    pub changed: u64,
    /// Refused items, by their position in the list, and why.
    pub refused: Vec<(usize, Refusal)>,
    /// The job that was started.
    pub job: Option<JobId>,
    /// Events with earlier attempts that may have had an effect, by their position in the list: under another identity
    /// the effect may happen twice.
    pub unsure: Vec<usize>,
}

/// Why an item was refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Refusal {
    /// There is no such event.
    #[error("there is no such event, or it has been forgotten")]
    Unknown,
    /// It was changed concurrently.
    #[error("it has changed since (rev {is}); look at it again")]
    Changed {
        /// Its present revision.
        is: u32,
    },
    /// Its state does not allow the action.
    #[error("it is {is}")]
    State {
        /// Its present state.
        is: State,
    },
    /// It was replaced by an edit.
    #[error("it was edited, and its replacement is {into}")]
    Edited {
        /// The id of the replacement.
        into: String,
    },
    /// Later events of its key may have run before it.
    #[error("later events of its key may have run already; allow it with `out_of_order`")]
    OutOfOrder,
    /// It has expired by its own setting: it would end without a run.
    #[error("it has expired and would not run; edit it, because the replacement does not expire")]
    Expired,
    /// The new id was used before.
    #[error("the id {id} is taken")]
    IdTaken {
        /// The id.
        id: String,
    },
    /// There is no such queue.
    #[error("there is no queue {queue}")]
    NoQueue {
        /// The queue.
        queue: String,
    },
    /// There is no such rule.
    #[error("there is no such rule")]
    NoRule,
    /// There is no such job.
    #[error("there is no such job")]
    NoJob,
    /// The job has ended.
    #[error("the job is {is}")]
    JobOver {
        /// Its final state.
        is: &'static str,
    },
    /// There is no such request.
    #[error("there is no such request, or it has been forgotten")]
    NoRequest,
    /// The outcome of the request is known.
    #[error("it is {is}: only an unknown outcome can be resolved")]
    NotUnknown {
        /// Its phase.
        is: &'static str,
    },
    /// Nothing blocks the key.
    #[error("no dead letter blocks this key")]
    NotParked,
    /// The command makes no sense.
    #[error("{0}")]
    Senseless(String),
}

/// How dead letters are grouped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum GroupBy {
    /// By the cause of their death.
    #[default]
    Cause,
    /// By queue.
    Queue,
    /// By tenant.
    Tenant,
    /// By the type of the event. Of very many dead letters only a bounded number is sampled, see [`Group::looked`].
    Type,
    /// By key. Of very many dead letters only a bounded number is sampled, see [`Group::looked`].
    Key,
}

/// A query for groups of dead letters.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct GroupQuery {
    /// How to group them.
    pub by: GroupBy,
    /// Only of this queue.
    pub queue: Option<String>,
    /// Only of this tenant.
    pub tenant: Option<String>,
    /// How many groups, at most, the largest first; 0 for 100.
    pub limit: usize,
}

impl GroupQuery {
    /// Whether the query includes a queue and a tenant.
    pub(crate) fn is_of(&self, queue: &str, tenant: &str) -> bool {
        let is = |wanted: &Option<String>, is: &str| wanted.as_deref().is_none_or(|wanted| wanted == is);
        is(&self.queue, queue) && is(&self.tenant, tenant)
    }
}

/// A group of dead letters.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Group {
    /// Their cause; `None` if they are not grouped by cause.
    pub cause: Option<CauseId>,
    /// The cause without numbers and ids, or the queue, the tenant, the type, the key; empty for events that have
    /// none.
    pub title: String,
    /// Their queues: one, or several with the same cause.
    pub queues: Vec<String>,
    /// How many there are now.
    pub letters: u64,
    /// When the first one died.
    pub first: Moment,
    /// When the last one died.
    pub last: Moment,
    /// How many keys they block.
    pub keys_blocked: u64,
    /// The last redrive of the group; `None` if grouped by type or key.
    pub redriven: Option<GroupRedrive>,
    /// How many dead letters were sampled for all groups together, if not all of them: the counts are then counts of
    /// the sample.
    pub looked: Option<u64>,
}

/// The last redrive of a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GroupRedrive {
    /// When it began.
    pub at: Moment,
    /// How many were redriven.
    pub letters: u64,
    /// How many of them died again.
    pub failed: u64,
}

/// A line of the audit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AuditLine {
    /// Its number, growing.
    pub number: u64,
    /// When.
    pub at: Moment,
    /// The operator.
    pub by: Operator,
    /// The verb of the command.
    pub verb: String,
    /// Its target.
    pub target: String,
    /// How many events it changed.
    pub count: u64,
    /// Remarks: refusals, a reason.
    pub note: String,
}

/// A step of a job, done once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct JobAdvance {
    /// The job.
    pub job: JobId,
    /// Its expected position: nothing is done if the job is elsewhere.
    pub from: Option<redrive_core::queue_entry::Seq>,
    /// How many dead letters, at most.
    pub most: u32,
    /// When.
    pub at: Moment,
}
