//! The order of a key.
//!
//! The head of a key is its smallest living seq, whatever its due time; a dead letter counts while it holds up
//! those that follow. Only the head is in `redrive_live` or waits for its time in `redrive_held`; everybody
//! else of the key is blocked, by the commit that published it, until the commit that ends the head puts the
//! next one there. So no load has to look for heads: what it finds are heads.

use redrive_core::entry::{Entry, Seq, StreamId};
use rusqlite::{OptionalExtension, params};

use super::desk::Desk;
use super::faults::Step;
use super::held::{Held, Stand, delete_held, held_columns};
use super::numbers::{column, span};
use super::rows::{EventRow, Stream, delete_live, event_columns};

impl Desk {
    /// Whether something of this key comes before a new event.
    pub(super) fn is_held_up(&self, stream: StreamId, key: &str) -> rusqlite::Result<bool> {
        let (first, last) = span(stream);
        self.conn
            .prepare_cached(
                "SELECT EXISTS (SELECT 1 FROM redrive_live WHERE key = ?1 AND seq BETWEEN ?2 AND ?3) \
                 OR EXISTS (SELECT 1 FROM redrive_held WHERE key = ?1 AND state IN (0, 1, 2) \
                 AND seq BETWEEN ?2 AND ?3)",
            )?
            .query_row(params![key, first, last], |row| row.get(0))
    }

    /// Lets the next of a key run, if nobody of it is before it any more.
    pub(super) fn let_next(&mut self, stream: &Stream, key: &str) -> Step<Option<Entry>> {
        let (first, last) = span(stream.id);
        let has_head: bool = self
            .conn
            .prepare_cached(
                "SELECT EXISTS (SELECT 1 FROM redrive_live WHERE key = ?1 AND seq BETWEEN ?2 AND ?3) \
                 OR EXISTS (SELECT 1 FROM redrive_held WHERE key = ?1 AND state IN (0, 2) \
                 AND seq BETWEEN ?2 AND ?3)",
            )?
            .query_row(params![key, first, last], |row| row.get(0))?;
        if has_head {
            return Ok(None);
        }
        let next = self
            .conn
            .prepare_cached(concat!(
                "SELECT ",
                held_columns!(),
                " FROM redrive_held WHERE key = ?1 AND state = 1 AND seq BETWEEN ?2 AND ?3 ORDER BY seq LIMIT 1"
            ))?
            .query_row(params![key, first, last], |row| Ok((row.get(0)?, Held::read(row, stream))))
            .optional()?;
        match next {
            None => Ok(None),
            Some((_, Ok(mut held))) => {
                held.stand = Stand::Waits;
                held.update(&self.conn)?;
                let entry = held.entry();
                self.arrived.push(entry.clone());
                Ok(Some(entry))
            }
            // It keeps its wrong checksum, so that the next load names it; its key stands still until then.
            Some((seq, Err(_))) => {
                self.set_state(seq, Stand::Waits)?;
                self.foreign = true;
                Ok(None)
            }
        }
    }

    /// Lets those go on that wait behind a dead letter, if there are more of them than it may hold up.
    pub(super) fn relieve(&mut self, stream: &Stream, key: &str) -> Step<Option<Entry>> {
        let (first, last) = span(stream.id);
        let dead = self
            .conn
            .prepare_cached(concat!(
                "SELECT ",
                held_columns!(),
                " FROM redrive_held WHERE key = ?1 AND state = 2 AND seq BETWEEN ?2 AND ?3 ORDER BY seq LIMIT 1"
            ))?
            .query_row(params![key, first, last], |row| Ok(Held::read(row, stream)))
            .optional()?;
        // A damaged dead letter holds on: nobody knows how many it may hold up.
        let Some(Ok(dead)) = dead else { return Ok(None) };
        let Some(count) = dead.park_count else { return Ok(None) };
        let waiting: u32 = self
            .conn
            .prepare_cached(
                "SELECT count(*) FROM (SELECT 1 FROM redrive_held WHERE key = ?1 AND state = 1 \
                 AND seq BETWEEN ?2 AND ?3 LIMIT ?4)",
            )?
            .query_row(params![key, first, last, i64::from(count) + 1], |row| row.get(0))?;
        if waiting <= count { Ok(None) } else { self.let_go(stream, dead) }
    }

    /// Ends the hold of a dead letter over those that follow.
    pub(super) fn let_go(&mut self, stream: &Stream, mut dead: Held) -> Step<Option<Entry>> {
        dead.stand = Stand::DeadPassed;
        dead.rev += 1;
        dead.update(&self.conn)?;
        match dead.row.key() {
            Some(key) => self.let_next(stream, key),
            None => Ok(None),
        }
    }

    /// Blocks the head of a key, because an earlier one came back to life. It keeps its rev: it may be under
    /// way, and then its settle still counts.
    pub(super) fn block_head(&mut self, stream: &Stream, key: &str, back: Seq) -> Step<()> {
        let (first, last) = span(stream.id);
        let live = self
            .conn
            .prepare_cached(concat!(
                "SELECT ",
                event_columns!(),
                " FROM redrive_live WHERE key = ?1 AND seq BETWEEN ?2 AND ?3"
            ))?
            .query_row(params![key, first, last], |row| Ok(EventRow::read(row, stream)))
            .optional()?;
        if let Some(Ok(row)) = live {
            delete_live(&self.conn, row.seq)?;
            Held::fresh(row, Stand::Blocked).insert(&self.conn)?;
        }
        let waits = self
            .conn
            .prepare_cached(concat!(
                "SELECT ",
                held_columns!(),
                " FROM redrive_held WHERE key = ?1 AND state = 0 AND seq BETWEEN ?2 AND ?3 AND seq <> ?4"
            ))?
            .query_row(params![key, first, last, column(back.0)], |row| Ok(Held::read(row, stream)))
            .optional()?;
        if let Some(Ok(mut held)) = waits {
            held.stand = Stand::Blocked;
            held.update(&self.conn)?;
        }
        Ok(())
    }

    fn set_state(&self, seq: i64, stand: Stand) -> rusqlite::Result<()> {
        self.conn
            .prepare_cached("UPDATE redrive_held SET state = ?2 WHERE seq = ?1")?
            .execute(params![seq, stand as i64])
            .map(drop)
    }

    /// Puts a changed event where it belongs: among the held, wherever it was before.
    pub(super) fn keep(&self, held: &Held, was_live: bool) -> rusqlite::Result<()> {
        if was_live {
            delete_live(&self.conn, held.row.seq)?;
            held.insert(&self.conn)
        } else {
            held.update(&self.conn)
        }
    }

    /// Takes an event away.
    pub(super) fn remove(&self, seq: Seq, was_live: bool) -> rusqlite::Result<()> {
        if was_live { delete_live(&self.conn, seq) } else { delete_held(&self.conn, seq) }.map(drop)
    }
}
