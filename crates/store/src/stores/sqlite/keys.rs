//! The order of a key.
//!
//! The head of a key is its smallest living seq, whatever its due time; a dead letter counts while it blocks the later
//! events. Only the head is in `redrive_fresh`, or waits for its time in `redrive_tracked`. The commit that publishes
//! any other event of the key marks it as blocked, until the commit that ends the head makes the next one the head. So
//! a load need not look for heads: all it finds are heads. A head that a rule withholds, or that is leased, is a head
//! all the same.

use redrive_core::queue_entry::{QueueEntry, Seq, StreamId};
use rusqlite::{OptionalExtension, params};

use super::events::fresh::{EventRow, Stream, delete_fresh, event_columns};
use super::events::tracked::{RowState, TrackedEvent, delete_tracked, tracked_columns};
use super::faults::Step;
use super::writer::tx::WriterTx;
use crate::stores::shared::numbers::{column, span};
use crate::stores::shared::tracked::states;

impl WriterTx {
    /// Whether an event of this key comes before a new one.
    pub(super) fn is_held_up(&self, stream: StreamId, key: &str) -> rusqlite::Result<bool> {
        let (first, last) = span(stream);
        self.conn
            .prepare_cached(concat!(
                "SELECT EXISTS (SELECT 1 FROM redrive_fresh WHERE key = ?1 AND seq BETWEEN ?2 AND ?3) \
                 OR EXISTS (SELECT 1 FROM redrive_tracked WHERE key = ?1 AND state IN (",
                states!(Waiting, Blocked, DeadHolding, Withheld, Leased),
                ") \
                 AND seq BETWEEN ?2 AND ?3)"
            ))?
            .query_row(params![key, first, last], |row| row.get(0))
    }

    /// Lets the next event of a key run, if no earlier one is left.
    pub(super) fn let_next(&mut self, stream: &Stream, key: &str) -> Step<Option<QueueEntry>> {
        let (first, last) = span(stream.id);
        let has_head: bool = self
            .conn
            .prepare_cached(concat!(
                "SELECT EXISTS (SELECT 1 FROM redrive_fresh WHERE key = ?1 AND seq BETWEEN ?2 AND ?3) \
                 OR EXISTS (SELECT 1 FROM redrive_tracked WHERE key = ?1 AND state IN (",
                states!(Waiting, DeadHolding, Withheld, Leased),
                ") \
                 AND seq BETWEEN ?2 AND ?3)"
            ))?
            .query_row(params![key, first, last], |row| row.get(0))?;
        if has_head {
            return Ok(None);
        }
        let next = self
            .conn
            .prepare_cached(concat!(
                "SELECT ",
                tracked_columns!(),
                " FROM redrive_tracked WHERE key = ?1 AND state = ",
                states!(Blocked),
                " AND seq BETWEEN ?2 AND ?3 ORDER BY seq LIMIT 1"
            ))?
            .query_row(params![key, first, last], |row| Ok((row.get(0)?, TrackedEvent::read(row, stream))))
            .optional()?;
        match next {
            None => Ok(None),
            Some((_, Ok(mut tracked))) => {
                tracked.state = self.head_state(stream, key)?;
                tracked.update(&self.conn)?;
                if tracked.state == RowState::Withheld {
                    return Ok(None);
                }
                let entry = tracked.entry();
                self.arrive(entry.clone(), stream)?;
                Ok(Some(entry))
            }
            // It keeps its wrong checksum, so that the next load reports it; its key is blocked until then.
            Some((seq, Err(_))) => {
                self.set_state(seq, RowState::Waiting)?;
                self.foreign = true;
                Ok(None)
            }
        }
    }

    /// The head of a key is gone: the next event may run. That may be a dead letter, if it died while an earlier one
    /// was redriven before it; then it blocks the key, as far as it may.
    pub(super) fn go_on(&mut self, stream: &Stream, key: &str) -> Step<Option<QueueEntry>> {
        match self.let_next(stream, key)? {
            Some(next) => Ok(Some(next)),
            None => self.relieve(stream, key),
        }
    }

    /// The dead letter that blocks a key, if it is the head. A damaged one is left out, and keeps blocking: how many
    /// events it may block is unreadable.
    pub(super) fn parking_head(&self, stream: &Stream, key: &str) -> Step<Option<TrackedEvent>> {
        let (first, last) = span(stream.id);
        let dead = self
            .conn
            .prepare_cached(concat!(
                "SELECT ",
                tracked_columns!(),
                " FROM redrive_tracked WHERE key = ?1 AND state = ",
                states!(DeadHolding),
                " AND seq BETWEEN ?2 AND ?3 ORDER BY seq LIMIT 1"
            ))?
            .query_row(params![key, first, last], |row| Ok(TrackedEvent::read(row, stream)))
            .optional()?;
        let Some(Ok(dead)) = dead else { return Ok(None) };
        Ok(if self.has_earlier(stream, key, dead.row.seq)? { None } else { Some(dead) })
    }

    /// All dead letters that block a key. Damaged ones are left out.
    pub(super) fn parked_letters(&self, stream: &Stream, key: &str) -> rusqlite::Result<Vec<TrackedEvent>> {
        let (first, last) = span(stream.id);
        let mut select = self.conn.prepare_cached(concat!(
            "SELECT ",
            tracked_columns!(),
            " FROM redrive_tracked WHERE key = ?1 AND state = ",
            states!(DeadHolding),
            " AND seq BETWEEN ?2 AND ?3 ORDER BY seq"
        ))?;
        let rows =
            select.query_map(params![key, first, last], |row| Ok(TrackedEvent::read(row, stream).ok()))?;
        rows.filter_map(Result::transpose).collect()
    }

    /// Unblocks the events behind a dead letter, if there are more of them than it may block.
    pub(super) fn relieve(&mut self, stream: &Stream, key: &str) -> Step<Option<QueueEntry>> {
        let Some(dead) = self.parking_head(stream, key)? else { return Ok(None) };
        let Some(count) = dead.park_count else { return Ok(None) };
        let (first, last) = span(stream.id);
        let waiting: u32 = self
            .conn
            .prepare_cached(concat!(
                "SELECT count(*) FROM (SELECT 1 FROM redrive_tracked WHERE key = ?1 AND state = ",
                states!(Blocked),
                " \
                 AND seq BETWEEN ?2 AND ?3 LIMIT ?4)"
            ))?
            .query_row(params![key, first, last, i64::from(count) + 1], |row| row.get(0))?;
        if waiting <= count { Ok(None) } else { self.let_go(stream, dead) }
    }

    /// Ends the block of a dead letter on its key.
    pub(super) fn let_go(&mut self, stream: &Stream, mut dead: TrackedEvent) -> Step<Option<QueueEntry>> {
        if dead.state == RowState::DeadHolding {
            self.uncount_hold(stream.id, dead.cause)?;
        }
        dead.state = RowState::DeadPassed;
        dead.rev += 1;
        dead.update(&self.conn)?;
        match dead.row.key() {
            Some(key) => self.go_on(stream, key),
            None => Ok(None),
        }
    }

    /// Makes the head of a key not runnable: an earlier one lives again, or a rule withholds the key. It keeps its
    /// rev: it may be running, and then its settle still counts. Returns whether a runnable head was there.
    pub(super) fn push_back(
        &mut self,
        stream: &Stream,
        key: &str,
        except: Option<Seq>,
        to: RowState,
    ) -> Step<bool> {
        let mut is_pushed = false;
        let (first, last) = span(stream.id);
        let fresh = self
            .conn
            .prepare_cached(concat!(
                "SELECT ",
                event_columns!(),
                " FROM redrive_fresh WHERE key = ?1 AND seq BETWEEN ?2 AND ?3"
            ))?
            .query_row(params![key, first, last], |row| Ok(EventRow::read(row, stream)))
            .optional()?;
        if let Some(Ok(row)) = fresh {
            delete_fresh(&self.conn, row.seq)?;
            TrackedEvent::fresh(row, to).insert(&self.conn)?;
            is_pushed = true;
        }
        let except = except.map_or(-1, |seq| column(seq.0));
        let waits = self
            .conn
            .prepare_cached(concat!(
                "SELECT ",
                tracked_columns!(),
                " FROM redrive_tracked WHERE key = ?1 AND state IN (",
                states!(Waiting, Withheld),
                ") AND seq BETWEEN ?2 AND ?3 AND seq <> ?4 LIMIT 1"
            ))?
            .query_row(params![key, first, last, except], |row| Ok(TrackedEvent::read(row, stream)))
            .optional()?;
        if let Some(Ok(mut tracked)) = waits {
            is_pushed |= tracked.state == RowState::Waiting;
            tracked.state = to;
            tracked.update(&self.conn)?;
        }
        Ok(is_pushed)
    }

    /// Lets the withheld head of a key run, if no other rule withholds it.
    pub(super) fn hand_out(&mut self, stream: &Stream, key: &str) -> Step<()> {
        if self.head_state(stream, key)? == RowState::Withheld {
            return Ok(());
        }
        let (first, last) = span(stream.id);
        let withheld = self
            .conn
            .prepare_cached(concat!(
                "SELECT ",
                tracked_columns!(),
                " FROM redrive_tracked WHERE key = ?1 AND state = ",
                states!(Withheld),
                " AND seq BETWEEN ?2 AND ?3 LIMIT 1"
            ))?
            .query_row(params![key, first, last], |row| Ok((row.get(0)?, TrackedEvent::read(row, stream))))
            .optional()?;
        match withheld {
            None => {}
            Some((_, Ok(mut tracked))) => {
                tracked.state = RowState::Waiting;
                tracked.update(&self.conn)?;
                self.arrive(tracked.entry(), stream)?;
            }
            // The next load reports it.
            Some((seq, Err(_))) => {
                self.set_state(seq, RowState::Waiting)?;
                self.foreign = true;
            }
        }
        Ok(())
    }

    /// An event lives again, or goes on living: it becomes the head of its key, unless an earlier one is. Announced as
    /// an arrival if it may run.
    pub(super) fn revive(&mut self, mut tracked: TrackedEvent, was_fresh: bool, stream: &Stream) -> Step<()> {
        tracked.state = RowState::Waiting;
        if let Some(key) = tracked.row.key() {
            if self.has_earlier(stream, key, tracked.row.seq)? {
                tracked.state = RowState::Blocked;
            } else {
                // The previous head waits behind it, and the owner may have that in memory.
                self.recall |= self.push_back(stream, key, Some(tracked.row.seq), RowState::Blocked)?;
                tracked.state = self.head_state(stream, key)?;
            }
        }
        self.keep(&tracked, was_fresh)?;
        if tracked.state == RowState::Waiting {
            self.arrive(tracked.entry(), stream)?;
        }
        Ok(())
    }

    /// An event may run, now or when it is due. Events of a pulled queue are not for the owner.
    pub(super) fn arrive(&mut self, entry: QueueEntry, stream: &Stream) -> rusqlite::Result<()> {
        if !self.spec(&stream.queue)?.is_some_and(|queue| queue.pull) {
            self.arrived.push(entry);
        }
        Ok(())
    }

    /// Whether an earlier event of a key lives, or blocks it.
    pub(super) fn has_earlier(&self, stream: &Stream, key: &str, seq: Seq) -> rusqlite::Result<bool> {
        let (first, _) = span(stream.id);
        self.conn
            .prepare_cached(concat!(
                "SELECT EXISTS (SELECT 1 FROM redrive_fresh WHERE key = ?1 AND seq >= ?2 AND seq < ?3) \
                 OR EXISTS (SELECT 1 FROM redrive_tracked WHERE key = ?1 AND state IN (",
                states!(Waiting, Blocked, DeadHolding, Withheld, Leased),
                ") \
                 AND seq >= ?2 AND seq < ?3)"
            ))?
            .query_row(params![key, first, column(seq.0)], |row| row.get(0))
    }

    fn set_state(&self, seq: i64, state: RowState) -> rusqlite::Result<()> {
        self.conn
            .prepare_cached("UPDATE redrive_tracked SET state = ?2 WHERE seq = ?1")?
            .execute(params![seq, state as i64])
            .map(drop)
    }

    /// Writes a changed event: moves it from the fresh ones, or updates it among the tracked ones.
    pub(super) fn keep(&self, tracked: &TrackedEvent, was_fresh: bool) -> rusqlite::Result<()> {
        if was_fresh {
            delete_fresh(&self.conn, tracked.row.seq)?;
            tracked.insert(&self.conn)
        } else {
            tracked.update(&self.conn)
        }
    }

    /// Deletes an event.
    pub(super) fn remove(&self, seq: Seq, was_fresh: bool) -> rusqlite::Result<()> {
        if was_fresh { delete_fresh(&self.conn, seq) } else { delete_tracked(&self.conn, seq) }.map(drop)
    }
}
