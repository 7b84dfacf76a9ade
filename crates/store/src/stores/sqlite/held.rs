//! Events that change, as rows of SQLite.

use redrive_core::entry::Seq;
use rusqlite::{Connection, OptionalExtension, params};

use super::columns::change_columns;
use super::numbers::column;
use super::rows::{Damage, Stream, event_columns};
pub(super) use crate::stores::shared::held::{Held, Mark, PutBack, Stand, held_columns};

impl Held {
    pub(super) fn insert(&self, conn: &Connection) -> rusqlite::Result<()> {
        let mut insert = conn.prepare_cached(concat!(
            "INSERT INTO redrive_held (",
            event_columns!(),
            ", stream, flow, ",
            change_columns!(),
            ") VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?1 >> 40, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18, \
             ?19, ?20, ?21, ?22, ?23, ?24, ?25, ?26, ?27, ?28, ?29, ?30, ?31, ?32, ?33, ?34, ?35)"
        ))?;
        self.row.bind(&mut insert)?;
        self.columns().bind(&mut insert, self.row.seq)?;
        insert.raw_execute().map(drop)
    }

    /// Writes what changes.
    pub(super) fn update(&self, conn: &Connection) -> rusqlite::Result<()> {
        self.columns().update(conn, self.row.seq)
    }

    /// The held event with this seq, if there is one.
    pub(super) fn find(
        conn: &Connection,
        seq: Seq,
        stream: &Stream,
    ) -> rusqlite::Result<Option<Result<Self, Damage>>> {
        conn.prepare_cached(concat!("SELECT ", held_columns!(), " FROM redrive_held WHERE seq = ?1"))?
            .query_row(params![column(seq.0)], |row| Ok(Self::read(row, stream)))
            .optional()
    }
}

/// Takes an event out of those that are held.
pub(super) fn delete_held(conn: &Connection, seq: Seq) -> rusqlite::Result<usize> {
    conn.prepare_cached("DELETE FROM redrive_held WHERE seq = ?1")?.execute(params![column(seq.0)])
}
