//! Events as rows of SQLite: writing one or many per statement.

use std::sync::LazyLock;

use redrive_core::queue_entry::Seq;
use rusqlite::types::ValueRef;
use rusqlite::{CachedStatement, Connection, OptionalExtension, Row, params};

use crate::stores::shared::cells::Cells;
pub(in crate::stores::sqlite) use crate::stores::shared::cells::Damage;
use crate::stores::shared::numbers::column;
pub(in crate::stores::sqlite) use crate::stores::shared::rows::{
    EVENT_COLUMNS, EventRow, Parts, Stream, event_columns,
};

/// How many rows a multi-row statement writes. Beginning and ending a statement costs about a quarter of a row.
pub(in crate::stores::sqlite) const ROWS: usize = 16;

/// The values of such a statement, each row with so many columns. Such a statement says `OR FAIL`: to undo it alone,
/// SQLite would copy each page that it changes, and the whole transaction is rolled back anyway.
pub(in crate::stores::sqlite) fn values(columns: usize) -> String {
    let row = format!("({})", vec!["?"; columns].join(", "));
    vec![row; ROWS].join(", ")
}

impl Cells for Row<'_> {
    fn number(&self, at: usize) -> Result<i64, Damage> {
        self.get(at).map_err(|_| Damage)
    }

    fn maybe_number(&self, at: usize) -> Result<Option<i64>, Damage> {
        self.get(at).map_err(|_| Damage)
    }

    fn word(&self, at: usize) -> Result<Option<&str>, Damage> {
        self.get_ref(at).ok().and_then(|value| value.as_str_or_null().ok()).ok_or(Damage)
    }

    fn blob(&self, at: usize) -> Result<Option<&[u8]>, Damage> {
        match self.get_ref(at).map_err(|_| Damage)? {
            ValueRef::Null => Ok(None),
            ValueRef::Blob(bytes) => Ok(Some(bytes)),
            _ => Err(Damage),
        }
    }
}

impl EventRow {
    /// The statement that inserts fresh events.
    pub(in crate::stores::sqlite) fn inserting(conn: &Connection) -> rusqlite::Result<CachedStatement<'_>> {
        conn.prepare_cached(concat!(
            "INSERT INTO redrive_fresh (",
            event_columns!(),
            ") VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)"
        ))
    }

    /// The same for [`ROWS`] of them.
    pub(in crate::stores::sqlite) fn inserting_many(
        conn: &Connection,
    ) -> rusqlite::Result<CachedStatement<'_>> {
        static SQL: LazyLock<String> = LazyLock::new(|| {
            let columns = event_columns!();
            format!("INSERT OR FAIL INTO redrive_fresh ({columns}) VALUES {}", values(EVENT_COLUMNS))
        });
        conn.prepare_cached(&SQL)
    }

    /// Inserts it as a fresh event.
    pub(in crate::stores::sqlite) fn insert(&self, insert: &mut CachedStatement<'_>) -> rusqlite::Result<()> {
        self.bind(insert)?;
        insert.raw_execute().map(drop)
    }

    /// Binds the columns, as the first of a statement.
    pub(in crate::stores::sqlite) fn bind(
        &self,
        statement: &mut CachedStatement<'_>,
    ) -> rusqlite::Result<()> {
        self.bind_as(0, statement)
    }

    /// Binds the columns as the row `row` of a statement that writes several.
    pub(in crate::stores::sqlite) fn bind_as(
        &self,
        row: usize,
        statement: &mut CachedStatement<'_>,
    ) -> rusqlite::Result<()> {
        let event = &*self.event;
        let seq = column(self.seq.0);
        let Parts { key, tag, extra, published, dedupe_ok_until, crc } = self.parts();
        let before = row * EVENT_COLUMNS;
        statement.raw_bind_parameter(before + 1, seq)?;
        statement.raw_bind_parameter(before + 2, &event.id)?;
        statement.raw_bind_parameter(before + 3, key)?;
        statement.raw_bind_parameter(before + 4, tag)?;
        statement.raw_bind_parameter(before + 5, &event.payload)?;
        statement.raw_bind_parameter(before + 6, extra)?;
        statement.raw_bind_parameter(before + 7, published)?;
        statement.raw_bind_parameter(before + 8, dedupe_ok_until)?;
        statement.raw_bind_parameter(before + 9, crc)
    }
}

/// The event with this seq that never ran.
pub(in crate::stores::sqlite) fn find_fresh(
    conn: &Connection,
    seq: Seq,
    stream: &Stream,
) -> rusqlite::Result<Option<Result<EventRow, Damage>>> {
    conn.prepare_cached(concat!("SELECT ", event_columns!(), " FROM redrive_fresh WHERE seq = ?1"))?
        .query_row([column(seq.0)], |row| Ok(EventRow::read(row, stream)))
        .optional()
}

/// Deletes a fresh event.
pub(in crate::stores::sqlite) fn delete_fresh(conn: &Connection, seq: Seq) -> rusqlite::Result<usize> {
    conn.prepare_cached("DELETE FROM redrive_fresh WHERE seq = ?1")?.execute(params![column(seq.0)])
}
