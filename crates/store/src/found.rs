//! What is known of events: by identity, by page, by number.

use std::sync::Arc;

use redrive_core::entry::Seq;
use redrive_core::event::{DeadReason, State, Story};
use redrive_core::triage::{CauseId, Filter};
use redrive_core::{Event, Moment};

/// What is known of an identity.
#[derive(Debug, Clone, PartialEq)]
pub struct Found {
    /// The place it was given.
    pub seq: Seq,
    /// Grows with every change; an order may name it, and is refused if it has another one. 0 where it has ended.
    pub rev: u32,
    /// Where it is. `Running` is only known to its owner; a store says `Ready` or `Waiting`.
    pub state: State,
    /// When it was published.
    pub published: Moment,
    /// When it may run next, while it waits.
    pub due: Option<Moment>,
    /// When it ended, where that was written down: not for a success at the first attempt that left nothing.
    pub ended: Option<Moment>,
    /// Attempts that were settled.
    pub attempts: u32,
    /// Why it died, while it is dead.
    pub reason: Option<DeadReason>,
    /// Its attempts, as far as they are kept.
    pub story: Option<Arc<Story>>,
    /// What its handler left.
    pub result: Option<Vec<u8>>,
    /// What it died of, while it is dead, or before it was put back.
    pub cause: Option<CauseId>,
    /// The queue whose handler is to run it, where an operator said so.
    pub route: Option<String>,
    /// The id under which it goes on, where it was edited.
    pub edited_into: Option<String>,
    /// Until when it can be restored, where it was discarded; until when its lease is good, where it runs elsewhere.
    pub until: Option<Moment>,
    /// Whether it is a dead letter that holds up its key.
    pub holds: bool,
}

impl Found {
    /// An event of which nothing is known but its place, its state and when it was published.
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
            story: None,
            result: None,
            cause: None,
            route: None,
            edited_into: None,
            until: None,
            holds: false,
        }
    }
}

/// What a filter means.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Matching {
    /// How many dead letters.
    pub letters: u64,
    /// How many of them hold up their key.
    pub keys_blocked: u64,
    /// How many keep the order of a key, and no longer hold it up: later ones of it may have run already.
    pub out_of_order: u64,
    /// How many were put back before, and died again.
    pub redriven_before: u64,
    /// How many have attempts whose effect is unknown.
    pub unsure: u64,
    /// Their queues, and how many in each.
    pub queues: Vec<(String, u64)>,
    /// Some of their keys.
    pub keys: Vec<String>,
}

/// How many bytes of payloads and headers are on a page, roughly: the event that reaches it is the last one.
pub const PAGE_BYTES: usize = 4 << 20;

/// What an event counts for on a page.
pub(crate) fn bytes_of(event: &Event) -> usize {
    let headers = event.meta.as_ref().map_or(&[][..], |meta| &meta.headers);
    headers.iter().fold(event.payload.len(), |sum, (name, value)| sum + name.len() + value.len())
}

/// Which events to list, in the order of their seqs.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Query {
    /// Which; all where nothing is set.
    pub filter: Filter,
    /// In which state; all that live where it is none.
    pub state: Option<State>,
    /// After which place: the last one of the page before.
    pub after: Option<Seq>,
    /// How many, at most; 0 for a page of 100. A page has fewer where they are large: it ends with the event that
    /// reaches [`PAGE_BYTES`].
    pub limit: usize,
}

/// A page of events.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Listed {
    /// The events, with what is known of them.
    pub events: Vec<(Arc<Event>, Found)>,
    /// Where the next page begins, if there may be one. A page may have fewer events than asked for, or none, and
    /// still have a next: it ends where enough was looked at, or has enough bytes.
    pub next: Option<Seq>,
    /// Rows that could not be read: a checksum did not fit. They are left out, and named here.
    pub damaged: Vec<String>,
}

/// How many events there are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Count {
    /// Of which queue.
    pub queue: String,
    /// In which state.
    pub state: State,
    /// How many.
    pub events: u64,
}
