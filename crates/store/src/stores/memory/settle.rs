//! Settling: the outcome of an attempt, under the fence.

use redrive_core::Moment;
use redrive_core::event::State as Where;
use redrive_core::planted::{PlantedBug, has};
use redrive_core::queue_entry::{EventChange, FencingToken, QueueEntry, Seq, SettleRequest, SettleResult};

use super::row::{End, Identity, RedrivenBy, Row};
use super::state::State;

/// Why a settle changes nothing.
pub(super) enum Refused {
    Fenced,
    Stale,
}

impl State {
    /// Settles an event.
    pub(super) fn settle(&mut self, settle: SettleRequest) -> SettleResult {
        let SettleRequest { token, seq, rev, at, change } = settle;
        self.see(at);
        match self.fenced(token, seq, rev) {
            // A command made it a dead letter; a guessed rev must not bring it back.
            Ok(row) if row.death.is_some() && change != EventChange::Unpark => SettleResult::Stale,
            Ok(row) => self.change(row, at, change),
            Err(Refused::Fenced) => SettleResult::Fenced,
            Err(Refused::Stale) => SettleResult::Stale,
        }
    }

    /// The event, if the caller still owns its shard and the event is unchanged.
    pub(super) fn fenced(&self, token: FencingToken, seq: Seq, rev: u32) -> Result<Row, Refused> {
        if !self.is_current(token) && !has(PlantedBug::FenceOff) {
            return Err(Refused::Fenced);
        }
        let row = self.rows.get(&seq).ok_or(Refused::Stale)?;
        if row.entry.shard != token.shard && !has(PlantedBug::FenceOff) {
            return Err(Refused::Fenced);
        }
        if row.discarded {
            return Err(Refused::Stale);
        }
        if row.entry.rev != rev && !has(PlantedBug::EpochWithoutRev) {
            return Err(Refused::Stale);
        }
        Ok(row.clone())
    }

    /// Changes an event, and hands out the next event of its key if that may run now.
    pub(super) fn change(&mut self, mut row: Row, at: Moment, change: EventChange) -> SettleResult {
        let seq = row.entry.seq;
        row.entry.rev += 1;
        let rev = row.entry.rev;
        let next = match change {
            EventChange::Done => self.end(row, at, None),
            EventChange::DoneWith { result, attempts, history } => {
                let lease = row.lease.as_ref().filter(|lease| lease.attempt == attempts);
                let token = lease.map(|lease| lease.token);
                self.end(row, at, Some(End { result, token, ..End::of(Where::Done, at, attempts, history) }))
            }
            EventChange::Dropped { attempts, history } => {
                self.end(row, at, Some(End::of(Where::Dropped, at, attempts, history)))
            }
            EventChange::Expired { attempts, history } => {
                self.end(row, at, Some(End::of(Where::Expired, at, attempts, history)))
            }
            EventChange::Retry(progress) => {
                if let Some(RedrivenBy::Retry(job)) = row.put_back {
                    row.put_back = None;
                    if let Some(job) = self.jobs.alter(&job) {
                        job.failed += 1;
                    }
                }
                row.entry.progress = progress;
                row.death = None;
                self.write(seq, Some(row))
            }
            EventChange::Dead { reason, progress, park } => {
                row.entry.progress = progress;
                self.bury(row, reason, at, park)
            }
            EventChange::CountCrash => {
                row.entry.progress.crash_count = row.entry.progress.crash_count.saturating_add(1);
                row.entry.progress.suspect = true;
                self.write(seq, Some(row))
            }
            EventChange::Unpark if row.death.is_some() => {
                row.entry.rev -= 1; // `let_go` raises it
                let chain = row.chain.clone();
                self.let_go(row).or_else(|| self.relieve(&chain?))
            }
            // A living event does not block its key by being dead: the change was meant for an earlier revision.
            EventChange::Unpark => return SettleResult::Stale,
        };
        let rev = self.rows.get(&seq).map_or(rev, |row| row.entry.rev);
        let next = next.filter(|next| *next != seq).and_then(|next| self.entry(next));
        SettleResult::Applied { rev, next }
    }

    /// Deletes an event that ended. Its dedupe record stays, and is extended if the end came late.
    pub(super) fn end(&mut self, row: Row, at: Moment, end: Option<End>) -> Option<Seq> {
        let identity = Identity::of(&row.entry.event);
        if has(PlantedBug::ReceiptGoesWithEvent) {
            self.forget_receipt(&identity);
        }
        self.job_saw_the_end(&row, end.as_ref().map_or(Where::Done, |end| end.state));
        self.stamp(&identity, at, end);
        // The next event of its key may be a dead letter, if it died while this one was redriven before it.
        self.write(row.entry.seq, None).or_else(|| self.relieve(&row.chain?))
    }

    /// Writes an end on a dedupe record, which is kept for a window from then on at least.
    pub(super) fn stamp(&mut self, identity: &Identity, at: Moment, end: Option<End>) {
        let window = self.queues.get(&identity.queue).map(|queue| queue.window).unwrap_or_default();
        if let Some(dedupe_record) = self.dedupe_records.alter(identity) {
            self.fading.remove(&(dedupe_record.until, identity.clone()));
            dedupe_record.until = dedupe_record.until.max(at + window);
            dedupe_record.end = end;
            self.fading.put((dedupe_record.until, identity.clone()), ());
        }
    }

    fn entry(&self, seq: Seq) -> Option<QueueEntry> {
        self.rows.get(&seq).map(|row| row.entry.clone())
    }
}
