//! What an operator does to one event.

use std::sync::Arc;

use redrive_core::Moment;
use redrive_core::entry::Park;
use redrive_core::event::State;
use redrive_core::triage::Redrive;

use super::desk::Desk;
use super::faults::{Fault, Step, damaged};
use super::held::{Held, PutBack, Stand};
use super::ledger::Outcome;
use super::receipt::{End, Receipt};
use super::rows::{Damage, Stream};
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
    pub(super) async fn meet(&mut self, target: &Target) -> Step<Result<Met, Refusal>> {
        let Some(stream) = self.find_stream(&target.queue, &target.tenant).await? else {
            return Ok(Err(Refusal::Unknown));
        };
        let receipt = match or_refused(self.receipt(stream.id, &target.id).await)? {
            Ok(Some(receipt)) => receipt,
            Ok(None) => return Ok(Err(Refusal::Unknown)),
            Err(refusal) => return Ok(Err(refusal)),
        };
        if let Some(into) = receipt.end.as_ref().and_then(|end| end.became.clone()) {
            return Ok(Err(Refusal::Edited { into }));
        }
        let there = match or_refused(self.row_of(&receipt, &stream).await)? {
            Ok(there) => there,
            Err(refusal) => return Ok(Err(refusal)),
        };
        Ok(Met::of(there, receipt, stream, target.rev))
    }

    /// The event of a receipt, and whether it never ran; none where it has ended, or another is in its place.
    pub(super) async fn row_of(&mut self, receipt: &Receipt, stream: &Stream) -> Step<Option<(Held, bool)>> {
        let seq = receipt.seq;
        let there = match self.live(seq, stream).await? {
            Some(Ok(row)) => Some((Held::fresh(row, Stand::Waits), true)),
            Some(Err(Damage)) => return Err(damaged("live", seq.0).into()),
            None => match self.held(seq, stream).await? {
                Some(Ok(held)) => Some((held, false)),
                Some(Err(Damage)) => return Err(damaged("held", seq.0).into()),
                None => None,
            },
        };
        Ok(there.filter(|(held, _)| held.row.event.id == receipt.id))
    }

    /// Where an event is.
    pub(super) async fn place_of(&mut self, met: &Met) -> Step<State> {
        let view = self.view().await?;
        self.place(&met.held, &met.stream, &view).await
    }

    /// Does something to an event.
    pub(super) async fn act(
        &mut self,
        met: Met,
        act: &Act,
        by: PutBack,
        at: Moment,
    ) -> Step<Result<(), Refusal>> {
        let stand = met.held.stand;
        match act {
            Act::Redrive(redrive) if stand.is_dead() => {
                if let Err(refusal) = self.check_redrive(&met.held, redrive, at).await? {
                    return Ok(Err(refusal));
                }
                self.redrive(met.held, &met.stream, redrive, by, at).await?;
            }
            Act::Discard if stand != Stand::Discarded => {
                self.discard(met.held, met.was_live, &met.stream, at).await?;
            }
            Act::Restore if stand == Stand::Discarded && met.receipt.until >= at => {
                self.restore(met, at).await?;
            }
            Act::Kill if stand.is_alive() => self.kill(met, at).await?,
            Act::RetryNow if stand.is_alive() && stand != Stand::Leased => self.retry_now(met, at).await?,
            _ => return Ok(Err(Refusal::State { is: self.place_of(&met).await? })),
        }
        Ok(Ok(()))
    }

    /// Whether a dead letter may be put back.
    pub(super) async fn check_redrive(
        &mut self,
        held: &Held,
        redrive: &Redrive,
        at: Moment,
    ) -> Step<Result<(), Refusal>> {
        if let Some(to) = &redrive.to
            && let Err(refusal) = self.check_route(&held.row.event.queue, to).await?
        {
            return Ok(Err(refusal));
        }
        Ok(held.check_redrive(redrive, at))
    }

    /// Puts a dead letter back. Its identity, its place and its story are what they were.
    pub(super) async fn redrive(
        &mut self,
        mut held: Held,
        stream: &Arc<Stream>,
        redrive: &Redrive,
        by: PutBack,
        at: Moment,
    ) -> Step<()> {
        held.progress = held.redriven(redrive, at);
        self.put_back(&mut held, stream, by, at).await?;
        self.revive(held, false, stream).await
    }

    /// A dead letter is none any more: it is counted as one that was put back.
    pub(super) async fn put_back(
        &mut self,
        held: &mut Held,
        stream: &Arc<Stream>,
        by: PutBack,
        at: Moment,
    ) -> Step<()> {
        self.uncount_death(stream.id, held.cause, held.stand == Stand::DeadHolding);
        self.count_redrive(stream.id, held.cause, by, at);
        held.put_back(by);
        Ok(())
    }

    /// Takes an event away, so that it can be restored for a time. Its story stays with it, and not on the receipt.
    pub(super) async fn discard(
        &mut self,
        mut held: Held,
        was_live: bool,
        stream: &Arc<Stream>,
        at: Moment,
    ) -> Step<()> {
        let was = held.stand;
        held.take_away(at);
        if was.is_dead() {
            self.uncount_death(stream.id, held.cause, was == Stand::DeadHolding);
        } else {
            self.recall = true;
        }
        self.charge(held.put_back.take(), Outcome::Other);
        self.stamp_discarded(stream, &held.row.event.id, held.progress.attempts, at).await?;
        held.discard();
        self.keep(&held, was_live).await?;
        if let Some(key) = held.row.key().filter(|_| was != Stand::DeadPassed) {
            self.go_on(stream, key, held.row.seq).await?;
        }
        Ok(())
    }

    /// Writes on a receipt that its event was taken away, and how long it can be restored.
    pub(super) async fn stamp_discarded(
        &mut self,
        stream: &Arc<Stream>,
        id: &str,
        attempts: u32,
        at: Moment,
    ) -> Step<()> {
        self.stamp(stream, id, at, Some(End::discarded(attempts, at))).await
    }

    async fn restore(&mut self, met: Met, at: Moment) -> Step<()> {
        let Met { mut held, mut receipt, stream, .. } = met;
        receipt.end = None;
        self.update_receipt(&receipt).await?;
        held.restore(at);
        self.bury(held, false, Park::GoOn, &stream).await.map(drop)
    }

    async fn kill(&mut self, met: Met, at: Moment) -> Step<()> {
        let Met { mut held, was_live, stream, .. } = met;
        held.kill(at);
        self.recall = true;
        self.bury(held, was_live, Park::GoOn, &stream).await.map(drop)
    }

    async fn retry_now(&mut self, met: Met, at: Moment) -> Step<()> {
        let Met { mut held, was_live, stream, .. } = met;
        if held.progress.due <= at {
            return Ok(());
        }
        held.progress.due = at;
        held.rev += 1;
        self.keep(&held, was_live).await?;
        let is_withheld = match held.row.key() {
            Some(key) => self.is_withheld(&stream, key).await?,
            None => false,
        };
        if held.stand == Stand::Waits && !is_withheld && self.is_head(&held.row, &stream).await? {
            let entry = held.entry();
            self.arrive(entry, &stream).await?;
        }
        Ok(())
    }
}
