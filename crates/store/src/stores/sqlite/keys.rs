//! The order of a key.
//!
//! The head of a key is its smallest living seq, whatever its due time; a dead letter counts while it holds up
//! those that follow. Only the head is in `redrive_live` or waits for its time in `redrive_held`; everybody
//! else of the key is blocked, by the commit that published it, until the commit that ends the head puts the
//! next one there. So no load has to look for heads: what it finds are heads. A head that a rule withholds, or that
//! somebody outside has, is a head all the same.

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
                 OR EXISTS (SELECT 1 FROM redrive_held WHERE key = ?1 AND state IN (0, 1, 2, 4, 6) \
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
                 OR EXISTS (SELECT 1 FROM redrive_held WHERE key = ?1 AND state IN (0, 2, 4, 6) \
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
                held.stand = self.head_stand(stream, key)?;
                held.update(&self.conn)?;
                if held.stand == Stand::Withheld {
                    return Ok(None);
                }
                let entry = held.entry();
                self.arrive(entry.clone(), stream)?;
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

    /// The head of a key is none any more: the next one may run. It may be a dead letter, one that died when an
    /// earlier one was put back before it; then that holds up the key, as far as it may.
    pub(super) fn go_on(&mut self, stream: &Stream, key: &str) -> Step<Option<Entry>> {
        match self.let_next(stream, key)? {
            Some(next) => Ok(Some(next)),
            None => self.relieve(stream, key),
        }
    }

    /// The dead letter that holds up a key, if that is its head. A damaged one is not told, and holds on: nobody knows
    /// how many it may hold up.
    pub(super) fn parking_head(&self, stream: &Stream, key: &str) -> Step<Option<Held>> {
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
        let Some(Ok(dead)) = dead else { return Ok(None) };
        Ok(if self.has_earlier(stream, key, dead.row.seq)? { None } else { Some(dead) })
    }

    /// Lets those go on that wait behind a dead letter, if there are more of them than it may hold up.
    pub(super) fn relieve(&mut self, stream: &Stream, key: &str) -> Step<Option<Entry>> {
        let Some(dead) = self.parking_head(stream, key)? else { return Ok(None) };
        let Some(count) = dead.park_count else { return Ok(None) };
        let (first, last) = span(stream.id);
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
        if dead.stand == Stand::DeadHolding {
            self.uncount_hold(stream.id, dead.cause)?;
        }
        dead.stand = Stand::DeadPassed;
        dead.rev += 1;
        dead.update(&self.conn)?;
        match dead.row.key() {
            Some(key) => self.go_on(stream, key),
            None => Ok(None),
        }
    }

    /// Takes the head of a key out of those that may run: an earlier one came back to life, or a rule withholds
    /// the key. It keeps its rev: it may be under way, and then its settle still counts. Whether one that might have run was there.
    pub(super) fn push_back(
        &mut self,
        stream: &Stream,
        key: &str,
        except: Option<Seq>,
        to: Stand,
    ) -> Step<bool> {
        let mut is_pushed = false;
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
            Held::fresh(row, to).insert(&self.conn)?;
            is_pushed = true;
        }
        let except = except.map_or(-1, |seq| column(seq.0));
        let waits = self
            .conn
            .prepare_cached(concat!(
                "SELECT ",
                held_columns!(),
                " FROM redrive_held WHERE key = ?1 AND state IN (0, 4) AND seq BETWEEN ?2 AND ?3 AND seq <> ?4 LIMIT 1"
            ))?
            .query_row(params![key, first, last, except], |row| Ok(Held::read(row, stream)))
            .optional()?;
        if let Some(Ok(mut held)) = waits {
            is_pushed |= held.stand == Stand::Waits;
            held.stand = to;
            held.update(&self.conn)?;
        }
        Ok(is_pushed)
    }

    /// Lets the head of a key run that a rule withheld, if no other rule does.
    pub(super) fn hand_out(&mut self, stream: &Stream, key: &str) -> Step<()> {
        if self.head_stand(stream, key)? == Stand::Withheld {
            return Ok(());
        }
        let (first, last) = span(stream.id);
        let withheld = self
            .conn
            .prepare_cached(concat!(
                "SELECT ",
                held_columns!(),
                " FROM redrive_held WHERE key = ?1 AND state = 4 AND seq BETWEEN ?2 AND ?3 LIMIT 1"
            ))?
            .query_row(params![key, first, last], |row| Ok((row.get(0)?, Held::read(row, stream))))
            .optional()?;
        match withheld {
            None => {}
            Some((_, Ok(mut held))) => {
                held.stand = Stand::Waits;
                held.update(&self.conn)?;
                self.arrive(held.entry(), stream)?;
            }
            // The next load names it.
            Some((seq, Err(_))) => {
                self.set_state(seq, Stand::Waits)?;
                self.foreign = true;
            }
        }
        Ok(())
    }

    /// An event lives again, or goes on living: it is the head of its key, unless an earlier one is. Told as an
    /// arrival where it may run.
    pub(super) fn revive(&mut self, mut held: Held, was_live: bool, stream: &Stream) -> Step<()> {
        held.stand = Stand::Waits;
        if let Some(key) = held.row.key() {
            if self.has_earlier(stream, key, held.row.seq)? {
                held.stand = Stand::Blocked;
            } else {
                // The head until now waits behind it, and the owner may have it in its hands.
                self.recall |= self.push_back(stream, key, Some(held.row.seq), Stand::Blocked)?;
                held.stand = self.head_stand(stream, key)?;
            }
        }
        self.keep(&held, was_live)?;
        if held.stand == Stand::Waits {
            self.arrive(held.entry(), stream)?;
        }
        Ok(())
    }

    /// An event may run, now or when it is due. Those that are pulled are not for the owner.
    pub(super) fn arrive(&mut self, entry: Entry, stream: &Stream) -> rusqlite::Result<()> {
        if !self.spec(&stream.queue)?.is_some_and(|queue| queue.pull) {
            self.arrived.push(entry);
        }
        Ok(())
    }

    /// Whether an earlier one of a key lives, or holds it up.
    pub(super) fn has_earlier(&self, stream: &Stream, key: &str, seq: Seq) -> rusqlite::Result<bool> {
        let (first, _) = span(stream.id);
        self.conn
            .prepare_cached(
                "SELECT EXISTS (SELECT 1 FROM redrive_live WHERE key = ?1 AND seq >= ?2 AND seq < ?3) \
                 OR EXISTS (SELECT 1 FROM redrive_held WHERE key = ?1 AND state IN (0, 1, 2, 4, 6) \
                 AND seq >= ?2 AND seq < ?3)",
            )?
            .query_row(params![key, first, column(seq.0)], |row| row.get(0))
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
