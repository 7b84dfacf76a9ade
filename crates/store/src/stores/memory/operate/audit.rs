//! The audit: which operator did what, to how many events. A line commits with the change that it describes.

use std::ops::Bound;

use redrive_core::Moment;
use redrive_core::triage::Operator;

use crate::operate::{AuditEntry, AuditLine, lines_asked};
use crate::stores::memory::state::State;

impl State {
    /// The number of the next line.
    pub(in crate::stores::memory) fn next_line(&self) -> u64 {
        self.audit.iter().next_back().map_or(1, |(number, _)| number + 1)
    }

    pub(in crate::stores::memory) fn write_line(&mut self, by: Operator, at: Moment, deed: AuditEntry) {
        let number = self.next_line();
        let AuditEntry { verb, target, count, note } = deed;
        let line = AuditLine { number, at, by, verb: verb.to_owned(), target, count, note };
        self.audit.put(number, line);
    }

    pub(in crate::stores::memory) fn lines(&self, before: Option<u64>, limit: usize) -> Vec<AuditLine> {
        let limit = lines_asked(limit);
        let before = before.map_or(Bound::Unbounded, Bound::Excluded);
        let lines = self.audit.range((Bound::Unbounded, before)).rev().take(limit);
        lines.map(|(_, line)| line.clone()).collect()
    }
}
