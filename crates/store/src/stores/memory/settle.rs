//! Settling: what became of an event, under the fence.

use redrive_core::Moment;
use redrive_core::entry::{Change, Entry, Grant, Park, Seq, Settle, Settled};
use redrive_core::event::State as Where;
use redrive_core::planted::{Flaw, has};

use super::state::{Death, End, Row, State};

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
            Change::Done => self.end(seq, at, None),
            Change::DoneWith { result, attempts, story } => {
                self.end(seq, at, Some(End { state: Where::Done, at, attempts, story, result }))
            }
            Change::Dropped { attempts, story } => {
                self.end(seq, at, Some(End { state: Where::Dropped, at, attempts, story, result: None }))
            }
            Change::Expired { attempts, story } => {
                self.end(seq, at, Some(End { state: Where::Expired, at, attempts, story, result: None }))
            }
            Change::Again(progress) => {
                row.entry.progress = progress;
                row.death = None;
                self.write(seq, Some(row))
            }
            Change::Dead { reason, progress, park } => {
                row.entry.progress = progress;
                let (holds, until, count) = match park {
                    Park::GoOn => (false, None, None),
                    Park::Stay => (true, None, None),
                    Park::UpTo { until, count } => (true, until, count),
                };
                let holds = holds && row.chain.is_some();
                row.death = Some(Death { reason, at, holds, until, count });
                let chain = row.chain.clone();
                let next = self.write(seq, Some(row));
                next.or_else(|| self.relieve(&chain?))
            }
            Change::Strike => {
                row.entry.progress.strikes = row.entry.progress.strikes.saturating_add(1);
                row.entry.progress.suspect = true;
                self.write(seq, Some(row))
            }
            Change::GoOn if row.death.is_some() => {
                row.entry.rev -= 1; // `let_go` raises it
                self.let_go(row)
            }
            // Whoever lives holds nobody up by being dead: this was meant for an earlier one.
            Change::GoOn => return Settled::Stale,
        };
        let rev = self.rows.get(&seq).map_or(rev, |row| row.entry.rev);
        let next = next.filter(|next| *next != seq).and_then(|next| self.entry(next));
        Settled::Applied { rev, next }
    }

    /// Takes an event away. Its receipt stays, and is stamped anew where the end came late.
    fn end(&mut self, seq: Seq, at: Moment, end: Option<End>) -> Option<Seq> {
        if has(Flaw::ReceiptGoesWithEvent) {
            self.forget_receipt(seq);
        }
        let queue = self.rows.get(&seq).and_then(|row| self.queues.get(&row.entry.event.queue));
        let window = queue.map(|queue| queue.window).unwrap_or_default();
        if let Some(receipt) = self.receipts.alter(&seq) {
            receipt.until = receipt.until.max(at + window);
            receipt.end = end;
            self.fading.put((receipt.until, seq), ());
        }
        self.write(seq, None)
    }

    fn entry(&self, seq: Seq) -> Option<Entry> {
        self.rows.get(&seq).map(|row| row.entry.clone())
    }
}
