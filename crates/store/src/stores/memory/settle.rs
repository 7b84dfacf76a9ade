//! Settling: what became of an event, under the fence.

use redrive_core::Moment;
use redrive_core::entry::{Change, Entry, Grant, Seq, Settle, Settled};
use redrive_core::event::State as Where;
use redrive_core::planted::{Flaw, has};

use super::row::{End, Identity, Row};
use super::state::State;

/// Why a settle changes nothing.
pub(super) enum Refused {
    Fenced,
    Stale,
}

impl State {
    /// Writes what became of an event.
    pub(super) fn settle(&mut self, settle: Settle) -> Settled {
        let Settle { grant, seq, rev, at, change } = settle;
        self.see(at);
        match self.fenced(grant, seq, rev) {
            // An order made a dead letter of it; who guesses its rev must not bring it back.
            Ok(row) if row.death.is_some() && change != Change::GoOn => Settled::Stale,
            Ok(row) => self.change(row, at, change),
            Err(Refused::Fenced) => Settled::Fenced,
            Err(Refused::Stale) => Settled::Stale,
        }
    }

    /// The event, if the owner is still the owner and nobody changed it.
    pub(super) fn fenced(&self, grant: Grant, seq: Seq, rev: u32) -> Result<Row, Refused> {
        if !self.is_current(grant) && !has(Flaw::FenceOff) {
            return Err(Refused::Fenced);
        }
        let row = self.rows.get(&seq).ok_or(Refused::Stale)?;
        if row.entry.shard != grant.shard && !has(Flaw::FenceOff) {
            return Err(Refused::Fenced);
        }
        if row.discarded {
            return Err(Refused::Stale);
        }
        if row.entry.rev != rev && !has(Flaw::EpochWithoutRev) {
            return Err(Refused::Stale);
        }
        Ok(row.clone())
    }

    /// Changes an event, and hands out the next of its key where that may run now.
    pub(super) fn change(&mut self, mut row: Row, at: Moment, change: Change) -> Settled {
        let seq = row.entry.seq;
        row.entry.rev += 1;
        let rev = row.entry.rev;
        let next = match change {
            Change::Done => self.end(row, at, None),
            Change::DoneWith { result, attempts, story } => {
                let lease = row.lease.as_ref().filter(|lease| lease.attempt == attempts);
                let token = lease.map(|lease| lease.token);
                self.end(row, at, Some(End { result, token, ..End::of(Where::Done, at, attempts, story) }))
            }
            Change::Dropped { attempts, story } => {
                self.end(row, at, Some(End::of(Where::Dropped, at, attempts, story)))
            }
            Change::Expired { attempts, story } => {
                self.end(row, at, Some(End::of(Where::Expired, at, attempts, story)))
            }
            Change::Again(progress) => {
                row.entry.progress = progress;
                row.death = None;
                self.write(seq, Some(row))
            }
            Change::Dead { reason, progress, park } => {
                row.entry.progress = progress;
                self.bury(row, reason, at, park)
            }
            Change::Strike => {
                row.entry.progress.strikes = row.entry.progress.strikes.saturating_add(1);
                row.entry.progress.suspect = true;
                self.write(seq, Some(row))
            }
            Change::GoOn if row.death.is_some() => {
                row.entry.rev -= 1; // `let_go` raises it
                let chain = row.chain.clone();
                self.let_go(row).or_else(|| self.relieve(&chain?))
            }
            // Whoever lives holds nobody up by being dead: this was meant for an earlier one.
            Change::GoOn => return Settled::Stale,
        };
        let rev = self.rows.get(&seq).map_or(rev, |row| row.entry.rev);
        let next = next.filter(|next| *next != seq).and_then(|next| self.entry(next));
        Settled::Applied { rev, next }
    }

    /// Takes an event away. Its receipt stays, and is stamped anew where the end came late.
    pub(super) fn end(&mut self, row: Row, at: Moment, end: Option<End>) -> Option<Seq> {
        let identity = Identity::of(&row.entry.event);
        if has(Flaw::ReceiptGoesWithEvent) {
            self.forget_receipt(&identity);
        }
        self.job_saw_the_end(&row, end.as_ref().map_or(Where::Done, |end| end.state));
        self.stamp(&identity, at, end);
        // The next of its key may be a dead letter: one that died when this was put back before it.
        self.write(row.entry.seq, None).or_else(|| self.relieve(&row.chain?))
    }

    /// Writes an end on a receipt, which is remembered for a window from then on at least.
    pub(super) fn stamp(&mut self, identity: &Identity, at: Moment, end: Option<End>) {
        let window = self.queues.get(&identity.queue).map(|queue| queue.window).unwrap_or_default();
        if let Some(receipt) = self.receipts.alter(identity) {
            self.fading.remove(&(receipt.until, identity.clone()));
            receipt.until = receipt.until.max(at + window);
            receipt.end = end;
            self.fading.put((receipt.until, identity.clone()), ());
        }
    }

    fn entry(&self, seq: Seq) -> Option<Entry> {
        self.rows.get(&seq).map(|row| row.entry.clone())
    }
}
