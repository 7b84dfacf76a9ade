//! What readers and the writer remember: the names of streams, and the latest moment that anybody told.

use std::collections::HashMap;
use std::sync::Arc;

use redrive_core::entry::StreamId;
use rusqlite::{Connection, OptionalExtension};

use super::rows::Stream;
pub(super) use crate::stores::shared::rules::Seen;

/// How many names are remembered; with more, all are read again.
const NAMES_MAX: usize = 10_000;

/// The names of streams. They never change, so they may be remembered for ever.
#[derive(Debug, Default)]
pub(super) struct Names(HashMap<StreamId, Arc<Stream>>);

impl Names {
    /// The stream with this number.
    pub(super) fn of(&mut self, conn: &Connection, id: StreamId) -> rusqlite::Result<Option<Arc<Stream>>> {
        if let Some(known) = self.0.get(&id) {
            return Ok(Some(Arc::clone(known)));
        }
        let found = conn
            .prepare_cached("SELECT queue, tenant FROM redrive_stream WHERE id = ?1")?
            .query_row([id.0], |row| Ok(Stream { id, queue: row.get(0)?, tenant: row.get(1)? }))
            .optional()?;
        let Some(stream) = found.map(Arc::new) else { return Ok(None) };
        if self.0.len() >= NAMES_MAX {
            self.0.clear();
        }
        self.0.insert(id, Arc::clone(&stream));
        Ok(Some(stream))
    }

    /// A rolled-back transaction may have made some of them up.
    pub(super) fn forget(&mut self) {
        self.0.clear();
    }
}

/// The number of the stream with these names.
pub(super) fn find_stream(
    conn: &Connection,
    queue: &str,
    tenant: &str,
) -> rusqlite::Result<Option<StreamId>> {
    conn.prepare_cached("SELECT id FROM redrive_stream WHERE queue = ?1 AND tenant = ?2")?
        .query_row([queue, tenant], |row| row.get(0).map(StreamId))
        .optional()
}
