//! The whole state of the store, as maps.

use std::collections::BTreeMap;
use std::sync::Arc;

use redrive_core::Moment;
use redrive_core::ledger::{LedgerRecord, RequestScope};
use redrive_core::planted::{PlantedBug, has};
use redrive_core::queue_entry::{QueueEntry, Seq, StreamId};
use redrive_core::triage::{self, ActiveRule, CauseId, JobId, Rule};

use super::journal::{Journal, Map};
use super::operate::groups::Letters;
use super::row::{Chain, DedupeRecord, Hold, Identity, Row, RunnableKey};
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
    /// The last number that was drawn.
    pub(super) last: u64,
}

/// The owner of a shard.
#[derive(Debug, Clone, Default)]
pub(super) struct Shard {
    pub(super) epoch: u64,
    /// Whether the shard has an owner. An owner that died still counts.
    pub(super) owned: bool,
    pub(super) noted: Vec<Seq>,
}

/// Counters that are never reset.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Counter {
    /// Deaths in this store.
    Deaths,
    /// Commands that took events from an owner.
    Recalls,
}

/// The notification after a commit.
#[derive(Debug, Default)]
pub(super) struct CommitNotice {
    pub(super) entries: Vec<QueueEntry>,
    pub(super) recall: bool,
}

impl CommitNotice {
    pub(super) fn add(&mut self, other: Self) {
        self.entries.extend(other.entries);
        self.recall |= other.recall;
    }
}

/// The whole state.
#[derive(Debug, Clone, Default)]
pub(super) struct State {
    pub(super) shards_max: u32,
    pub(super) queues: Map<String, QueueSpec>,
    pub(super) stream_ids: Map<(String, String), StreamId>,
    pub(super) streams: Map<StreamId, Stream>,
    pub(super) rows: Map<Seq, Row>,
    pub(super) dedupe_records: Map<Identity, DedupeRecord>,
    /// Dedupe records without an unresolved event, by when they may be deleted.
    pub(super) fading: Map<(Moment, Identity), ()>,
    /// The events that count in the order of a key.
    pub(super) members: Map<(StreamId, Arc<str>, Seq), ()>,
    /// The runnable event of each key.
    pub(super) heads: Map<Chain, Seq>,
    pub(super) runnable: Map<RunnableKey, ()>,
    pub(super) holding: Map<Hold, ()>,
    pub(super) shards: Map<u32, Shard>,
    pub(super) markers: Map<(String, String), Moment>,
    /// Bytes that programs store under a name.
    pub(super) kept: Map<String, Vec<u8>>,
    /// The ledger.
    pub(super) records: Map<RequestScope, LedgerRecord>,
    pub(super) rules: Map<Rule, ActiveRule>,
    pub(super) jobs: Map<JobId, triage::Job>,
    pub(super) groups: Map<(StreamId, CauseId), Letters>,
    pub(super) audit: Map<u64, AuditLine>,
    pub(super) counters: Map<Counter, u64>,
    /// The stream of a queue that was served last.
    pub(super) served: Map<String, StreamId>,
    pub(super) table: Arc<Table>,
    table_before: Option<Arc<Table>>,
    /// The number of the next published event, if it was drawn before.
    pub(super) drawn: Option<Seq>,
    /// Events that became runnable since the last commit.
    pub(super) arrived: Vec<Seq>,
    /// Whether a command took events from an owner since the last commit.
    recalled: bool,
    /// The latest moment that a caller passed in: events that are due by then may run.
    pub(super) seen: Moment,
}

impl State {
    fn maps(&mut self) -> [&mut dyn Journal; 20] {
        [
            &mut self.queues,
            &mut self.stream_ids,
            &mut self.streams,
            &mut self.rows,
            &mut self.dedupe_records,
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

    /// The user's table, for changes.
    pub(super) fn table_mut(&mut self) -> &mut Table {
        self.table_before.get_or_insert_with(|| Arc::clone(&self.table));
        Arc::make_mut(&mut self.table)
    }

    pub(super) fn is_changed(&mut self) -> bool {
        self.table_before.is_some() || self.maps().iter().any(|map| map.is_changed())
    }

    /// Commits; returns the notification.
    pub(super) fn keep(&mut self) -> CommitNotice {
        self.keep_table();
        self.maps().into_iter().for_each(Journal::keep);
        let arrived = std::mem::take(&mut self.arrived);
        let rows = arrived.iter().filter_map(|seq| self.rows.get(seq));
        let runnable = rows.filter(|row| self.is_runnable(row) && !self.is_pulled(row.entry.stream));
        let entries = runnable.map(|row| row.entry.clone()).collect();
        let recall = std::mem::take(&mut self.recalled) && !has(PlantedBug::RecallLost);
        CommitNotice { entries, recall }
    }

    /// Commits the user's writes. Calling it without [`keep`](Self::keep) is a planted bug.
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

    /// Increments a counter and returns its new value.
    pub(super) fn count_up(&mut self, counter: Counter) -> u64 {
        let number = self.counters.get(&counter).copied().unwrap_or_default() + 1;
        self.counters.put(counter, number);
        number
    }

    /// Notes that an owner may have events in memory that it must not start any more.
    pub(super) fn recall(&mut self) {
        self.recalled = true;
        self.count_up(Counter::Recalls);
    }

    /// The event of a dedupe record, if it is still there: after an edit, the replacement has its seq.
    pub(super) fn row_of(&self, dedupe_record: &DedupeRecord) -> Option<&Row> {
        self.rows.get(&dedupe_record.seq).filter(|row| row.entry.event.id == dedupe_record.identity.id)
    }

    /// Whether the events of a stream are leased, and run by no owner.
    pub(super) fn is_pulled(&self, stream: StreamId) -> bool {
        let queue = self.streams.get(&stream).and_then(|stream| self.queues.get(&stream.queue));
        queue.is_some_and(|queue| queue.pull)
    }

    /// Notes a moment that a caller passed in.
    pub(super) fn see(&mut self, at: Moment) {
        self.seen = self.seen.max(at);
    }
}
