//! Everything that the store knows, as maps, and what their rows are.

use std::collections::BTreeMap;
use std::sync::Arc;

use redrive_core::entry::{Entry, Seq, StreamId};
use redrive_core::event::{DeadReason, Fingerprint, Mode, State as Where, Story};
use redrive_core::{Event, Moment};

use super::journal::{Journal, Map};
use crate::store::QueueSpec;

/// How many bits of a seq are the number within its stream.
pub(super) const NUMBER_BITS: u32 = 40;

/// The user's own table.
pub(super) type Table = BTreeMap<String, Vec<u8>>;

/// `(tenant, queue, id)`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Identity {
    pub(super) tenant: String,
    pub(super) queue: String,
    pub(super) id: String,
}

impl Identity {
    pub(super) fn of(event: &Event) -> Self {
        Self { tenant: event.tenant.clone(), queue: event.queue.clone(), id: event.id.clone() }
    }
}

/// The events of one key that keep their order: `(stream, key)`.
pub(super) type Chain = (StreamId, Arc<str>);

/// Where a runnable event is found: by stream and shard, whether it is a retry, when it is due.
pub(super) type Place = (StreamId, u32, bool, Moment, Seq);

/// Where a dead letter is found that holds up others until some time.
pub(super) type Hold = (StreamId, u32, Moment, Seq);

/// An event that lives, or is dead and not dealt with.
#[derive(Debug, Clone)]
pub(super) struct Row {
    pub(super) entry: Entry,
    /// The key that it keeps the order of, as the queue was declared when it was published.
    pub(super) chain: Option<Chain>,
    pub(super) death: Option<Death>,
}

/// What is known of a dead letter.
#[derive(Debug, Clone)]
pub(super) struct Death {
    pub(super) reason: DeadReason,
    pub(super) at: Moment,
    /// Whether those of its key that follow wait.
    pub(super) holds: bool,
    /// When they go on.
    pub(super) until: Option<Moment>,
    /// Above how many of them they go on.
    pub(super) count: Option<u32>,
}

impl Row {
    pub(super) fn place(&self) -> Place {
        let Entry { stream, shard, ref progress, seq, .. } = self.entry;
        let retry = progress.attempts > 0 || progress.mode != Mode::Live;
        (stream, shard, retry, progress.due, seq)
    }

    /// Whether it counts in the order of its key.
    pub(super) fn blocks(&self) -> bool {
        self.death.as_ref().is_none_or(|death| death.holds)
    }

    pub(super) fn hold(&self) -> Option<Hold> {
        let death = self.death.as_ref().filter(|death| death.holds)?;
        Some((self.entry.stream, self.entry.shard, death.until?, self.entry.seq))
    }
}

/// What is remembered of an identity.
#[derive(Debug, Clone)]
pub(super) struct Receipt {
    pub(super) identity: Identity,
    pub(super) fingerprint: Fingerprint,
    pub(super) published: Moment,
    /// How long it is remembered at least; longer while its event lives.
    pub(super) until: Moment,
    /// What cannot be told from the absence of the event, which means done at the first attempt.
    pub(super) end: Option<End>,
}

/// How an event ended.
#[derive(Debug, Clone)]
pub(super) struct End {
    pub(super) state: Where,
    pub(super) at: Moment,
    pub(super) attempts: u32,
    pub(super) story: Option<Arc<Story>>,
    pub(super) result: Option<Vec<u8>>,
}

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

/// Everything.
#[derive(Debug, Clone, Default)]
pub(super) struct State {
    pub(super) shards_max: u32,
    pub(super) queues: Map<String, QueueSpec>,
    pub(super) stream_ids: Map<(String, String), StreamId>,
    pub(super) streams: Map<StreamId, Stream>,
    pub(super) rows: Map<Seq, Row>,
    pub(super) identities: Map<Identity, Seq>,
    pub(super) receipts: Map<Seq, Receipt>,
    /// Receipts without an event, by when they may be forgotten.
    pub(super) fading: Map<(Moment, Seq), ()>,
    /// Who counts in the order of a key.
    pub(super) members: Map<(StreamId, Arc<str>, Seq), ()>,
    /// Who of a key may run.
    pub(super) heads: Map<Chain, Seq>,
    pub(super) runnable: Map<Place, ()>,
    pub(super) holding: Map<Hold, ()>,
    pub(super) shards: Map<u32, Shard>,
    pub(super) markers: Map<(String, String), Moment>,
    pub(super) table: Arc<Table>,
    table_before: Option<Arc<Table>>,
    /// What became runnable since the last commit.
    pub(super) arrived: Vec<Seq>,
    /// The latest moment that somebody told: what is due by then may run.
    pub(super) seen: Moment,
}

impl State {
    fn maps(&mut self) -> [&mut dyn Journal; 13] {
        [
            &mut self.queues,
            &mut self.stream_ids,
            &mut self.streams,
            &mut self.rows,
            &mut self.identities,
            &mut self.receipts,
            &mut self.fading,
            &mut self.members,
            &mut self.heads,
            &mut self.runnable,
            &mut self.holding,
            &mut self.shards,
            &mut self.markers,
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

    /// Commits; gives what became runnable.
    pub(super) fn keep(&mut self) -> Vec<Entry> {
        self.keep_table();
        self.maps().into_iter().for_each(Journal::keep);
        let arrived = std::mem::take(&mut self.arrived);
        let runnable =
            arrived.iter().filter_map(|seq| self.rows.get(seq)).filter(|row| self.is_runnable(row));
        runnable.map(|row| row.entry.clone()).collect()
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
    }

    /// Takes note of a moment that somebody told.
    pub(super) fn see(&mut self, at: Moment) {
        self.seen = self.seen.max(at);
    }
}
