//! Events as rows of SQLite: how they are written, one or many with a statement.

use std::sync::LazyLock;

use redrive_core::entry::Seq;
use rusqlite::types::ValueRef;
use rusqlite::{CachedStatement, Connection, Row, params};

use super::numbers::column;
use crate::stores::shared::cells::Cells;
pub(super) use crate::stores::shared::cells::Damage;
pub(super) use crate::stores::shared::rows::{EVENT_COLUMNS, EventRow, Parts, Stream, event_columns};

/// How many rows a statement for many writes. To begin and end a statement costs about a quarter of what a
/// row does.
pub(super) const ROWS: usize = 16;

/// The values of such a statement, each row with so many columns. Such a statement says `OR FAIL`: to undo it alone,
/// which nobody wants because all is rolled back with it, SQLite would copy each page that it changes.
pub(super) fn values(columns: usize) -> String {
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
    /// The statement that puts events among those that may run.
    pub(super) fn inserting(conn: &Connection) -> rusqlite::Result<CachedStatement<'_>> {
        conn.prepare_cached(concat!(
            "INSERT INTO redrive_live (",
            event_columns!(),
            ") VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)"
        ))
    }

    /// The same for [`ROWS`] of them.
    pub(super) fn inserting_many(conn: &Connection) -> rusqlite::Result<CachedStatement<'_>> {
        static SQL: LazyLock<String> = LazyLock::new(|| {
            let columns = event_columns!();
            format!("INSERT OR FAIL INTO redrive_live ({columns}) VALUES {}", values(EVENT_COLUMNS))
        });
        conn.prepare_cached(&SQL)
    }

    /// Puts it among those that may run.
    pub(super) fn insert(&self, insert: &mut CachedStatement<'_>) -> rusqlite::Result<()> {
        self.bind(insert)?;
        insert.raw_execute().map(drop)
    }

    /// Binds the columns, as the first of a statement.
    pub(super) fn bind(&self, statement: &mut CachedStatement<'_>) -> rusqlite::Result<()> {
        self.bind_as(0, statement)
    }

    /// Binds the columns as the row `row` of a statement that writes several.
    pub(super) fn bind_as(&self, row: usize, statement: &mut CachedStatement<'_>) -> rusqlite::Result<()> {
        let event = &*self.event;
        let seq = column(self.seq.0);
        let Parts { key, tag, extra, published, calm, crc } = self.parts();
        let before = row * EVENT_COLUMNS;
        statement.raw_bind_parameter(before + 1, seq)?;
        statement.raw_bind_parameter(before + 2, &event.id)?;
        statement.raw_bind_parameter(before + 3, key)?;
        statement.raw_bind_parameter(before + 4, tag)?;
        statement.raw_bind_parameter(before + 5, &event.payload)?;
        statement.raw_bind_parameter(before + 6, extra)?;
        statement.raw_bind_parameter(before + 7, published)?;
        statement.raw_bind_parameter(before + 8, calm)?;
        statement.raw_bind_parameter(before + 9, crc)
    }
}

/// Takes an event out of those that may run.
pub(super) fn delete_live(conn: &Connection, seq: Seq) -> rusqlite::Result<usize> {
    conn.prepare_cached("DELETE FROM redrive_live WHERE seq = ?1")?.execute(params![column(seq.0)])
}
