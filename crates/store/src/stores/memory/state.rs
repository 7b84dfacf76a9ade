//! Everything that the store knows, as maps.

use std::collections::BTreeMap;
use std::sync::Arc;

use redrive_core::Moment;
use redrive_core::entry::{Entry, Seq, StreamId};
use redrive_core::ledger::{Record, Scope};
use redrive_core::planted::{Flaw, has};
use redrive_core::triage::{self, CauseId, Control, JobId, Rule};

use super::group::Letters;
use super::journal::{Journal, Map};
use super::row::{Chain, Hold, Identity, Place, Receipt, Row};
use crate::operate::AuditLine;
use crate::store::QueueSpec;

/// How many bits of a seq are the number within its stream.
pub(super) const NUMBER_BITS: u32 = 40;

/// The user's own table.
pub(super) type Table = BTreeMap<String, Vec<u8>>;

/// One tenant's part of one queue.
#[derive(Debug, Clone)]
pub(super) struct Stream {
    pub(super) queue: String,
    pub(super) tenant: String,
    /// The number that was given last.
    pub(super) last: u64,
}

/// Who owns a shard.
#[derive(Debug, Clone, Default)]
pub(super) struct Shard {
    pub(super) epoch: u64,
    /// Whether somebody has it; somebody who dies still has it.
    pub(super) owned: bool,
    pub(super) noted: Vec<Seq>,
}

/// What is counted for ever.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Counter {
    /// Deaths in this store.
    Deaths,
    /// Orders that took something out of an owner's hands.
    Recalls,
}

/// What is told after a commit.
#[derive(Debug, Default)]
pub(super) struct Told {
    pub(super) entries: Vec<Entry>,
    pub(super) recall: bool,
}

impl Told {
    pub(super) fn add(&mut self, other: Self) {
        self.entries.extend(other.entries);
        self.recall |= other.recall;
    }
}

/// Everything.
#[derive(Debug, Clone, Default)]
pub(super) struct State {
    pub(super) shards_max: u32,
    pub(super) queues: Map<String, QueueSpec>,
    pub(super) stream_ids: Map<(String, String), StreamId>,
    pub(super) streams: Map<StreamId, Stream>,
    pub(super) rows: Map<Seq, Row>,
    pub(super) receipts: Map<Identity, Receipt>,
    /// Receipts without an event that is to be dealt with, by when they may be forgotten.
    pub(super) fading: Map<(Moment, Identity), ()>,
    /// Who counts in the order of a key.
    pub(super) members: Map<(StreamId, Arc<str>, Seq), ()>,
    /// Who of a key may run.
    pub(super) heads: Map<Chain, Seq>,
    pub(super) runnable: Map<Place, ()>,
    pub(super) holding: Map<Hold, ()>,
    pub(super) shards: Map<u32, Shard>,
    pub(super) markers: Map<(String, String), Moment>,
    /// What programs keep.
    pub(super) kept: Map<String, Vec<u8>>,
    /// The ledger.
    pub(super) records: Map<Scope, Record>,
    pub(super) rules: Map<Rule, Control>,
    pub(super) jobs: Map<JobId, triage::Job>,
    pub(super) groups: Map<(StreamId, CauseId), Letters>,
    pub(super) audit: Map<u64, AuditLine>,
    pub(super) counters: Map<Counter, u64>,
    /// The stream of a queue that was served last.
    pub(super) served: Map<String, StreamId>,
    pub(super) table: Arc<Table>,
    table_before: Option<Arc<Table>>,
    /// The number of the next event that is published, where it was drawn before.
    pub(super) drawn: Option<Seq>,
    /// What became runnable since the last commit.
    pub(super) arrived: Vec<Seq>,
    /// Whether something was taken out of an owner's hands since the last commit.
    recalled: bool,
    /// The latest moment that somebody told: what is due by then may run.
    pub(super) seen: Moment,
}

impl State {
    fn maps(&mut self) -> [&mut dyn Journal; 20] {
        [
            &mut self.queues,
            &mut self.stream_ids,
            &mut self.streams,
            &mut self.rows,
            &mut self.receipts,
            &mut self.fading,
            &mut self.members,
            &mut self.heads,
            &mut self.runnable,
            &mut self.holding,
            &mut self.shards,
            &mut self.markers,
            &mut self.kept,
            &mut self.records,
            &mut self.rules,
            &mut self.jobs,
            &mut self.groups,
            &mut self.audit,
            &mut self.counters,
            &mut self.served,
        ]
    }

    /// The user's table, to be changed.
    pub(super) fn table_mut(&mut self) -> &mut Table {
        self.table_before.get_or_insert_with(|| Arc::clone(&self.table));
        Arc::make_mut(&mut self.table)
    }

    pub(super) fn is_changed(&mut self) -> bool {
        self.table_before.is_some() || self.maps().iter().any(|map| map.is_changed())
    }

    /// Commits; gives what is to be told.
    pub(super) fn keep(&mut self) -> Told {
        self.keep_table();
        self.maps().into_iter().for_each(Journal::keep);
        let arrived = std::mem::take(&mut self.arrived);
        let rows = arrived.iter().filter_map(|seq| self.rows.get(seq));
        let runnable = rows.filter(|row| self.is_runnable(row) && !self.is_pulled(row.entry.stream));
        let entries = runnable.map(|row| row.entry.clone()).collect();
        let recall = std::mem::take(&mut self.recalled) && !has(Flaw::RecallLost);
        Told { entries, recall }
    }

    /// Commits what the user wrote, and nothing else: no store that is right has a use for it.
    pub(super) fn keep_table(&mut self) {
        self.table_before = None;
    }

    /// Rolls back.
    pub(super) fn undo(&mut self) {
        if let Some(before) = self.table_before.take() {
            self.table = before;
        }
        self.maps().into_iter().for_each(Journal::undo);
        self.arrived.clear();
        self.recalled = false;
    }

    /// Raises a counter and gives what it is then.
    pub(super) fn count_up(&mut self, counter: Counter) -> u64 {
        let number = self.counters.get(&counter).copied().unwrap_or_default() + 1;
        self.counters.put(counter, number);
        number
    }

    /// Notes that an owner may have something in its hands that it must not start any more.
    pub(super) fn recall(&mut self) {
        self.recalled = true;
        self.count_up(Counter::Recalls);
    }

    /// The event of a receipt, where it is still there: after an edit another one is in its place.
    pub(super) fn row_of(&self, receipt: &Receipt) -> Option<&Row> {
        self.rows.get(&receipt.seq).filter(|row| row.entry.event.id == receipt.identity.id)
    }

    /// Whether the events of a stream are leased, and run by no owner.
    pub(super) fn is_pulled(&self, stream: StreamId) -> bool {
        let queue = self.streams.get(&stream).and_then(|stream| self.queues.get(&stream.queue));
        queue.is_some_and(|queue| queue.pull)
    }

    /// Takes note of a moment that somebody told.
    pub(super) fn see(&mut self, at: Moment) {
        self.seen = self.seen.max(at);
    }
}
