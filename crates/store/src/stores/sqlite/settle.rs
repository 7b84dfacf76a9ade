//! Settling: what became of an event, under the fence.
//!
//! Most settles are of events that ran once, with success and without a key: those are one `DELETE` that has
//! all conditions in it. Everything else reads the event first.

use std::sync::Arc;

use redrive_core::Moment;
use redrive_core::entry::{Change, Entry, Grant, Park, Seq, Settle, Settled};
use redrive_core::event::State;
use rusqlite::{OptionalExtension, params};

use super::desk::Desk;
use super::faults::{Fault, Step};
use super::held::{Held, Stand};
use super::numbers::{column, from_moment, stream_of, to_moment};
use super::receipt::{End, Receipt};
use super::rows::{EventRow, Stream, event_columns};

/// An event of which only the way it is held is known.
struct Ending {
    was_live: bool,
    id: String,
    key: Option<String>,
    calm: Moment,
}

impl Desk {
    /// Writes what became of events.
    pub(super) fn settle_all(&mut self, settles: &[Settle]) -> Step<Vec<Settled>> {
        settles.iter().map(|settle| self.settle(settle)).collect()
    }

    /// Writes what became of an event.
    pub(super) fn settle(&mut self, settle: &Settle) -> Step<Settled> {
        self.see(settle.at);
        if !self.is_current(settle.grant)? {
            return Ok(Settled::Fenced);
        }
        if settle.change == Change::Done && settle.rev == 0 && self.delete_plain(settle)? {
            return Ok(Settled::Applied { rev: 1, next: None });
        }
        let Some(stream) = self.names.of(&self.conn, stream_of(settle.seq))? else {
            return Ok(Settled::Stale);
        };
        let end = match &settle.change {
            Change::Done => None,
            Change::DoneWith { result, attempts, story } => {
                Some((State::Done, *attempts, story, result.as_ref()))
            }
            Change::Dropped { attempts, story } => Some((State::Dropped, *attempts, story, None)),
            Change::Expired { attempts, story } => Some((State::Expired, *attempts, story, None)),
            _ => return self.change(settle, &stream),
        };
        let end = end.map(|(state, attempts, story, result)| End {
            state,
            at: settle.at,
            attempts,
            story: story.clone(),
            result: result.cloned(),
        });
        self.end(settle, &stream, end)
    }

    /// Whether an event may still be settled with this rev.
    pub(super) fn is_there(&self, seq: Seq, rev: u32) -> rusqlite::Result<bool> {
        Ok(self.ending(seq, rev)?.is_some())
    }

    fn delete_plain(&self, settle: &Settle) -> rusqlite::Result<bool> {
        let deleted = self
            .conn
            .prepare_cached("DELETE FROM redrive_live WHERE seq = ?1 AND key IS NULL AND calm >= ?2")?
            .execute(params![column(settle.seq.0), from_moment(settle.at)])?;
        Ok(deleted == 1)
    }

    /// Takes an event away. Its receipt stays, with what its absence does not tell.
    fn end(&mut self, settle: &Settle, stream: &Stream, end: Option<End>) -> Step<Settled> {
        let Some(there) = self.ending(settle.seq, settle.rev)? else { return Ok(Settled::Stale) };
        if end.is_some() || settle.at > there.calm {
            self.stamp(stream, &there.id, settle.at, end)?;
        }
        self.remove(settle.seq, there.was_live)?;
        let next = match there.key {
            Some(key) => self.let_next(stream, &key)?,
            None => None,
        };
        Ok(Settled::Applied { rev: settle.rev + 1, next })
    }

    fn stamp(&mut self, stream: &Stream, id: &str, at: Moment, end: Option<End>) -> Step<()> {
        let window = self.window(&stream.queue)?;
        match Receipt::find(&self.conn, stream.id, id) {
            Ok(Some(mut receipt)) => {
                receipt.until = receipt.until.max(at + window);
                receipt.end = end;
                receipt.update(&self.conn)?;
                Ok(())
            }
            // A damaged receipt stays damaged: whoever asks for it is told so.
            Ok(None) | Err(Fault::Refused(_)) => Ok(()),
            Err(fault) => Err(fault),
        }
    }

    /// Changes an event that goes on living.
    fn change(&mut self, settle: &Settle, stream: &Stream) -> Step<Settled> {
        let Some((mut held, was_live)) = self.take_up(settle, stream)? else { return Ok(Settled::Stale) };
        held.rev += 1;
        let rev = held.rev;
        let next = match &settle.change {
            Change::Again(progress) => {
                let was = held.stand;
                held.progress = progress.clone();
                (held.reason, held.died, held.park_until, held.park_count) = (None, None, None, None);
                // An event that was blocked while it ran goes on being blocked.
                held.stand = if was == Stand::Blocked { was } else { Stand::Waits };
                self.keep(&held, was_live)?;
                if was.is_dead() {
                    self.bring_back(held, stream)?;
                }
                None
            }
            Change::Dead { reason, progress, park } => {
                held.progress = progress.clone();
                held.reason = Some(*reason);
                held.died = Some(settle.at);
                self.bury(held, was_live, *park, stream)?
            }
            Change::Strike => {
                held.progress.strikes = held.progress.strikes.saturating_add(1);
                held.progress.suspect = true;
                self.struck = true;
                self.keep(&held, was_live)?;
                None
            }
            Change::GoOn if held.stand.is_dead() => {
                held.rev -= 1; // `let_go` raises it
                self.let_go(stream, held)?
            }
            // Whoever lives holds nobody up by being dead: this was meant for an earlier one.
            _ => return Ok(Settled::Stale),
        };
        Ok(Settled::Applied { rev: self.rev_of(settle.seq)?.unwrap_or(rev), next })
    }

    /// A dead letter lives again: it is the head of its key, unless an earlier one is.
    fn bring_back(&mut self, mut held: Held, stream: &Stream) -> Step<()> {
        if let Some(key) = held.row.key() {
            if self.has_earlier(stream, key, held.row.seq)? {
                held.stand = Stand::Blocked;
                held.update(&self.conn)?;
                return Ok(());
            }
            self.block_head(stream, key, held.row.seq)?;
        }
        self.arrived.push(held.entry());
        Ok(())
    }

    fn has_earlier(&self, stream: &Stream, key: &str, seq: Seq) -> rusqlite::Result<bool> {
        let (first, _) = super::numbers::span(stream.id);
        self.conn
            .prepare_cached(
                "SELECT EXISTS (SELECT 1 FROM redrive_live WHERE key = ?1 AND seq >= ?2 AND seq < ?3) \
                 OR EXISTS (SELECT 1 FROM redrive_held WHERE key = ?1 AND state IN (0, 1, 2) \
                 AND seq >= ?2 AND seq < ?3)",
            )?
            .query_row(params![key, first, column(seq.0)], |row| row.get(0))
    }

    fn bury(&mut self, mut held: Held, was_live: bool, park: Park, stream: &Stream) -> Step<Option<Entry>> {
        let (holds, until, count) = match park {
            Park::GoOn => (false, None, None),
            Park::Stay => (true, None, None),
            Park::UpTo { until, count } => (true, until, count),
        };
        (held.park_until, held.park_count) = (until, count);
        let key = held.row.key().map(str::to_owned);
        let holds = holds && key.is_some();
        held.stand = if holds { Stand::DeadHolding } else { Stand::DeadPassed };
        self.keep(&held, was_live)?;
        match key {
            Some(key) if holds => self.relieve(stream, &key),
            Some(key) => self.let_next(stream, &key),
            None => Ok(None),
        }
    }

    /// Reads an event that is to be changed, and whether it never was before. What is damaged counts as gone:
    /// nothing of it is written.
    fn take_up(&self, settle: &Settle, stream: &Stream) -> Step<Option<(Held, bool)>> {
        if settle.rev == 0 {
            let live = self
                .conn
                .prepare_cached(concat!("SELECT ", event_columns!(), " FROM redrive_live WHERE seq = ?1"))?
                .query_row([column(settle.seq.0)], |row| Ok(EventRow::read(row, stream)))
                .optional()?;
            if let Some(live) = live {
                return Ok(live.ok().map(|row| (Held::fresh(row, Stand::Waits), true)));
            }
        }
        let held = Held::find(&self.conn, settle.seq, stream)?.and_then(Result::ok);
        Ok(held.filter(|held| held.rev == settle.rev).map(|held| (held, false)))
    }

    fn rev_of(&self, seq: Seq) -> rusqlite::Result<Option<u32>> {
        self.conn
            .prepare_cached("SELECT rev FROM redrive_held WHERE seq = ?1")?
            .query_row([column(seq.0)], |row| row.get(0))
            .optional()
    }

    fn ending(&self, seq: Seq, rev: u32) -> rusqlite::Result<Option<Ending>> {
        let read = |was_live: bool| {
            move |row: &rusqlite::Row<'_>| {
                Ok(Ending { was_live, id: row.get(0)?, key: row.get(1)?, calm: to_moment(row.get(2)?) })
            }
        };
        if rev == 0 {
            let live = self
                .conn
                .prepare_cached("SELECT id, key, calm FROM redrive_live WHERE seq = ?1")?
                .query_row([column(seq.0)], read(true))
                .optional()?;
            if live.is_some() {
                return Ok(live);
            }
        }
        self.conn
            .prepare_cached("SELECT id, key, calm FROM redrive_held WHERE seq = ?1 AND rev = ?2")?
            .query_row(params![column(seq.0), rev], read(false))
            .optional()
    }

    /// Settles what a transaction has done.
    pub(super) fn settle_done(
        &mut self,
        grant: Grant,
        (seq, rev): (Seq, u32),
        at: Moment,
        (attempts, story, result): (u32, Option<Arc<redrive_core::event::Story>>, Option<Vec<u8>>),
    ) -> Step<Settled> {
        let plain = result.is_none() && attempts <= 1 && story.is_none();
        let change = if plain { Change::Done } else { Change::DoneWith { result, attempts, story } };
        self.settle(&Settle { grant, seq, rev, at, change })
    }
}
