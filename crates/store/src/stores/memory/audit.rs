//! The audit: who did what, to how many. A line is written in the commit of what it tells of.

use std::ops::Bound;

use redrive_core::Moment;
use redrive_core::triage::Operator;

use super::state::State;
use crate::operate::AuditLine;

/// How many lines are given where nobody says.
const PAGE: usize = 100;
/// How many lines are given at most.
const PAGE_MAX: usize = 1000;

/// What was done, to what, and what else there is to say.
#[derive(Debug)]
pub(super) struct Deed {
    pub(super) verb: &'static str,
    pub(super) target: String,
    pub(super) count: u64,
    pub(super) note: String,
}

impl State {
    /// The number of the line that is written next.
    pub(super) fn next_line(&self) -> u64 {
        self.audit.iter().next_back().map_or(1, |(number, _)| number + 1)
    }

    pub(super) fn write_line(&mut self, by: Operator, at: Moment, deed: Deed) {
        let number = self.next_line();
        let Deed { verb, target, count, note } = deed;
        let line = AuditLine { number, at, by, verb: verb.to_owned(), target, count, note };
        self.audit.put(number, line);
    }

    pub(super) fn lines(&self, before: Option<u64>, limit: usize) -> Vec<AuditLine> {
        let limit = if limit == 0 { PAGE } else { limit.min(PAGE_MAX) };
        let before = before.map_or(Bound::Unbounded, Bound::Excluded);
        let lines = self.audit.range((Bound::Unbounded, before)).rev().take(limit);
        lines.map(|(_, line)| line.clone()).collect()
    }
}
