//! What operators order. Each order is one commit with its line in the audit, also where all of it is refused:
//! who tried is worth knowing.

use redrive_core::Moment;
use redrive_core::entry::Park;
use redrive_core::event::{DeadReason, State as Where};
use redrive_core::planted::{Flaw, has};
use redrive_core::triage::Job;

use super::row::{End, Identity, PutBack, Row};
use super::state::State;
use crate::operate::{Act, Deed, Operated, Order, Refusal, Target, What, check_targets, refused};

impl State {
    /// Does what an operator orders.
    pub(super) fn operate(&mut self, order: Order) -> Operated {
        let Order { by, at, what } = order;
        self.see(at);
        let one = |done: Result<u64, Refusal>| match done {
            Ok(changed) => Operated { changed, ..Operated::default() },
            Err(refusal) => refused(refusal),
        };
        let done = match &what {
            What::Events(targets, act) => self.act_on_all(targets, act, at),
            What::Edit(target, edited) => self.edit(target, edited, at).unwrap_or_else(refused),
            What::SkipHead { queue, tenant, key } => one(self.skip_head(queue, tenant, key).map(|()| 1)),
            What::Unpark { queue, tenant, key } => one(self.unpark(queue, tenant, key)),
            What::Set { rule, until, why } => one(self.set_rule(rule, *until, why, &by, at).map(|()| 1)),
            What::Lift(rule) => one(self.lift_rule(rule).map(|()| 1)),
            What::Start(plan) => match self.start(plan, &by, at) {
                Ok(job) => Operated { changed: 1, job: Some(job), ..Operated::default() },
                Err(refusal) => refused(refusal),
            },
            What::Turn(id, to, why) => one(self.turn(*id, *to, why, at).map(|()| 1)),
            What::Import(letters) => self.import(letters, at),
            What::Resolve { scope, resolution, .. } => one(self.resolve(scope, resolution, at).map(|()| 1)),
            What::Note { count, .. } => one(Ok(*count)),
        };
        let letters = what.job().or(done.job).and_then(|id| self.jobs.get(&id)).map(Job::letters);
        self.write_line(by, at, Deed::of(&what, &done, letters));
        done
    }

    fn act_on_all(&mut self, targets: &[Target], act: &Act, at: Moment) -> Operated {
        let mut done = Operated::default();
        if let Err(refusal) = check_targets(targets) {
            return refused(refusal);
        }
        let by = PutBack::Order(self.next_line());
        for (place, target) in targets.iter().enumerate() {
            match self.target(target, act).and_then(|row| self.act(row, act, by, at)) {
                Ok(()) => done.changed += 1,
                Err(refusal) => done.refused.push((place, refusal)),
            }
        }
        done
    }

    fn target(&self, target: &Target, act: &Act) -> Result<Row, Refusal> {
        if has(Flaw::RestoreAfterForgetting) && *act == Act::Restore {
            return self.by_row(target).ok_or(Refusal::Unknown);
        }
        self.known(target)
    }

    /// The event that is meant, if it has not ended.
    pub(super) fn known(&self, target: &Target) -> Result<Row, Refusal> {
        let Target { tenant, queue, id, rev } = target.clone();
        let receipt = self.receipts.get(&Identity { tenant, queue, id }).ok_or(Refusal::Unknown)?;
        let end = receipt.end.as_ref();
        if let Some(into) = end.and_then(|end| end.into.clone()) {
            return Err(Refusal::Edited { into });
        }
        let ended = || Refusal::State { is: end.map_or(Where::Done, |end| end.state) };
        let row = self.row_of(receipt).ok_or_else(ended)?;
        match rev {
            Some(rev) if rev != row.entry.rev => Err(Refusal::Changed { is: row.entry.rev }),
            _ => Ok(row.clone()),
        }
    }

    /// What no restore may go by: an event without its receipt.
    fn by_row(&self, target: &Target) -> Option<Row> {
        let mut rows = self.rows.iter().map(|(_, row)| row);
        let meant = rows.find(|row| {
            let event = &row.entry.event;
            event.tenant == target.tenant && event.queue == target.queue && event.id == target.id
        });
        meant.cloned()
    }

    fn act(&mut self, row: Row, act: &Act, by: PutBack, at: Moment) -> Result<(), Refusal> {
        let is = self.place_of(&row, at);
        let state = Refusal::State { is };
        match act {
            Act::Redrive(redrive) if row.letter().is_some() => {
                self.check_redrive(&row, redrive, at)?;
                self.redrive(row, redrive, by, at);
            }
            Act::Discard if !row.discarded => self.discard(row, at),
            Act::Restore if row.discarded => self.restore(row, at)?,
            Act::Kill if row.lives() => self.kill(row, at),
            Act::RetryNow if row.is_free() => self.retry_now(row, at),
            _ => return Err(state),
        }
        Ok(())
    }

    /// Takes an event away, so that it can be restored for a time.
    pub(super) fn discard(&mut self, mut row: Row, at: Moment) {
        if row.is_out() {
            row.entry.progress = row.entry.progress.taken_away(at);
        }
        self.job_saw_the_end(&row, Where::Discarded);
        let Row { entry, .. } = &row;
        let end = End::of(Where::Discarded, at, entry.progress.attempts, entry.progress.story.clone());
        self.stamp(&Identity::of(&entry.event), at, Some(end));
        if row.lives() {
            self.recall();
        }
        row.entry.rev += 1;
        row.discarded = true;
        row.lease = None;
        row.put_back = None;
        let chain = row.chain.clone();
        self.write(row.entry.seq, Some(row));
        if let Some(chain) = chain {
            self.relieve(&chain);
        }
    }

    /// Makes a dead letter of what was discarded.
    fn restore(&mut self, mut row: Row, at: Moment) -> Result<(), Refusal> {
        let identity = Identity::of(&row.entry.event);
        if let Some(receipt) = self.receipts.alter(&identity) {
            if receipt.until < at && !has(Flaw::RestoreAfterForgetting) {
                return Err(Refusal::State { is: Where::Discarded });
            }
            receipt.end = None;
            self.fading.remove(&(receipt.until, identity));
        }
        let reason = row.death.as_ref().map_or(DeadReason::Killed, |death| death.reason);
        row.entry.rev += 1;
        self.bury(row, reason, at, Park::GoOn);
        Ok(())
    }

    fn kill(&mut self, mut row: Row, at: Moment) {
        if row.is_out() {
            row.entry.progress = row.entry.progress.taken_away(at);
        }
        row.entry.rev += 1;
        self.bury(row, DeadReason::Killed, at, Park::GoOn);
        self.recall();
    }

    fn retry_now(&mut self, mut row: Row, at: Moment) {
        if row.entry.progress.due <= at {
            return;
        }
        let seq = row.entry.seq;
        row.entry.progress.due = at;
        row.entry.rev += 1;
        self.write(seq, Some(row));
        // It may run already, only sooner than was told.
        self.arrived.push(seq);
    }
}
