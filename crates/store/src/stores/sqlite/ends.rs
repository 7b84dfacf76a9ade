//! How events ended, where their absence does not say it all.
//!
//! Beside the receipts, and by seq. On the receipt it would have to grow in the middle of a tree, and split a page of
//! it for every few events; here rows are added next to each other, because events end much in the order of their
//! seqs. What may be taken back, or leaves another in its place (discarded, edited), is on the receipt: of such there
//! may be two with one seq.

use redrive_core::entry::Seq;
use rusqlite::{CachedStatement, Connection, OptionalExtension, params};

use super::faults::{Step, damaged};
use super::numbers::{bits, column, from_moment};
use super::receipt::End;
use super::rows::Damage;
use super::stories::write_story;
use crate::stores::shared::receipt::end_sum;

/// The statement that writes ends.
pub(super) struct Ends<'a>(CachedStatement<'a>);

impl<'a> Ends<'a> {
    pub(super) fn writing(conn: &'a Connection) -> rusqlite::Result<Self> {
        conn.prepare_cached("INSERT OR REPLACE INTO redrive_end VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)")
            .map(Self)
    }

    /// Writes how the event with this seq ended.
    pub(super) fn write(&mut self, end: &End, seq: Seq) -> rusqlite::Result<()> {
        let (seq, state, ended) = (column(seq.0), end.state.as_str(), from_moment(end.at));
        let (attempts, result) = (i64::from(end.attempts), end.result.as_deref());
        let story = write_story(end.story.as_deref());
        let left = (result, end.token.as_ref().map(<[u8; 16]>::as_slice));
        let crc = end_sum(seq, state, ended, attempts, story.as_deref(), left);
        self.0.execute(params![seq, state, ended, attempts, story, left.0, left.1, crc]).map(drop)
    }
}

impl End {
    /// How the event with this seq ended, if it is written here.
    pub(super) fn find(conn: &Connection, seq: Seq) -> Step<Option<Self>> {
        let found = conn
            .prepare_cached(
                "SELECT state, ended, attempts, story, result, token, crc FROM redrive_end WHERE seq = ?1",
            )?
            .query_row([column(seq.0)], |row| Ok(Self::read(row, seq)))
            .optional()?;
        found.transpose().map_err(|Damage| damaged("redrive_end", seq.0).into())
    }

    /// Looks at all of them, and names those that are damaged.
    pub(super) fn check_all(conn: &Connection, mut damaged: impl FnMut(i64)) -> rusqlite::Result<()> {
        let mut select =
            conn.prepare("SELECT state, ended, attempts, story, result, token, crc, seq FROM redrive_end")?;
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

/// Forgets how the event of a receipt ended. Where its end is on the receipt, another may have its seq, and that one's
/// end stays.
pub(super) fn delete_end(conn: &Connection, stream: u32, id: &str) -> rusqlite::Result<()> {
    conn.prepare_cached(
        "DELETE FROM redrive_end WHERE seq = \
         (SELECT seq FROM redrive_receipt WHERE stream = ?1 AND id = ?2 AND state IS NULL)",
    )?
    .execute(params![stream, id])
    .map(drop)
}
