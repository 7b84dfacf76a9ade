//! The latest moment that a caller passed in, kept for the next process.
//!
//! A machine whose clock is behind at its next start would delay every scheduled event, lease and request by the
//! difference. So the file stores the latest moment, and the next process continues from there.

use redrive_core::Moment;
use rusqlite::{Connection, OptionalExtension as _};

use super::tx::WriterTx;
use crate::stores::shared::numbers::{from_moment, to_moment};
use crate::stores::sqlite::faults::Step;
use crate::stores::sqlite::open::schema::has_table;

/// How far the mark may be behind: each write of it is a commit.
const EVERY: std::time::Duration = std::time::Duration::from_secs(30);
/// Its table. The first mark creates it, so a file without it has no mark.
const TABLE: &str = "redrive_clock";

/// The mark of an earlier process.
pub(in crate::stores::sqlite) fn read(conn: &Connection) -> rusqlite::Result<Option<Moment>> {
    if !has_table(conn, TABLE)? {
        return Ok(None);
    }
    let found = conn.query_row("SELECT newest FROM redrive_clock", [], |row| row.get(0)).optional()?;
    Ok(found.map(to_moment))
}

impl WriterTx {
    /// Writes the mark, if it is old.
    pub(in crate::stores::sqlite) fn mark_clock(&mut self) -> Step<()> {
        let now = self.clock.now();
        if self.marked.is_some_and(|marked| now.since(marked) < EVERY) {
            return Ok(());
        }
        self.mark_clock_now()
    }

    /// The same at a clean end.
    pub(in crate::stores::sqlite) fn mark_clock_now(&mut self) -> Step<()> {
        let now = self.clock.now();
        // Each time: the transaction of the first mark may be rolled back.
        self.conn.execute_batch(
            "CREATE TABLE IF NOT EXISTS redrive_clock \
             (singleton INTEGER PRIMARY KEY CHECK (singleton = 1), newest INTEGER NOT NULL) STRICT",
        )?;
        self.conn
            .prepare_cached(
                "INSERT INTO redrive_clock (singleton, newest) VALUES (1, ?1) ON CONFLICT DO UPDATE SET newest = ?1",
            )?
            .execute([from_moment(now)])?;
        self.marked = Some(now);
        Ok(())
    }
}
