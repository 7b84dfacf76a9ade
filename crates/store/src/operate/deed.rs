//! The line of an order in the audit: what was done, to what, to how many, and what else there is to say.

use std::fmt::Write as _;

use redrive_core::ledger::{Resolution, Scope};

use super::{Operated, Refusal, Target, What};

/// How many refusals are told in a line.
const REFUSALS_TOLD: usize = 3;
/// How many lines of the audit are given where nobody says.
const LINES: usize = 100;
/// How many lines are given at most.
const LINES_MAX: usize = 1000;

/// What is written in the audit.
#[derive(Debug)]
pub(crate) struct Deed {
    pub(crate) verb: &'static str,
    pub(crate) target: String,
    pub(crate) count: u64,
    pub(crate) note: String,
}

impl Deed {
    /// What became of an order. An order about a job is about the letters that the job is about.
    pub(crate) fn of(what: &What, done: &Operated, letters: Option<u64>) -> Self {
        let count = letters.filter(|_| done.changed > 0).unwrap_or(done.changed);
        Self { verb: what.word(), target: target(what, done), count, note: note(what, done) }
    }
}

/// How many lines are asked for.
pub(crate) fn lines_asked(limit: usize) -> usize {
    if limit == 0 { LINES } else { limit.min(LINES_MAX) }
}

/// What became of an order of which nothing was done.
pub(crate) fn refused(refusal: Refusal) -> Operated {
    Operated { refused: vec![(0, refusal)], ..Operated::default() }
}

/// What an order is about, in words.
fn target(what: &What, done: &Operated) -> String {
    let of_key = |queue: &str, tenant: &str, key: &str| match tenant {
        "" => format!("queue {queue}, key {key}"),
        tenant => format!("queue {queue}, tenant {tenant}, key {key}"),
    };
    match what {
        What::Events(targets, _) => several(targets.iter().map(name), targets.len()),
        What::Edit(target, edited) => format!("{} into {}", name(target), edited.event.id),
        What::SkipHead { queue, tenant, key } | What::Unpark { queue, tenant, key } => {
            of_key(queue, tenant, key)
        }
        What::Set { rule, .. } | What::Lift(rule) => rule.target(),
        What::Start(plan) => match done.job {
            Some(job) => format!("job {}, {}", job.0, plan.act.word()),
            None => format!("a job, {}", plan.act.word()),
        },
        What::Turn(id, ..) => format!("job {}", id.0),
        What::Note { target, .. } => target.clone(),
        What::Resolve { scope: Scope { tenant, operation, key }, .. } => match tenant.as_str() {
            "" => format!("{operation}, key {key}"),
            tenant => format!("{operation}, tenant {tenant}, key {key}"),
        },
        What::Import(letters) => {
            let named =
                letters.iter().map(|letter| (&letter.event.tenant, &letter.event.queue, &letter.event.id));
            let named = named.map(|(tenant, queue, id)| name(&Target::new(tenant, queue, id)));
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

fn name(Target { tenant, queue, id, .. }: &Target) -> String {
    match tenant.as_str() {
        "" => format!("{queue}/{id}"),
        tenant => format!("{queue}/{id} of tenant {tenant}"),
    }
}

/// Why, as the operator says it, and the first few refusals.
fn note(what: &What, done: &Operated) -> String {
    let mut note = match what {
        What::Set { why, .. } | What::Turn(_, _, why) | What::Note { note: why, .. } => why.clone(),
        What::Lift(rule) => rule.word().to_owned(),
        What::Resolve { resolution, why, .. } => {
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
