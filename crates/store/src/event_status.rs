//! The status of events: by identity, by page, by number.

use std::sync::Arc;

use redrive_core::event::{AttemptHistory, DeadReason, State};
use redrive_core::queue_entry::Seq;
use redrive_core::triage::{CauseId, Filter};
use redrive_core::{Event, Moment};

/// The status of an event.
#[derive(Debug, Clone, PartialEq)]
pub struct EventStatus {
    /// Its sequence number.
    pub seq: Seq,
    /// Its revision, which grows with every change. A command may name it, and is refused if the event has another
    /// one. 0 after its end.
    pub rev: u32,
    /// Its state. Only its owner knows `Running`; a store says `Ready` or `Waiting`.
    pub state: State,
    /// When it was published.
    pub published: Moment,
    /// When it may run next, while it waits.
    pub due: Option<Moment>,
    /// When it ended, if recorded: not for a success at the first attempt without a result.
    pub ended: Option<Moment>,
    /// How many attempts were settled.
    pub attempts: u32,
    /// Why it died, while it is dead.
    pub reason: Option<DeadReason>,
    /// Its attempt history, as far as it is kept.
    pub history: Option<Arc<AttemptHistory>>,
    /// The result of its handler.
    pub result: Option<Vec<u8>>,
    /// The cause of its death, while it is dead, or before it was redriven.
    pub cause: Option<CauseId>,
    /// The queue whose handler runs it, if an operator rerouted it.
    pub route: Option<String>,
    /// The id of its replacement, if it was edited.
    pub edited_into: Option<String>,
    /// Until when it can be restored, if it was discarded; until when its lease lasts, if a worker holds it.
    pub until: Option<Moment>,
    /// Whether it is a dead letter that blocks its key.
    pub holds: bool,
}

impl EventStatus {
    /// A status with only sequence number, state and time of publishing.
    #[must_use]
    pub const fn new(seq: Seq, state: State, published: Moment) -> Self {
        Self {
            seq,
            rev: 0,
            state,
            published,
            due: None,
            ended: None,
            attempts: 0,
            reason: None,
            history: None,
            result: None,
            cause: None,
            route: None,
            edited_into: None,
            until: None,
            holds: false,
        }
    }
}

/// The status of an event, with its tenant and queue.
#[derive(Debug, Clone, PartialEq)]
pub struct Named {
    /// Its tenant.
    pub tenant: String,
    /// Its queue.
    pub queue: String,
    /// Its status.
    pub found: EventStatus,
}

/// How many events with one id are returned at most.
pub(crate) const NAMED_MAX: usize = 100;

/// The dead letters that a filter matches.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct FilterMatches {
    /// How many dead letters.
    pub letters: u64,
    /// How many of them block their key.
    pub keys_blocked: u64,
    /// How many belong to a key and no longer block it: later events of the key may have run.
    pub out_of_order: u64,
    /// How many were redriven before, and died again.
    pub redriven_before: u64,
    /// How many have attempts of unknown outcome.
    pub unsure: u64,
    /// Their queues, and how many in each.
    pub queues: Vec<(String, u64)>,
    /// Some of their keys.
    pub keys: Vec<String>,
}

/// Bytes of payloads and headers on a page, roughly: the event that reaches it is the last one.
pub const PAGE_BYTES: usize = 4 << 20;

/// The bytes of an event on a page.
pub(crate) fn bytes_of(event: &Event) -> usize {
    let headers = event.meta.as_ref().map_or(&[][..], |meta| &meta.headers);
    headers.iter().fold(event.payload.len(), |sum, (name, value)| sum + name.len() + value.len())
}

/// Which events to list, in the order of their seqs.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct EventQuery {
    /// The filter; the default matches all events.
    pub filter: Filter,
    /// The state; `None` for all events that have not ended.
    pub state: Option<State>,
    /// List events after this one: the last of the previous page.
    pub after: Option<Seq>,
    /// How many events, at most; 0 for a page of 100. A page of large events has fewer: it ends with the event that
    /// reaches [`PAGE_BYTES`].
    pub limit: usize,
}

/// A page of events.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct EventPage {
    /// The events, with their statuses.
    pub events: Vec<(Arc<Event>, EventStatus)>,
    /// Where the next page begins, if there may be one. A page may have fewer events than asked for, or none, and
    /// still have a next: it ends after a bounded number of rows or bytes.
    pub next: Option<Seq>,
    /// Rows with a wrong checksum. They are left out, and listed here.
    pub damaged: Vec<String>,
}

/// How many events a queue has in a state.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EventCount {
    /// The queue.
    pub queue: String,
    /// The state.
    pub state: State,
    /// How many.
    pub events: u64,
}
