//! The names of streams, cached by readers and the writer.

use std::collections::HashMap;
use std::sync::Arc;

use redrive_core::queue_entry::StreamId;
use rusqlite::{Connection, OptionalExtension};

use super::fresh::Stream;
pub(in crate::stores::sqlite) use crate::stores::shared::rules::StoreClock;

/// How many names are cached; with more, all are read again.
const NAMES_MAX: usize = 10_000;

/// The names of streams. They never change, so they may be cached for ever.
#[derive(Debug, Default)]
pub(in crate::stores::sqlite) struct StreamNames(HashMap<StreamId, Arc<Stream>>);

impl StreamNames {
    /// The stream with this number.
    pub(in crate::stores::sqlite) fn of(
        &mut self,
        conn: &Connection,
        id: StreamId,
    ) -> rusqlite::Result<Option<Arc<Stream>>> {
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

    /// Clears the cache: a rolled-back transaction may have created some of them.
    pub(in crate::stores::sqlite) fn forget(&mut self) {
        self.0.clear();
    }
}

/// The number of the stream with these names.
pub(in crate::stores::sqlite) fn find_stream(
    conn: &Connection,
    queue: &str,
    tenant: &str,
) -> rusqlite::Result<Option<StreamId>> {
    conn.prepare_cached("SELECT id FROM redrive_stream WHERE queue = ?1 AND tenant = ?2")?
        .query_row([queue, tenant], |row| row.get(0).map(StreamId))
        .optional()
}
