//! What operators order, and what became of it.
//!
//! An order is one commit, with its line in the audit: there is no change without the line, and no line without
//! the change. An order for several events changes each of them or says why not; one refusal does not undo the
//! others.

use std::sync::Arc;

use redrive_core::event::{Fingerprint, State, Story};
use redrive_core::ledger::{Resolution, Scope};
use redrive_core::triage::{CauseId, JobId, JobPlan, JobState, Operator, Redrive, Rule};
use redrive_core::{Event, Moment};

mod deed;

pub(crate) use deed::{Deed, lines_asked, refused};

/// How many events one order is for at most; more of them are a job.
const TARGETS_MAX: usize = 10_000;

/// What an operator wants.
#[derive(Debug, Clone, PartialEq)]
pub struct Order {
    /// Who.
    pub by: Operator,
    /// When.
    pub at: Moment,
    /// What.
    pub what: What,
}

/// What an operator wants.
#[derive(Debug, Clone, PartialEq)]
pub enum What {
    /// Events are changed.
    Events(Vec<Target>, Act),
    /// A dead letter is put back with another payload, under a new id, at its old place.
    Edit(Target, Box<Edited>),
    /// The head of a parked key no longer holds up the others. It stays a dead letter.
    SkipHead {
        /// Of which queue.
        queue: String,
        /// Of which tenant.
        tenant: String,
        /// Which key.
        key: String,
    },
    /// Nothing holds up a key any more: no rule, no dead letter.
    Unpark {
        /// Of which queue.
        queue: String,
        /// Of which tenant.
        tenant: String,
        /// Which key.
        key: String,
    },
    /// A rule holds from now on, until then if that is said. One that it replaces goes.
    Set {
        /// Which rule.
        rule: Rule,
        /// Until when.
        until: Option<Moment>,
        /// Why, in words.
        why: String,
    },
    /// A rule does not hold any more.
    Lift(Rule),
    /// A job begins.
    Start(Box<JobPlan>),
    /// A job is to be in another state: paused, running again, cancelled; or it ended itself.
    Turn(JobId, JobState, String),
    /// Dead letters from elsewhere are kept, with their stories.
    Import(Vec<Letter>),
    /// A person says how a request was whose outcome is unknown.
    Resolve {
        /// Which request.
        scope: Scope,
        /// How it was.
        resolution: Resolution,
        /// Why, in words.
        why: String,
    },
    /// The program around the store changes something of its own. Nothing is changed here; there is the line.
    Note {
        /// The word in the audit.
        verb: &'static str,
        /// Of what.
        target: String,
        /// Of how many.
        count: u64,
        /// What else there is to say.
        note: String,
    },
}

impl What {
    /// The word in the audit.
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

impl What {
    /// The job that it is about, where that is there already.
    pub(crate) const fn job(&self) -> Option<JobId> {
        match self {
            Self::Turn(id, ..) => Some(*id),
            _ => None,
        }
    }
}

/// Refuses to send events of one queue to the handler of another, where workers lease those of either: they have no
/// handler, and there is none to send them to. Each with whether it is pulled from.
pub(crate) fn check_route(from: (&str, bool), to: (&str, bool)) -> Result<(), Refusal> {
    match [from, to].into_iter().find(|(_, pulls)| *pulls) {
        None => Ok(()),
        Some((queue, _)) => {
            let what = format!("the queue {queue} has no handler: its events are leased to workers outside");
            Err(Refusal::Senseless(what))
        }
    }
}

/// Refuses an order for too many events.
pub(crate) fn check_targets<T>(targets: &[T]) -> Result<(), Refusal> {
    let few = targets.len() <= TARGETS_MAX;
    let what = || format!("an order is for {TARGETS_MAX} events at most; start a job for more");
    if few { Ok(()) } else { Err(Refusal::Senseless(what())) }
}

/// Which event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Target {
    /// Of which tenant.
    pub tenant: String,
    /// Of which queue: the one it was published to.
    pub queue: String,
    /// Its id.
    pub id: String,
    /// As of which change; as it is now where it is none.
    pub rev: Option<u32>,
}

impl Target {
    /// The event with this id, as it is now.
    #[must_use]
    pub fn new(tenant: impl Into<String>, queue: impl Into<String>, id: impl Into<String>) -> Self {
        Self { tenant: tenant.into(), queue: queue.into(), id: id.into(), rev: None }
    }
}

/// How an event is changed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Act {
    /// A dead letter runs again: same identity, story kept.
    Redrive(Redrive),
    /// An event that has not ended is taken away. It can be restored while its receipt is kept.
    Discard,
    /// What was discarded is a dead letter again. It holds up nobody.
    Restore,
    /// An event that waits becomes a dead letter.
    Kill,
    /// An event that waits for its time is due now.
    RetryNow,
}

impl Act {
    /// The word in the audit.
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

/// What a dead letter is replaced with.
#[derive(Debug, Clone, PartialEq)]
pub struct Edited {
    /// The new event. Tenant, queue and key are those of the original, whatever it says.
    pub event: Arc<Event>,
    /// The fingerprint of what it says.
    pub fingerprint: Fingerprint,
    /// Whether it may run although later ones of its key may have run before it.
    pub out_of_order: bool,
}

/// A dead letter from elsewhere.
#[derive(Debug, Clone, PartialEq)]
pub struct Letter {
    /// The event.
    pub event: Arc<Event>,
    /// The fingerprint of what it says.
    pub fingerprint: Fingerprint,
    /// When it was published.
    pub published: Moment,
    /// When it died.
    pub died: Moment,
    /// Attempts that were made.
    pub attempts: u32,
    /// Why it died.
    pub reason: redrive_core::event::DeadReason,
    /// Its attempts.
    pub story: Option<Arc<Story>>,
}

/// What became of an order.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Operated {
    /// How many events were changed; 1 for a rule or a job.
    pub changed: u64,
    /// What was not done, by its place in the list, and why.
    pub refused: Vec<(usize, Refusal)>,
    /// The job that began.
    pub job: Option<JobId>,
    /// Those whose earlier attempts may have had an effect, by their place in the list: to do them again under
    /// another identity may do it twice.
    pub unsure: Vec<usize>,
}

/// Why something was not done.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Refusal {
    /// There is no such event.
    #[error("there is no such event, or it is forgotten")]
    Unknown,
    /// Somebody else changed it.
    #[error("it was changed meanwhile (rev {is}); look at it again")]
    Changed {
        /// The rev that it has.
        is: u32,
    },
    /// It is in another state than this can be done in.
    #[error("it is {is}")]
    State {
        /// The state that it is in.
        is: State,
    },
    /// It was replaced by an edit.
    #[error("it was edited, and goes on as {into}")]
    Edited {
        /// As which id.
        into: String,
    },
    /// Later ones of its key may have run before it.
    #[error("later events of its key may have run already; say that it may run out of order")]
    OutOfOrder,
    /// It is not needed any more, by its own word: it would end without a run.
    #[error("its time was over before, and it would not run; edit it, and the new one has no such time")]
    Expired,
    /// The new id was used before.
    #[error("the id {id} is taken")]
    IdTaken {
        /// Which id.
        id: String,
    },
    /// There is no such queue.
    #[error("there is no queue {queue}")]
    NoQueue {
        /// Which queue.
        queue: String,
    },
    /// There is no such rule.
    #[error("there is no such rule")]
    NoRule,
    /// There is no such job.
    #[error("there is no such job")]
    NoJob,
    /// The job is over.
    #[error("the job is {is}")]
    JobOver {
        /// How.
        is: &'static str,
    },
    /// There is no such request.
    #[error("there is no such request, or it is forgotten")]
    NoRequest,
    /// How the request was is known.
    #[error("it is {is}: only what is unknown can be resolved")]
    NotUnknown {
        /// Where it is.
        is: &'static str,
    },
    /// Nothing holds up the key.
    #[error("no dead letter holds up this key")]
    NotParked,
    /// It cannot be meant.
    #[error("{0}")]
    Senseless(String),
}

/// How dead letters are put together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum GroupBy {
    /// By what they died of.
    #[default]
    Cause,
    /// By queue.
    Queue,
    /// By tenant.
    Tenant,
    /// By the type of the event. Of very many letters only so many are looked at, see [`Group::looked`].
    Type,
    /// By key. Of very many letters only so many are looked at, see [`Group::looked`].
    Key,
}

/// Which groups.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct GroupQuery {
    /// How to put them together.
    pub by: GroupBy,
    /// Of this queue alone.
    pub queue: Option<String>,
    /// Of this tenant alone.
    pub tenant: Option<String>,
    /// How many, at most, those with most letters first; 0 for 100.
    pub limit: usize,
}

impl GroupQuery {
    /// Whether those of a queue and a tenant are asked for.
    pub(crate) fn is_of(&self, queue: &str, tenant: &str) -> bool {
        let is = |wanted: &Option<String>, is: &str| wanted.as_deref().is_none_or(|wanted| wanted == is);
        is(&self.queue, queue) && is(&self.tenant, tenant)
    }
}

/// Dead letters that have something in common.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Group {
    /// What they died of; none where they are put together otherwise.
    pub cause: Option<CauseId>,
    /// The cause without numbers and ids, or the queue, the tenant, the type, the key; empty for those that have none.
    pub title: String,
    /// The queues they are of: one, or several for the same cause.
    pub queues: Vec<String>,
    /// How many there are now.
    pub letters: u64,
    /// When the first was seen.
    pub first: Moment,
    /// When the last was seen.
    pub last: Moment,
    /// How many keys they hold up.
    pub keys_blocked: u64,
    /// What became of the last redrive; none where they are put together by type or key.
    pub redriven: Option<Redriven>,
    /// How many letters were looked at for all groups together, where that was not all of them: what is counted here
    /// then is of those.
    pub looked: Option<u64>,
}

/// What became of the last redrive of a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Redriven {
    /// When it was.
    pub at: Moment,
    /// How many were put back.
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
    /// Who.
    pub by: Operator,
    /// What was done: the word of the order.
    pub verb: String,
    /// To what.
    pub target: String,
    /// To how many.
    pub count: u64,
    /// What else there is to say: refusals, a reason.
    pub note: String,
}

/// A step of a job, to be done once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Advance {
    /// Of which job.
    pub job: JobId,
    /// From which place on: nothing is done where the job is elsewhere.
    pub from: Option<redrive_core::entry::Seq>,
    /// How many letters, at most.
    pub most: u32,
    /// When.
    pub at: Moment,
}
