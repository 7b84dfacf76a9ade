//! Events that change, as rows of SQLite.

use std::sync::LazyLock;

use redrive_core::queue_entry::Seq;
use rusqlite::{Connection, OptionalExtension, params};

use super::fresh::{Damage, EVENT_COLUMNS, Stream, event_columns};
use crate::stores::shared::columns::written_columns;
use crate::stores::shared::numbers::column;
use crate::stores::shared::params::placeholders;
pub(in crate::stores::sqlite) use crate::stores::shared::tracked::{
    LastLease, RedrivenBy, RowState, TrackedEvent, tracked_columns,
};

impl TrackedEvent {
    pub(in crate::stores::sqlite) fn insert(&self, conn: &Connection) -> rusqlite::Result<()> {
        static SQL: LazyLock<String> = LazyLock::new(|| {
            let (event, changes) = (event_columns!(), written_columns!());
            let (event_at, changes_at) =
                (placeholders(event, '?', 1), placeholders(changes, '?', EVENT_COLUMNS + 1));
            format!(
                "INSERT INTO redrive_tracked ({event}, stream, {changes}) \
                 VALUES ({event_at}, ?1 >> 40, {changes_at})"
            )
        });
        let mut insert = conn.prepare_cached(&SQL)?;
        self.row.bind(&mut insert)?;
        self.columns().bind(&mut insert, EVENT_COLUMNS + 1, self.row.seq)?;
        insert.raw_execute().map(drop)
    }

    /// Writes its changing columns.
    pub(in crate::stores::sqlite) fn update(&self, conn: &Connection) -> rusqlite::Result<()> {
        self.columns().update(conn, self.row.seq)
    }

    /// The tracked event with this seq, if there is one.
    pub(in crate::stores::sqlite) fn find(
        conn: &Connection,
        seq: Seq,
        stream: &Stream,
    ) -> rusqlite::Result<Option<Result<Self, Damage>>> {
        conn.prepare_cached(concat!("SELECT ", tracked_columns!(), " FROM redrive_tracked WHERE seq = ?1"))?
            .query_row(params![column(seq.0)], |row| Ok(Self::read(row, stream)))
            .optional()
    }
}

/// Deletes a tracked event.
pub(in crate::stores::sqlite) fn delete_tracked(conn: &Connection, seq: Seq) -> rusqlite::Result<usize> {
    conn.prepare_cached("DELETE FROM redrive_tracked WHERE seq = ?1")?.execute(params![column(seq.0)])
}
