//! One committer: settled messages in one line, one commit at a time.
//!
//! Retries, dead letters, outputs and plain commits go through the same line. The next commit is formed only when the
//! outcome of the one before is known. A weaker rule loses messages: commit 1 moves messages 1 to 50 and hangs; commit 2
//! says that 1 to 100 are done; commit 1 is aborted, and fifty are gone.

use std::collections::VecDeque;

use crate::planted::{BrokerBug, has};

/// The line of a committer.
#[derive(Debug)]
pub struct Committer<T> {
    waiting: VecDeque<T>,
    /// Commits whose outcome is not known, oldest first. At most one, but for a planted bug.
    under_way: VecDeque<CommitBatch<T>>,
    number: u64,
}

/// Items that are committed together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CommitBatch<T> {
    /// The number of the commit.
    pub number: u64,
    /// Its items, in order.
    pub items: Vec<T>,
}

impl<T> Default for Committer<T> {
    fn default() -> Self {
        Self { waiting: VecDeque::new(), under_way: VecDeque::new(), number: 0 }
    }
}

impl<T: Clone> Committer<T> {
    /// Adds an item behind all others.
    pub fn push(&mut self, item: T) {
        self.waiting.push_back(item);
    }

    /// How many items wait.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Whether nothing waits and no commit is under way.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.waiting.is_empty() && self.under_way.is_empty()
    }

    /// The next commit, of up to `max` items; `None` while one is under way, or nothing waits.
    pub fn next(&mut self, max: usize) -> Option<CommitBatch<T>> {
        let is_busy = !self.under_way.is_empty() && !has(BrokerBug::PipelinedIds);
        if is_busy || self.waiting.is_empty() {
            return None;
        }
        self.number += 1;
        let count = self.waiting.len().min(max);
        let batch = CommitBatch { number: self.number, items: self.waiting.drain(..count).collect() };
        self.under_way.push_back(batch.clone());
        Some(batch)
    }

    /// The commit happened.
    pub fn committed(&mut self, number: u64) {
        self.under_way.retain(|batch| batch.number != number);
    }

    /// The commit did not happen: its items go back to the front, in order.
    pub fn aborted(&mut self, number: u64) {
        let Some(at) = self.under_way.iter().position(|batch| batch.number == number) else { return };
        let Some(batch) = self.under_way.remove(at) else { return };
        if has(BrokerBug::AbortForgotten) {
            return;
        }
        for item in batch.items.into_iter().rev() {
            self.waiting.push_front(item);
        }
    }

    /// Removes waiting items that are not wanted any more, and returns them.
    pub fn remove(&mut self, mut is_gone: impl FnMut(&T) -> bool) -> Vec<T> {
        let (gone, kept): (Vec<T>, Vec<T>) = self.waiting.drain(..).partition(|item| is_gone(item));
        self.waiting = kept.into();
        gone
    }
}
