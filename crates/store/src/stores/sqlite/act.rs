//! What an operator does to one event.

use redrive_core::Moment;
use redrive_core::entry::Park;
use redrive_core::event::State;
use redrive_core::triage::Redrive;
use rusqlite::OptionalExtension;

use super::desk::Desk;
use super::faults::{Fault, Step, damaged};
use super::find::place;
use super::held::{Held, PutBack, Stand};
use super::ledger::Outcome;
use super::names::find_stream;
use super::numbers::column;
use super::receipt::{End, Receipt};
use super::rows::{Damage, EventRow, Stream, event_columns};
use crate::operate::{Act, Refusal, Target};
use crate::stores::shared::acts::Met;

/// What one event's order is refused for must not undo the others: a row that is damaged is such a reason.
pub(super) fn or_refused<T>(step: Step<T>) -> Step<Result<T, Refusal>> {
    match step {
        Ok(got) => Ok(Ok(got)),
        Err(Fault::Refused(error)) => Ok(Err(Refusal::Senseless(error.to_string()))),
        Err(fault) => Err(fault),
    }
}

impl Desk {
    /// The event that is meant, if it has not ended.
    pub(super) fn meet(&mut self, target: &Target) -> Step<Result<Met, Refusal>> {
        let Some(id) = find_stream(&self.conn, &target.queue, &target.tenant)? else {
            return Ok(Err(Refusal::Unknown));
        };
        let Some(stream) = self.names.of(&self.conn, id)? else { return Ok(Err(Refusal::Unknown)) };
        let receipt = match or_refused(Receipt::find(&self.conn, id, &target.id))? {
            Ok(Some(receipt)) => receipt,
            Ok(None) => return Ok(Err(Refusal::Unknown)),
            Err(refusal) => return Ok(Err(refusal)),
        };
        if let Some(into) = receipt.end.as_ref().and_then(|end| end.became.clone()) {
            return Ok(Err(Refusal::Edited { into }));
        }
        let there = match or_refused(self.row_of(&receipt, &stream))? {
            Ok(there) => there,
            Err(refusal) => return Ok(Err(refusal)),
        };
        Ok(Met::of(there, receipt, stream, target.rev))
    }

    /// The event of a receipt, and whether it never ran; none where it has ended, or another is in its place.
    pub(super) fn row_of(&self, receipt: &Receipt, stream: &Stream) -> Step<Option<(Held, bool)>> {
        let seq = receipt.seq;
        let live = self
            .conn
            .prepare_cached(concat!("SELECT ", event_columns!(), " FROM redrive_live WHERE seq = ?1"))?
            .query_row([column(seq.0)], |row| Ok(EventRow::read(row, stream)))
            .optional()?;
        let there = match live {
            Some(Ok(row)) => Some((Held::fresh(row, Stand::Waits), true)),
            Some(Err(Damage)) => return Err(damaged("redrive_live", seq.0).into()),
            None => match Held::find(&self.conn, seq, stream)? {
                Some(Ok(held)) => Some((held, false)),
                Some(Err(Damage)) => return Err(damaged("redrive_held", seq.0).into()),
                None => None,
            },
        };
        Ok(there.filter(|(held, _)| held.row.event.id == receipt.id))
    }

    /// Where an event is.
    pub(super) fn place_of(&mut self, met: &Met) -> rusqlite::Result<State> {
        let view = self.view()?;
        place(&self.conn, &met.held, &met.stream, &view)
    }

    /// Does something to an event.
    pub(super) fn act(&mut self, met: Met, act: &Act, by: PutBack, at: Moment) -> Step<Result<(), Refusal>> {
        let stand = met.held.stand;
        match act {
            Act::Redrive(redrive) if stand.is_dead() => {
                if let Err(refusal) = self.check_redrive(&met.held, redrive, at)? {
                    return Ok(Err(refusal));
                }
                self.redrive(met.held, &met.stream, redrive, by, at)?;
            }
            Act::Discard if stand != Stand::Discarded => {
                self.discard(met.held, met.was_live, &met.stream, at)?;
            }
            Act::Restore if stand == Stand::Discarded && met.receipt.until >= at => self.restore(met, at)?,
            Act::Kill if stand.is_alive() => self.kill(met, at)?,
            Act::RetryNow if stand.is_alive() && stand != Stand::Leased => self.retry_now(met, at)?,
            _ => return Ok(Err(Refusal::State { is: self.place_of(&met)? })),
        }
        Ok(Ok(()))
    }

    /// Whether a dead letter may be put back.
    pub(super) fn check_redrive(
        &mut self,
        held: &Held,
        redrive: &Redrive,
        at: Moment,
    ) -> Step<Result<(), Refusal>> {
        if let Some(to) = &redrive.to
            && let Err(refusal) = self.check_route(&held.row.event.queue, to)?
        {
            return Ok(Err(refusal));
        }
        Ok(held.check_redrive(redrive, at))
    }

    /// Puts a dead letter back. Its identity, its place and its story are what they were.
    pub(super) fn redrive(
        &mut self,
        mut held: Held,
        stream: &Stream,
        redrive: &Redrive,
        by: PutBack,
        at: Moment,
    ) -> Step<()> {
        held.progress = held.redriven(redrive, at);
        self.put_back(&mut held, stream, by, at)?;
        self.revive(held, false, stream)
    }

    /// A dead letter is none any more: it is counted as one that was put back.
    pub(super) fn put_back(&mut self, held: &mut Held, stream: &Stream, by: PutBack, at: Moment) -> Step<()> {
        self.uncount_death(stream.id, held.cause, held.stand == Stand::DeadHolding)?;
        self.count_redrive(stream.id, held.cause, by, at)?;
        held.put_back(by);
        Ok(())
    }

    /// Takes an event away, so that it can be restored for a time. Its story stays with it, and not on the receipt.
    pub(super) fn discard(
        &mut self,
        mut held: Held,
        was_live: bool,
        stream: &Stream,
        at: Moment,
    ) -> Step<()> {
        let was = held.stand;
        held.take_away(at);
        if was.is_dead() {
            self.uncount_death(stream.id, held.cause, was == Stand::DeadHolding)?;
        } else {
            self.recall = true;
        }
        self.charge(held.put_back.take(), Outcome::Other)?;
        self.stamp_discarded(stream, &held.row.event.id, held.progress.attempts, at)?;
        held.discard();
        self.keep(&held, was_live)?;
        if let Some(key) = held.row.key().filter(|_| was != Stand::DeadPassed) {
            self.go_on(stream, key)?;
        }
        Ok(())
    }

    /// Writes on a receipt that its event was taken away, and how long it can be restored.
    pub(super) fn stamp_discarded(
        &mut self,
        stream: &Stream,
        id: &str,
        attempts: u32,
        at: Moment,
    ) -> Step<()> {
        self.stamp(stream, id, at, Some(End::discarded(attempts, at)))
    }

    fn restore(&mut self, met: Met, at: Moment) -> Step<()> {
        let Met { mut held, mut receipt, stream, .. } = met;
        receipt.end = None;
        receipt.update(&self.conn)?;
        held.restore(at);
        self.bury(held, false, Park::GoOn, &stream).map(drop)
    }

    fn kill(&mut self, met: Met, at: Moment) -> Step<()> {
        let Met { mut held, was_live, stream, .. } = met;
        held.kill(at);
        self.recall = true;
        self.bury(held, was_live, Park::GoOn, &stream).map(drop)
    }

    fn retry_now(&mut self, met: Met, at: Moment) -> Step<()> {
        let Met { mut held, was_live, stream, .. } = met;
        if held.progress.due <= at {
            return Ok(());
        }
        held.progress.due = at;
        held.rev += 1;
        self.keep(&held, was_live)?;
        if held.stand == Stand::Waits {
            self.arrive(held.entry(), &stream)?;
        }
        Ok(())
    }
}
