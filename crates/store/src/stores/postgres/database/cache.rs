//! The caches of a process between transactions. Each entry is a hint, or never changes: a statement that relies on a
//! hint lets the database compare it.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use redrive_core::queue_entry::StreamId;

use super::seq_reserve::SeqReserve;
use crate::store::QueueSpec;
use crate::stores::postgres::events::stream_names::StreamNames;
use crate::stores::postgres::forget::Cursor;
use crate::stores::postgres::publish::fast::NewEventGuess;

/// The caches of a process.
#[derive(Default)]
pub(in crate::stores::postgres) struct Cache {
    pub(in crate::stores::postgres) names: StreamNames,
    /// Queues as they were read last. A statement that relies on one lets the database compare it.
    pub(in crate::stores::postgres) specs: Mutex<HashMap<String, Arc<QueueSpec>>>,
    pub(in crate::stores::postgres) seq_reserve: SeqReserve,
    pub(in crate::stores::postgres) new_event_guess: NewEventGuess,
    /// How many causes streams have, as far as this process knows.
    pub(in crate::stores::postgres) causes: Mutex<HashMap<StreamId, u32>>,
    /// The stream of a queue that was leased from last.
    pub(in crate::stores::postgres) served: Mutex<HashMap<String, StreamId>>,
    /// Up to where the dead letters of a stream were checked for blocking too many events.
    pub(in crate::stores::postgres) relieved: Mutex<HashMap<StreamId, i64>>,
    pub(in crate::stores::postgres) cursor: Mutex<Cursor>,
}
