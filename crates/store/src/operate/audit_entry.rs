//! A command's line in the audit: its verb, target, count and remarks.

use std::fmt::Write as _;

use redrive_core::ledger::{RequestScope, Resolution};

use super::{CommandResult, EventRef, OperatorAction, Refusal};

/// How many refusals a line lists.
const REFUSALS_TOLD: usize = 3;
/// How many lines of the audit a call returns by default.
const LINES: usize = 100;
/// How many lines a call returns at most.
const LINES_MAX: usize = 1000;

/// A line for the audit.
#[derive(Debug)]
pub(crate) struct AuditEntry {
    pub(crate) verb: &'static str,
    pub(crate) target: String,
    pub(crate) count: u64,
    pub(crate) note: String,
}

impl AuditEntry {
    /// The line of a command. A command about a job counts the dead letters of the job.
    pub(crate) fn of(what: &OperatorAction, done: &CommandResult, letters: Option<u64>) -> Self {
        let count = letters.filter(|_| done.changed > 0).unwrap_or(done.changed);
        Self { verb: what.word(), target: target(what, done), count, note: note(what, done) }
    }
}

/// How many lines to return.
pub(crate) fn lines_asked(limit: usize) -> usize {
    if limit == 0 { LINES } else { limit.min(LINES_MAX) }
}

/// The result of a command that was refused as a whole.
pub(crate) fn refused(refusal: Refusal) -> CommandResult {
    CommandResult { refused: vec![(0, refusal)], ..CommandResult::default() }
}

/// A request, as text.
fn request(scope: &RequestScope) -> String {
    let mut words = scope.operation.clone();
    if !scope.tenant.is_empty() {
        let _ = write!(words, ", tenant {}", scope.tenant);
    }
    if let Some(principal) = scope.principal() {
        let _ = write!(words, ", principal {principal}");
    }
    let _ = write!(words, ", key {}", scope.client_key());
    words
}

/// The target of a command, as text.
fn target(what: &OperatorAction, done: &CommandResult) -> String {
    let of_key = |queue: &str, tenant: &str, key: &str| match tenant {
        "" => format!("queue {queue}, key {key}"),
        tenant => format!("queue {queue}, tenant {tenant}, key {key}"),
    };
    match what {
        OperatorAction::Events(targets, _) => several(targets.iter().map(name), targets.len()),
        OperatorAction::Edit(target, edited) => format!("{} into {}", name(target), edited.event.id),
        OperatorAction::SkipHead { queue, tenant, key } | OperatorAction::Unpark { queue, tenant, key } => {
            of_key(queue, tenant, key)
        }
        OperatorAction::Set { rule, .. } | OperatorAction::Lift(rule) => rule.target(),
        OperatorAction::Start(plan) => match done.job {
            Some(job) => format!("job {}, {}", job.0, plan.act.word()),
            None => format!("a job, {}", plan.act.word()),
        },
        OperatorAction::Turn(id, ..) => format!("job {}", id.0),
        OperatorAction::Note { target, .. } => target.clone(),
        OperatorAction::Resolve { scope, .. } => request(scope),
        OperatorAction::Import(letters) => {
            let named =
                letters.iter().map(|letter| (&letter.event.tenant, &letter.event.queue, &letter.event.id));
            let named = named.map(|(tenant, queue, id)| name(&EventRef::new(tenant, queue, id)));
            several(named, letters.len())
        }
    }
}

fn several(mut names: impl Iterator<Item = String>, all: usize) -> String {
    match names.next() {
        None => "nothing".to_owned(),
        Some(first) if all == 1 => first,
        Some(first) => format!("{first} and {} more", all - 1),
    }
}

fn name(EventRef { tenant, queue, id, .. }: &EventRef) -> String {
    match tenant.as_str() {
        "" => format!("{queue}/{id}"),
        tenant => format!("{queue}/{id} of tenant {tenant}"),
    }
}

/// The operator's reason, and the first few refusals.
fn note(what: &OperatorAction, done: &CommandResult) -> String {
    let mut note = match what {
        OperatorAction::Set { why, .. }
        | OperatorAction::Turn(_, _, why)
        | OperatorAction::Note { note: why, .. } => why.clone(),
        OperatorAction::Lift(rule) => rule.word().to_owned(),
        OperatorAction::Resolve { resolution, why, .. } => {
            let how = match resolution {
                Resolution::Completed(reply) => format!("as completed with {}", reply.status),
                Resolution::Retriable => "as retriable".to_owned(),
            };
            if why.is_empty() { how } else { format!("{how}; {why}") }
        }
        _ => String::new(),
    };
    if done.refused.is_empty() {
        return note;
    }
    let joint = if note.is_empty() { "" } else { "; " };
    let _ = write!(note, "{joint}{} refused", done.refused.len());
    for (place, refusal) in done.refused.iter().take(REFUSALS_TOLD) {
        let _ = write!(note, "; {place}: {refusal}");
    }
    note
}
