//! The audit: who did what, to how many. A line is written in the commit of what it tells of.

use std::ops::Bound;

use redrive_core::Moment;
use redrive_core::triage::Operator;

use super::state::State;
use crate::operate::{AuditLine, Deed, lines_asked};

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
        let limit = lines_asked(limit);
        let before = before.map_or(Bound::Unbounded, Bound::Excluded);
        let lines = self.audit.range((Bound::Unbounded, before)).rev().take(limit);
        lines.map(|(_, line)| line.clone()).collect()
    }
}
