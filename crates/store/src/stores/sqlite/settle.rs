//! Settling: the outcome of an attempt, under the fence.
//!
//! Most settles are of events that ran once, with success and without a key: one `DELETE` with all conditions settles
//! each, and one settles all adjacent ones. Everything else reads the event first.

use std::sync::Arc;

use redrive_core::Moment;
use redrive_core::event::State;
use redrive_core::queue_entry::{
    EventChange, FencingToken, ParkFollowers, QueueEntry, Seq, SettleRequest, SettleResult,
};
use redrive_core::triage::CauseId;
use rusqlite::{OptionalExtension, params};

use super::events::dedupe::{End, ending_of};
use super::events::endings::Ends;
use super::events::fresh::{EventRow, Stream, event_columns};
use super::events::tracked::{RedrivenBy, RowState, TrackedEvent};
use super::faults::Step;
use super::writer::tx::WriterTx;
use crate::stores::rows::act::stamp;
use crate::stores::rows::now;
use crate::stores::shared::group::RedriveOutcome;
use crate::stores::shared::numbers::{column, from_moment, stream_of, to_moment};
use crate::stores::shared::tracked::states;
use runs::{is_continued, is_late_success};

pub(super) mod runs;

/// The fields of an ending event that a settle needs.
struct EndOfEvent {
    was_fresh: bool,
    id: String,
    key: Option<String>,
    dedupe_ok_until: Moment,
    death_tally: Option<DeathTally>,
    redriven_by: Option<RedrivenBy>,
}

/// Where a dead letter is counted.
struct DeathTally {
    cause: Option<CauseId>,
    holding: bool,
}

impl EndOfEvent {
    fn of(tracked: &TrackedEvent, was_fresh: bool) -> Self {
        let death_tally = tracked
            .state
            .is_dead()
            .then(|| DeathTally { cause: tracked.cause, holding: tracked.state == RowState::DeadHolding });
        Self {
            was_fresh,
            id: tracked.row.event.id.clone(),
            key: tracked.row.key().map(str::to_owned),
            dedupe_ok_until: tracked.row.dedupe_ok_until,
            death_tally,
            redriven_by: tracked.redriven_by,
        }
    }
}

/// From how many adjacent events on they are deleted together.
const RUN_LEAST: usize = 3;

/// Whether two settles are of adjacent events, and both are simply done.
fn is_followed(settle: &SettleRequest, next: &SettleRequest) -> bool {
    let is_plain = |settle: &SettleRequest| settle.change == EventChange::Done && settle.rev == 0;
    settle.seq.0.checked_add(1) == Some(next.seq.0)
        && settle.token == next.token
        && is_plain(settle)
        && is_plain(next)
}

impl WriterTx {
    /// Settles events.
    pub(super) fn settle_all(
        &mut self,
        settles: &[SettleRequest],
        answers: &mut Vec<SettleResult>,
    ) -> Step<()> {
        answers.clear();
        for run in settles.chunk_by(|settle, next| is_followed(settle, next) || is_continued(settle, next)) {
            let are_gone = run.len() >= RUN_LEAST
                && if run.iter().all(is_late_success) { self.end_run(run)? } else { self.delete_run(run)? };
            if are_gone {
                answers.extend(
                    run.iter().map(|settle| SettleResult::Applied { rev: settle.rev + 1, next: None }),
                );
            } else {
                for settle in run {
                    answers.push(self.settle(settle)?);
                }
            }
        }
        Ok(())
    }

    /// Deletes adjacent events that ran once, with success. `false`, and nothing is done, if one of them is gone, or
    /// needs more than its deletion.
    fn delete_run(&mut self, run: &[SettleRequest]) -> Step<bool> {
        let ([first, .., last], Some(at)) = (run, run.iter().map(|settle| settle.at).max()) else {
            return Ok(false);
        };
        self.advance_clock(at);
        if !self.is_current(first.token)? {
            return Ok(false);
        }
        let span = params![column(first.seq.0), column(last.seq.0), from_moment(at)];
        // Counted first: afterwards it is impossible to say which of them were there.
        let there: i64 = self
            .conn
            .prepare_cached(
                "SELECT count(*) FROM redrive_fresh WHERE seq BETWEEN ?1 AND ?2 AND key IS NULL AND dedupe_ok_until >= ?3",
            )?
            .query_row(span, |row| row.get(0))?;
        if usize::try_from(there) != Ok(run.len()) {
            return Ok(false);
        }
        self.conn
            .prepare_cached("DELETE FROM redrive_fresh WHERE seq BETWEEN ?1 AND ?2")?
            .execute([column(first.seq.0), column(last.seq.0)])?;
        Ok(true)
    }

    /// Settles an event.
    pub(super) fn settle(&mut self, settle: &SettleRequest) -> Step<SettleResult> {
        self.advance_clock(settle.at);
        if !self.is_current(settle.token)? {
            return Ok(SettleResult::Fenced);
        }
        if settle.change == EventChange::Done && settle.rev == 0 && self.delete_plain(settle)? {
            return Ok(SettleResult::Applied { rev: 1, next: None });
        }
        let Some(stream) = self.names.of(&self.conn, stream_of(settle.seq))? else {
            return Ok(SettleResult::Stale);
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
                Some((tracked, was_fresh)) => {
                    self.change(tracked, was_fresh, &settle.change, settle.at, &stream)?
                }
                None => None,
            },
        };
        Ok(changed.map_or(SettleResult::Stale, |(rev, next)| SettleResult::Applied { rev, next }))
    }

    /// Applies a change to an event that was read. Returns its new rev, and the event of its key that may run now;
    /// `None` if the change was meant for an event in another state.
    pub(super) fn apply(
        &mut self,
        (tracked, was_fresh): (TrackedEvent, bool),
        change: &EventChange,
        at: Moment,
        stream: &Stream,
    ) -> Step<Option<(u32, Option<QueueEntry>)>> {
        let Some(mut end) = ending_of(change, at) else {
            return self.change(tracked, was_fresh, change, at, stream);
        };
        if let (Some(end), Some(mark)) = (&mut end, tracked.lease) {
            let did_it = end.state == State::Done && end.attempts == mark.attempt;
            end.token = did_it.then_some(mark.token);
        }
        let next = self.end(tracked.row.seq, EndOfEvent::of(&tracked, was_fresh), stream, at, end)?;
        Ok(Some((tracked.rev + 1, next)))
    }

    /// Whether an event may still be settled with this rev.
    pub(super) fn is_there(&self, seq: Seq, rev: u32) -> rusqlite::Result<bool> {
        Ok(self.ending(seq, rev)?.is_some())
    }

    fn delete_plain(&self, settle: &SettleRequest) -> rusqlite::Result<bool> {
        let deleted = self
            .conn
            .prepare_cached(
                "DELETE FROM redrive_fresh WHERE seq = ?1 AND key IS NULL AND dedupe_ok_until >= ?2",
            )?
            .execute(params![column(settle.seq.0), from_moment(settle.at)])?;
        Ok(deleted == 1)
    }

    /// Deletes an event that ended. Its dedupe record stays, and an end other than "done at the first attempt" is
    /// written beside it.
    fn end(
        &mut self,
        seq: Seq,
        there: EndOfEvent,
        stream: &Stream,
        at: Moment,
        end: Option<End>,
    ) -> Step<Option<QueueEntry>> {
        let outcome = match &end {
            Some(end) if end.state != State::Done => RedriveOutcome::Other,
            _ => RedriveOutcome::Done,
        };
        self.charge(there.redriven_by, outcome)?;
        if let Some(death_tally) = there.death_tally {
            self.uncount_death(stream.id, death_tally.cause, death_tally.holding)?;
        }
        if let Some(end) = end {
            Ends::writing(&self.conn)?.write(&end, seq)?;
        }
        if at > there.dedupe_ok_until {
            now(stamp(self, stream, &there.id, at, None))?;
        }
        self.remove(seq, there.was_fresh)?;
        match there.key {
            Some(key) => self.go_on(stream, &key),
            None => Ok(None),
        }
    }

    /// Changes an event that goes on living.
    fn change(
        &mut self,
        mut tracked: TrackedEvent,
        was_fresh: bool,
        change: &EventChange,
        at: Moment,
        stream: &Stream,
    ) -> Step<Option<(u32, Option<QueueEntry>)>> {
        tracked.rev += 1;
        let (seq, rev, was) = (tracked.row.seq, tracked.rev, tracked.state);
        let (cause, was_holding) = (tracked.cause, was == RowState::DeadHolding);
        let next = match change {
            EventChange::Retry(progress) => {
                if let Some(by @ RedrivenBy::Retry(_)) = tracked.redriven_by {
                    self.charge(Some(by), RedriveOutcome::Failed)?;
                    tracked.redriven_by = None;
                }
                tracked.progress = progress.clone();
                if was.is_dead() {
                    self.uncount_death(stream.id, cause, was_holding)?;
                }
                (tracked.reason, tracked.died, tracked.park_until, tracked.park_count) =
                    (None, None, None, None);
                tracked.death = None;
                if was.is_dead() || was == RowState::Leased {
                    self.revive(tracked, was_fresh, stream)?;
                } else {
                    // An event that was blocked or withheld while it ran stays so.
                    self.keep(&tracked, was_fresh)?;
                }
                None
            }
            EventChange::Dead { reason, progress, park } => {
                if was.is_dead() {
                    self.uncount_death(stream.id, cause, was_holding)?;
                }
                tracked.progress = progress.clone();
                tracked.reason = Some(*reason);
                tracked.died = Some(at);
                self.bury(tracked, was_fresh, *park, stream)?
            }
            EventChange::CountCrash => {
                tracked.progress.crash_count = tracked.progress.crash_count.saturating_add(1);
                tracked.progress.suspect = true;
                self.struck = true;
                self.keep(&tracked, was_fresh)?;
                None
            }
            EventChange::Unpark if was.is_dead() => {
                tracked.rev -= 1; // `let_go` raises it
                self.let_go(stream, tracked)?
            }
            // A living event does not block its key by being dead: the change was meant for an earlier revision.
            _ => return Ok(None),
        };
        Ok(Some((self.rev_of(seq)?.unwrap_or(rev), next)))
    }

    /// An event died: counts it, and blocks or unblocks the later events of its key. A late settle of an expired lease
    /// no longer counts.
    pub(super) fn bury(
        &mut self,
        tracked: TrackedEvent,
        was_fresh: bool,
        park: ParkFollowers,
        stream: &Stream,
    ) -> Step<Option<QueueEntry>> {
        self.bury_lapsed(TrackedEvent { lease: None, ..tracked }, was_fresh, park, stream)
    }

    /// The same for an event that died because its lease ran out: the holder may still settle it.
    pub(super) fn bury_lapsed(
        &mut self,
        mut tracked: TrackedEvent,
        was_fresh: bool,
        park: ParkFollowers,
        stream: &Stream,
    ) -> Step<Option<QueueEntry>> {
        let (holds, until, count) = match park {
            ParkFollowers::No => (false, None, None),
            ParkFollowers::UntilResolved => (true, None, None),
            ParkFollowers::UpTo { until, count } => (true, until, count),
        };
        (tracked.park_until, tracked.park_count) = (until, count);
        let key = tracked.row.key().map(str::to_owned);
        let holds = holds && key.is_some();
        tracked.state = if holds { RowState::DeadHolding } else { RowState::DeadPassed };
        self.count_death(&mut tracked, stream.id)?;
        self.keep(&tracked, was_fresh)?;
        match key {
            Some(key) if holds => self.relieve(stream, &key),
            Some(key) => self.go_on(stream, &key),
            None => Ok(None),
        }
    }

    /// Reads an event that is to be changed, and whether it is fresh. A damaged event counts as gone: nothing of it is
    /// written.
    fn take_up(&self, settle: &SettleRequest, stream: &Stream) -> Step<Option<(TrackedEvent, bool)>> {
        if settle.rev == 0 {
            let fresh = self
                .conn
                .prepare_cached(concat!("SELECT ", event_columns!(), " FROM redrive_fresh WHERE seq = ?1"))?
                .query_row([column(settle.seq.0)], |row| Ok(EventRow::read(row, stream)))
                .optional()?;
            if let Some(fresh) = fresh {
                return Ok(fresh.ok().map(|row| (TrackedEvent::fresh(row, RowState::Waiting), true)));
            }
        }
        let tracked = TrackedEvent::find(&self.conn, settle.seq, stream)?.and_then(Result::ok);
        // The only change a settle may make to a dead letter is to unblock its key. A command may have killed the
        // event, and a guessed rev must not bring it back.
        let is_meant = |tracked: &TrackedEvent| {
            let is_over = tracked.state == RowState::Discarded
                || tracked.state.is_dead() && settle.change != EventChange::Unpark;
            tracked.rev == settle.rev && !is_over
        };
        Ok(tracked.filter(is_meant).map(|tracked| (tracked, false)))
    }

    fn rev_of(&self, seq: Seq) -> rusqlite::Result<Option<u32>> {
        self.conn
            .prepare_cached("SELECT rev FROM redrive_tracked WHERE seq = ?1")?
            .query_row([column(seq.0)], |row| row.get(0))
            .optional()
    }

    fn ending(&self, seq: Seq, rev: u32) -> rusqlite::Result<Option<EndOfEvent>> {
        if rev == 0 {
            let fresh = self
                .conn
                .prepare_cached("SELECT id, key, dedupe_ok_until FROM redrive_fresh WHERE seq = ?1")?
                .query_row([column(seq.0)], |row| {
                    let (id, key, dedupe_ok_until) = (row.get(0)?, row.get(1)?, to_moment(row.get(2)?));
                    Ok(EndOfEvent {
                        was_fresh: true,
                        id,
                        key,
                        dedupe_ok_until,
                        death_tally: None,
                        redriven_by: None,
                    })
                })
                .optional()?;
            if fresh.is_some() {
                return Ok(fresh);
            }
        }
        self.conn
            .prepare_cached(concat!(
                "SELECT id, key, dedupe_ok_until, redrive FROM redrive_tracked WHERE seq = ?1 AND rev = ?2 \
                 AND state NOT IN (",
                states!(DeadHolding, DeadPassed, Discarded),
                ")"
            ))?
            .query_row(params![column(seq.0), rev], |row| {
                let (id, key, dedupe_ok_until) = (row.get(0)?, row.get(1)?, to_moment(row.get(2)?));
                let redriven_by = row.get::<_, Option<i64>>(3)?.map(RedrivenBy::from_column);
                Ok(EndOfEvent { was_fresh: false, id, key, dedupe_ok_until, death_tally: None, redriven_by })
            })
            .optional()
    }

    /// Settles the event that a transaction has processed.
    pub(super) fn settle_done(
        &mut self,
        token: FencingToken,
        (seq, rev): (Seq, u32),
        at: Moment,
        (attempts, history, result): (u32, Option<Arc<redrive_core::event::AttemptHistory>>, Option<Vec<u8>>),
    ) -> Step<SettleResult> {
        let plain = result.is_none() && attempts <= 1 && history.is_none();
        let change =
            if plain { EventChange::Done } else { EventChange::DoneWith { result, attempts, history } };
        self.settle(&SettleRequest { token, seq, rev, at, change })
    }
}
