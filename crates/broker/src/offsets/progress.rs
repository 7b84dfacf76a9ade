//! How far a partition is: what was delivered and is not settled, and everything else that is done.
//!
//! Only offsets that were delivered and are not settled are kept. Every other offset below the position counts as done:
//! it was settled, or it was never delivered, because it is a transaction marker, belongs to an aborted transaction or
//! was compacted away. So the low mark never waits at a gap.

use std::collections::BTreeSet;

use super::done_set::{DoneSet, METADATA_BYTES_MAX};
use crate::planted::{BrokerBug, has};

/// The progress of one partition under one assignment.
#[derive(Debug, Clone)]
pub struct Progress {
    /// Delivered and not settled.
    pending: BTreeSet<i64>,
    /// The offset after the last one that was seen.
    position: i64,
    /// What an earlier assignment did, and this one has not reached yet. Sorted.
    ahead: Vec<(i64, i64)>,
    /// What the planted bug counts.
    mark: i64,
    assignment: u64,
    number: u64,
    bytes_max: usize,
}

/// What to do with an offset that the broker delivered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Seen {
    /// Handle it.
    New,
    /// It was done under an earlier assignment; there is nothing to do.
    Done,
    /// It was delivered before under this assignment; there is nothing to do.
    Again,
}

/// A commit: the low mark and its metadata.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mark {
    /// The offset to commit.
    pub offset: i64,
    /// The metadata to commit with it.
    pub metadata: String,
}

impl Progress {
    /// The progress at the start of an assignment: the committed offset, and the done-set of its metadata.
    #[must_use]
    pub fn new(low: i64, done: DoneSet, assignment: u64) -> Self {
        Self {
            pending: BTreeSet::new(),
            position: low,
            ahead: done.ranges,
            mark: low,
            assignment,
            number: 0,
            bytes_max: METADATA_BYTES_MAX,
        }
    }

    /// Sets the bound of the metadata, if the broker's is another than Kafka's default.
    #[must_use]
    pub const fn bytes_max(mut self, bytes: usize) -> Self {
        self.bytes_max = bytes;
        self
    }

    /// The broker delivered this offset.
    pub fn see(&mut self, offset: i64) -> Seen {
        if offset < self.position {
            return Seen::Again;
        }
        self.position = offset + 1;
        while self.ahead.first().is_some_and(|(_, end)| *end <= offset) {
            self.ahead.remove(0);
        }
        if self.ahead.first().is_some_and(|(start, end)| *start <= offset && offset < *end) {
            return Seen::Done;
        }
        self.pending.insert(offset);
        Seen::New
    }

    /// Everything below `position` was delivered or does not exist.
    pub fn reached(&mut self, position: i64) {
        if position > self.position && self.ahead.is_empty() {
            self.position = position;
        }
    }

    /// These offsets are settled by the commit that is about to be sent. Keep a copy until its outcome is known.
    pub fn settle(&mut self, offsets: impl IntoIterator<Item = i64>) {
        for offset in offsets {
            self.pending.remove(&offset);
            if self.mark == offset {
                self.mark = offset + 1;
            }
        }
        self.number += 1;
    }

    /// The first offset that is not done.
    #[must_use]
    pub fn low_mark(&self) -> i64 {
        if has(BrokerBug::MarkCountsByOne) {
            return self.mark.min(self.pending.first().copied().unwrap_or(self.mark));
        }
        self.pending.first().copied().unwrap_or(self.position)
    }

    /// How many offsets were delivered and are not settled.
    #[must_use]
    pub fn pending(&self) -> usize {
        self.pending.len()
    }

    /// Whether an offset was delivered and is not settled.
    #[must_use]
    pub fn is_pending(&self, offset: i64) -> bool {
        self.pending.contains(&offset)
    }

    /// The commit for this progress, or `None` if its done-set does not fit.
    #[must_use]
    pub fn mark(&self) -> Option<Mark> {
        let offset = self.low_mark();
        let metadata = self.done_set(offset).encode(offset);
        (metadata.len() <= self.bytes_max).then_some(Mark { offset, metadata })
    }

    /// Whether nothing new may be started, because the done-set has grown near its bound.
    #[must_use]
    pub fn is_pressing(&self) -> bool {
        let low = self.low_mark();
        DoneSet::is_pressing(self.done_set(low).encode(low).len(), self.bytes_max)
    }

    /// How many messages may be with the consumer at once, so that the done-set fits whatever order they end in.
    #[must_use]
    pub fn room(&self) -> usize {
        /// What one settled message adds to the done-set at most: two lengths of up to two bytes, in base64.
        const ADDED_MAX: usize = 6;
        let low = self.low_mark();
        self.bytes_max.saturating_sub(self.done_set(low).encode(low).len()) / ADDED_MAX
    }

    /// The offset after the last one that was seen.
    #[must_use]
    pub const fn position(&self) -> i64 {
        self.position
    }

    /// The name of the last commit, as its metadata carries it.
    #[must_use]
    pub const fn commit_name(&self) -> (u64, u64) {
        (self.assignment, self.number)
    }

    fn done_set(&self, low: i64) -> DoneSet {
        let mut ranges = Vec::new();
        let mut at = low;
        for offset in &self.pending {
            if *offset > at {
                ranges.push((at, *offset));
            }
            at = offset + 1;
        }
        if self.position > at {
            ranges.push((at, self.position));
        }
        if !has(BrokerBug::ForgetsDoneAhead) {
            for (start, end) in &self.ahead {
                let start = (*start).max(self.position);
                match ranges.last_mut() {
                    Some(last) if last.1 == start => last.1 = *end,
                    _ if *end > start => ranges.push((start, *end)),
                    _ => {}
                }
            }
        }
        DoneSet { assignment: self.assignment, number: self.number, ranges }
    }
}
