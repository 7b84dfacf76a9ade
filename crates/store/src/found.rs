//! What is known of events: by identity, by page, by number.

use std::sync::Arc;

use redrive_core::entry::Seq;
use redrive_core::event::{DeadReason, State, Story};
use redrive_core::{Event, Moment};

/// What is known of an identity.
#[derive(Debug, Clone, PartialEq)]
pub struct Found {
    /// The place it was given.
    pub seq: Seq,
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
}

/// Which events to list, in the order of their seqs.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Query {
    /// Of which queue; all where it is none.
    pub queue: Option<String>,
    /// Of which tenant; all where it is none.
    pub tenant: Option<String>,
    /// In which state; all that live where it is none.
    pub state: Option<State>,
    /// After which place: the last one of the page before.
    pub after: Option<Seq>,
    /// How many, at most; 0 for a page of 100.
    pub limit: usize,
}

/// A page of events.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Listed {
    /// The events, with what is known of them.
    pub events: Vec<(Arc<Event>, Found)>,
    /// Where the next page begins, if there is one.
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
