//! Settling: what became of an event, under the fence.
//!
//! Most settles are of events that ran once, with success and without a key: those are one `DELETE` that has
//! all conditions in it, and one for all of those that are next to each other. Everything else reads the event first.

use std::sync::Arc;

use redrive_core::Moment;
use redrive_core::entry::{Change, Entry, Grant, Park, Seq, Settle, Settled};
use redrive_core::event::State;
use redrive_core::triage::CauseId;
use rusqlite::{OptionalExtension, params};

use super::desk::Desk;
use super::ends::Ends;
use super::faults::{Fault, Step};
use super::held::{Held, PutBack, Stand};
use super::ledger::Outcome;
use super::numbers::{bits, column, from_moment, stream_of, to_moment};
use super::receipt::{End, Receipt, ending_of};
use super::rows::{EventRow, Stream, event_columns};
use super::runs::{is_continued, is_late_success};

/// An event of which only the way it is held is known.
struct Ending {
    was_live: bool,
    id: String,
    key: Option<String>,
    calm: Moment,
    grave: Option<Grave>,
    put_back: Option<PutBack>,
}

/// Where a dead letter is counted.
struct Grave {
    cause: Option<CauseId>,
    holding: bool,
}

impl Ending {
    fn of(held: &Held, was_live: bool) -> Self {
        let grave = held
            .stand
            .is_dead()
            .then(|| Grave { cause: held.cause, holding: held.stand == Stand::DeadHolding });
        Self {
            was_live,
            id: held.row.event.id.clone(),
            key: held.row.key().map(str::to_owned),
            calm: held.row.calm,
            grave,
            put_back: held.put_back,
        }
    }
}

/// From how many events next to each other on they are taken away together.
const RUN_LEAST: usize = 3;

/// Whether two settles are of events next to each other, and both have nothing to say.
fn is_followed(settle: &Settle, next: &Settle) -> bool {
    let is_plain = |settle: &Settle| settle.change == Change::Done && settle.rev == 0;
    settle.seq.0.checked_add(1) == Some(next.seq.0)
        && settle.grant == next.grant
        && is_plain(settle)
        && is_plain(next)
}

impl Desk {
    /// Writes what became of events.
    pub(super) fn settle_all(&mut self, settles: &[Settle], answers: &mut Vec<Settled>) -> Step<()> {
        answers.clear();
        for run in settles.chunk_by(|settle, next| is_followed(settle, next) || is_continued(settle, next)) {
            let are_gone = run.len() >= RUN_LEAST
                && if run.iter().all(is_late_success) { self.end_run(run)? } else { self.delete_run(run)? };
            if are_gone {
                answers.extend(run.iter().map(|settle| Settled::Applied { rev: settle.rev + 1, next: None }));
            } else {
                for settle in run {
                    answers.push(self.settle(settle)?);
                }
            }
        }
        Ok(())
    }

    /// Takes away events that ran once, with success, and that are next to each other. `false`, and nothing is done,
    /// where one of them is not there any more, or wants more than to be taken away.
    fn delete_run(&mut self, run: &[Settle]) -> Step<bool> {
        let ([first, .., last], Some(at)) = (run, run.iter().map(|settle| settle.at).max()) else {
            return Ok(false);
        };
        self.see(at);
        if !self.is_current(first.grant)? {
            return Ok(false);
        }
        let span = params![column(first.seq.0), column(last.seq.0), from_moment(at)];
        // Counted first, because of what is gone nobody can say whether it was there.
        let there: i64 = self
            .conn
            .prepare_cached(
                "SELECT count(*) FROM redrive_live WHERE seq BETWEEN ?1 AND ?2 AND key IS NULL AND calm >= ?3",
            )?
            .query_row(span, |row| row.get(0))?;
        if usize::try_from(there) != Ok(run.len()) {
            return Ok(false);
        }
        self.conn
            .prepare_cached("DELETE FROM redrive_live WHERE seq BETWEEN ?1 AND ?2")?
            .execute([column(first.seq.0), column(last.seq.0)])?;
        Ok(true)
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
        let changed = match ending_of(&settle.change, settle.at) {
            Some(end) => match self.ending(settle.seq, settle.rev)? {
                Some(there) => {
                    let next = self.end(settle.seq, there, &stream, settle.at, end)?;
                    Some((settle.rev + 1, next))
                }
                None => None,
            },
            None => match self.take_up(settle, &stream)? {
                Some((held, was_live)) => self.change(held, was_live, &settle.change, settle.at, &stream)?,
                None => None,
            },
        };
        Ok(changed.map_or(Settled::Stale, |(rev, next)| Settled::Applied { rev, next }))
    }

    /// Writes what became of an event that was read. Its new rev, and who of its key may run now; nothing where
    /// the change was meant for an event in another state.
    pub(super) fn apply(
        &mut self,
        (held, was_live): (Held, bool),
        change: &Change,
        at: Moment,
        stream: &Stream,
    ) -> Step<Option<(u32, Option<Entry>)>> {
        let Some(mut end) = ending_of(change, at) else {
            return self.change(held, was_live, change, at, stream);
        };
        if let (Some(end), Some(mark)) = (&mut end, held.lease) {
            let did_it = end.state == State::Done && end.attempts == mark.attempt;
            end.token = did_it.then_some(mark.token);
        }
        let next = self.end(held.row.seq, Ending::of(&held, was_live), stream, at, end)?;
        Ok(Some((held.rev + 1, next)))
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

    /// Takes an event away. Its receipt stays, and what its absence does not tell is written beside it.
    fn end(
        &mut self,
        seq: Seq,
        there: Ending,
        stream: &Stream,
        at: Moment,
        end: Option<End>,
    ) -> Step<Option<Entry>> {
        let outcome = match &end {
            Some(end) if end.state != State::Done => Outcome::Other,
            _ => Outcome::Done,
        };
        self.charge(there.put_back, outcome)?;
        if let Some(grave) = there.grave {
            self.uncount_death(stream.id, grave.cause, grave.holding)?;
        }
        if let Some(end) = end {
            Ends::writing(&self.conn)?.write(&end, seq)?;
        }
        if at > there.calm {
            self.stamp(stream, &there.id, at, None)?;
        }
        self.remove(seq, there.was_live)?;
        match there.key {
            Some(key) => self.go_on(stream, &key),
            None => Ok(None),
        }
    }

    /// Writes on a receipt how its event ended, and remembers it for long enough.
    pub(super) fn stamp(&mut self, stream: &Stream, id: &str, at: Moment, end: Option<End>) -> Step<()> {
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
    fn change(
        &mut self,
        mut held: Held,
        was_live: bool,
        change: &Change,
        at: Moment,
        stream: &Stream,
    ) -> Step<Option<(u32, Option<Entry>)>> {
        held.rev += 1;
        let (seq, rev, was) = (held.row.seq, held.rev, held.stand);
        let (cause, was_holding) = (held.cause, was == Stand::DeadHolding);
        let next = match change {
            Change::Again(progress) => {
                held.progress = progress.clone();
                if was.is_dead() {
                    self.uncount_death(stream.id, cause, was_holding)?;
                }
                (held.reason, held.died, held.park_until, held.park_count) = (None, None, None, None);
                held.death = None;
                if was.is_dead() || was == Stand::Leased {
                    self.revive(held, was_live, stream)?;
                } else {
                    // An event that was blocked or withheld while it ran goes on being so.
                    self.keep(&held, was_live)?;
                }
                None
            }
            Change::Dead { reason, progress, park } => {
                if was.is_dead() {
                    self.uncount_death(stream.id, cause, was_holding)?;
                }
                held.progress = progress.clone();
                held.reason = Some(*reason);
                held.died = Some(at);
                self.bury(held, was_live, *park, stream)?
            }
            Change::Strike => {
                held.progress.strikes = held.progress.strikes.saturating_add(1);
                held.progress.suspect = true;
                self.struck = true;
                self.keep(&held, was_live)?;
                None
            }
            Change::GoOn if was.is_dead() => {
                held.rev -= 1; // `let_go` raises it
                self.let_go(stream, held)?
            }
            // Whoever lives holds nobody up by being dead: this was meant for an earlier one.
            _ => return Ok(None),
        };
        Ok(Some((self.rev_of(seq)?.unwrap_or(rev), next)))
    }

    /// An event is dead, as it says: it is counted, and those of its key that follow wait or go on. What a lease that
    /// is over says of it now comes too late.
    pub(super) fn bury(
        &mut self,
        held: Held,
        was_live: bool,
        park: Park,
        stream: &Stream,
    ) -> Step<Option<Entry>> {
        self.bury_lapsed(Held { lease: None, ..held }, was_live, park, stream)
    }

    /// The same for one that died by the end of its lease, whose holder may still say what became of it.
    pub(super) fn bury_lapsed(
        &mut self,
        mut held: Held,
        was_live: bool,
        park: Park,
        stream: &Stream,
    ) -> Step<Option<Entry>> {
        let (holds, until, count) = match park {
            Park::GoOn => (false, None, None),
            Park::Stay => (true, None, None),
            Park::UpTo { until, count } => (true, until, count),
        };
        (held.park_until, held.park_count) = (until, count);
        let key = held.row.key().map(str::to_owned);
        let holds = holds && key.is_some();
        held.stand = if holds { Stand::DeadHolding } else { Stand::DeadPassed };
        self.count_death(&mut held, stream.id)?;
        self.keep(&held, was_live)?;
        match key {
            Some(key) if holds => self.relieve(stream, &key),
            Some(key) => self.go_on(stream, &key),
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
        // Of a dead letter it is said that it holds up nobody any more, and nothing else: an order may have made one
        // of it, and who guesses its rev must not bring it back.
        let is_meant = |held: &Held| {
            let is_over =
                held.stand == Stand::Discarded || held.stand.is_dead() && settle.change != Change::GoOn;
            held.rev == settle.rev && !is_over
        };
        Ok(held.filter(is_meant).map(|held| (held, false)))
    }

    fn rev_of(&self, seq: Seq) -> rusqlite::Result<Option<u32>> {
        self.conn
            .prepare_cached("SELECT rev FROM redrive_held WHERE seq = ?1")?
            .query_row([column(seq.0)], |row| row.get(0))
            .optional()
    }

    fn ending(&self, seq: Seq, rev: u32) -> rusqlite::Result<Option<Ending>> {
        if rev == 0 {
            let live = self
                .conn
                .prepare_cached("SELECT id, key, calm FROM redrive_live WHERE seq = ?1")?
                .query_row([column(seq.0)], |row| {
                    let (id, key, calm) = (row.get(0)?, row.get(1)?, to_moment(row.get(2)?));
                    Ok(Ending { was_live: true, id, key, calm, grave: None, put_back: None })
                })
                .optional()?;
            if live.is_some() {
                return Ok(live);
            }
        }
        self.conn
            .prepare_cached(
                "SELECT id, key, calm, state, cause, redrive FROM redrive_held WHERE seq = ?1 AND rev = ?2 \
                 AND state NOT IN (2, 3, 5)",
            )?
            .query_row(params![column(seq.0), rev], |row| {
                let (id, key, calm) = (row.get(0)?, row.get(1)?, to_moment(row.get(2)?));
                let (state, cause): (i64, Option<i64>) = (row.get(3)?, row.get(4)?);
                let grave = matches!(state, 2 | 3)
                    .then(|| Grave { cause: cause.map(|cause| CauseId(bits(cause))), holding: state == 2 });
                let put_back = row.get::<_, Option<i64>>(5)?.map(PutBack::from_column);
                Ok(Ending { was_live: false, id, key, calm, grave, put_back })
            })
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
