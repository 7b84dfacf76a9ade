//! How events ended, if they were not simply done at their first attempt.
//!
//! Beside the dedupe records, and by seq. On the dedupe record it would have to grow in the middle of a tree, and
//! split a page of it for every few events; here rows are added next to each other, because events end roughly in the
//! order of their seqs. An end that may be undone, or that leaves a replacement (discarded, edited), is on the dedupe
//! record: two such records may have one seq.

use redrive_core::queue_entry::Seq;
use rusqlite::{CachedStatement, Connection, OptionalExtension, params};

use super::dedupe::End;
use super::fresh::Damage;
use crate::stores::shared::dedupe::end_sum;
use crate::stores::shared::history::write_history;
use crate::stores::shared::numbers::{bits, column, from_moment};
use crate::stores::sqlite::faults::{Step, damaged};

/// The statement that writes ends.
pub(in crate::stores::sqlite) struct Ends<'a>(CachedStatement<'a>);

impl<'a> Ends<'a> {
    pub(in crate::stores::sqlite) fn writing(conn: &'a Connection) -> rusqlite::Result<Self> {
        conn.prepare_cached("INSERT OR REPLACE INTO redrive_ending VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)")
            .map(Self)
    }

    /// Writes how the event with this seq ended.
    pub(in crate::stores::sqlite) fn write(&mut self, end: &End, seq: Seq) -> rusqlite::Result<()> {
        let (seq, state, ended) = (column(seq.0), end.state.as_str(), from_moment(end.at));
        let (attempts, result) = (i64::from(end.attempts), end.result.as_deref());
        let history = write_history(end.history.as_deref());
        let left = (result, end.token.as_ref().map(<[u8; 16]>::as_slice));
        let crc = end_sum(seq, state, ended, attempts, history.as_deref(), left);
        self.0.execute(params![seq, state, ended, attempts, history, left.0, left.1, crc]).map(drop)
    }
}

impl End {
    /// How the event with this seq ended, if it is written here.
    pub(in crate::stores::sqlite) fn find(conn: &Connection, seq: Seq) -> Step<Option<Self>> {
        let found = conn
            .prepare_cached(
                "SELECT state, ended, attempts, history, result, token, crc FROM redrive_ending WHERE seq = ?1",
            )?
            .query_row([column(seq.0)], |row| Ok(Self::read(row, seq)))
            .optional()?;
        found.transpose().map_err(|Damage| damaged("redrive_ending", seq.0).into())
    }

    /// Checks all of them, and lists damaged ones.
    pub(in crate::stores::sqlite) fn check_all(
        conn: &Connection,
        mut damaged: impl FnMut(i64),
    ) -> rusqlite::Result<()> {
        let mut select = conn
            .prepare("SELECT state, ended, attempts, history, result, token, crc, seq FROM redrive_ending")?;
        let mut rows = select.query([])?;
        while let Some(row) = rows.next()? {
            let seq = row.get(7)?;
            if Self::read(row, Seq(bits(seq))).is_err() {
                damaged(seq);
            }
        }
        Ok(())
    }
}

/// Deletes the end that belongs to a dedupe record. If its end is on the dedupe record, another event may have its
/// seq, and the end of that one stays.
pub(in crate::stores::sqlite) fn delete_end(
    conn: &Connection,
    stream: u32,
    id: &str,
) -> rusqlite::Result<()> {
    conn.prepare_cached(
        "DELETE FROM redrive_ending WHERE seq = \
         (SELECT seq FROM redrive_dedupe WHERE stream = ?1 AND id = ?2 AND state IS NULL)",
    )?
    .execute(params![stream, id])
    .map(drop)
}
