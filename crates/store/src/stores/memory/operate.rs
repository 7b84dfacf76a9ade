//! Operators' commands. Each command is one commit with its line in the audit, even if all of it is refused: the
//! attempt is worth recording.

use redrive_core::Moment;
use redrive_core::event::{DeadReason, State as Where};
use redrive_core::planted::{PlantedBug, has};
use redrive_core::queue_entry::ParkFollowers;
use redrive_core::triage::Job;

use super::row::{End, Identity, RedrivenBy, Row};
use super::state::State;
use crate::operate::{
    AuditEntry, CommandResult, EventAction, EventRef, OperatorAction, OperatorCommand, Refusal,
    check_targets, refused,
};

pub(super) mod edit;

pub(super) mod rules;

pub(super) mod groups;

pub(super) mod failing;

pub(super) mod jobs;

pub(super) mod audit;

impl State {
    /// Carries out a command.
    pub(super) fn operate(&mut self, order: OperatorCommand) -> CommandResult {
        let OperatorCommand { by, at, what } = order;
        self.see(at);
        let one = |done: Result<u64, Refusal>| match done {
            Ok(changed) => CommandResult { changed, ..CommandResult::default() },
            Err(refusal) => refused(refusal),
        };
        let done = match &what {
            OperatorAction::Events(targets, act) => self.act_on_all(targets, act, at),
            OperatorAction::Edit(target, edited) => self.edit(target, edited, at).unwrap_or_else(refused),
            OperatorAction::SkipHead { queue, tenant, key } => {
                one(self.skip_head(queue, tenant, key).map(|()| 1))
            }
            OperatorAction::Unpark { queue, tenant, key } => one(self.unpark(queue, tenant, key)),
            OperatorAction::Set { rule, until, why } => {
                one(self.set_rule(rule, *until, why, &by, at).map(|()| 1))
            }
            OperatorAction::Lift(rule) => one(self.lift_rule(rule).map(|()| 1)),
            OperatorAction::Start(plan) => match self.start(plan, &by, at) {
                Ok(job) => CommandResult { changed: 1, job: Some(job), ..CommandResult::default() },
                Err(refusal) => refused(refusal),
            },
            OperatorAction::Turn(id, to, why) => one(self.turn(*id, *to, why, at).map(|()| 1)),
            OperatorAction::Import(letters) => self.import(letters, at),
            OperatorAction::Resolve { scope, resolution, .. } => {
                one(self.resolve(scope, resolution, at).map(|()| 1))
            }
            OperatorAction::Note { count, .. } => one(Ok(*count)),
        };
        let letters = what.job().or(done.job).and_then(|id| self.jobs.get(&id)).map(Job::letters);
        self.write_line(by, at, AuditEntry::of(&what, &done, letters));
        done
    }

    fn act_on_all(&mut self, targets: &[EventRef], act: &EventAction, at: Moment) -> CommandResult {
        let mut done = CommandResult::default();
        if let Err(refusal) = check_targets(targets) {
            return refused(refusal);
        }
        let by = RedrivenBy::Order(self.next_line());
        for (place, target) in targets.iter().enumerate() {
            match self.target(target, act).and_then(|row| self.act(row, act, by, at)) {
                Ok(()) => done.changed += 1,
                Err(refusal) => done.refused.push((place, refusal)),
            }
        }
        done
    }

    fn target(&self, target: &EventRef, act: &EventAction) -> Result<Row, Refusal> {
        if has(PlantedBug::RestoreAfterForgetting) && *act == EventAction::Restore {
            return self.by_row(target).ok_or(Refusal::Unknown);
        }
        self.known(target)
    }

    /// The event that a command names, if it has not ended.
    pub(super) fn known(&self, target: &EventRef) -> Result<Row, Refusal> {
        let EventRef { tenant, queue, id, rev } = target.clone();
        let dedupe_record =
            self.dedupe_records.get(&Identity { tenant, queue, id }).ok_or(Refusal::Unknown)?;
        let end = dedupe_record.end.as_ref();
        if let Some(into) = end.and_then(|end| end.into.clone()) {
            return Err(Refusal::Edited { into });
        }
        let ended = || Refusal::State { is: end.map_or(Where::Done, |end| end.state) };
        let row = self.row_of(dedupe_record).ok_or_else(ended)?;
        match rev {
            Some(rev) if rev != row.entry.rev => Err(Refusal::Changed { is: row.entry.rev }),
            _ => Ok(row.clone()),
        }
    }

    /// A planted bug: a restore that does not check the dedupe record.
    fn by_row(&self, target: &EventRef) -> Option<Row> {
        let mut rows = self.rows.iter().map(|(_, row)| row);
        let meant = rows.find(|row| {
            let event = &row.entry.event;
            event.tenant == target.tenant && event.queue == target.queue && event.id == target.id
        });
        meant.cloned()
    }

    fn act(&mut self, row: Row, act: &EventAction, by: RedrivenBy, at: Moment) -> Result<(), Refusal> {
        let is = self.place_of(&row, at);
        let state = Refusal::State { is };
        match act {
            EventAction::Redrive(redrive) if row.letter().is_some() => {
                self.check_redrive(&row, redrive, at)?;
                self.redrive(row, redrive, by, at);
            }
            EventAction::Discard if !row.discarded => self.discard(row, at),
            EventAction::Restore if row.discarded => self.restore(row, at)?,
            EventAction::Kill if row.lives() => self.kill(row, at),
            EventAction::RetryNow if row.is_free() => self.retry_now(row, at),
            _ => return Err(state),
        }
        Ok(())
    }

    /// Discards an event, so that it can be restored for a time.
    pub(super) fn discard(&mut self, mut row: Row, at: Moment) {
        if row.is_out() {
            row.entry.progress = row.entry.progress.taken_away(at);
        }
        self.job_saw_the_end(&row, Where::Discarded);
        let Row { entry, .. } = &row;
        let end = End::of(Where::Discarded, at, entry.progress.attempts, entry.progress.history.clone());
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

    /// Makes a dead letter of a discarded event.
    fn restore(&mut self, mut row: Row, at: Moment) -> Result<(), Refusal> {
        let identity = Identity::of(&row.entry.event);
        if let Some(dedupe_record) = self.dedupe_records.alter(&identity) {
            if dedupe_record.until < at && !has(PlantedBug::RestoreAfterForgetting) {
                return Err(Refusal::State { is: Where::Discarded });
            }
            dedupe_record.end = None;
            self.fading.remove(&(dedupe_record.until, identity));
        }
        let reason = row.death.as_ref().map_or(DeadReason::Killed, |death| death.reason);
        row.entry.rev += 1;
        self.bury(row, reason, at, ParkFollowers::No);
        Ok(())
    }

    fn kill(&mut self, mut row: Row, at: Moment) {
        if row.is_out() {
            row.entry.progress = row.entry.progress.taken_away(at);
        }
        row.entry.rev += 1;
        self.bury(row, DeadReason::Killed, at, ParkFollowers::No);
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
        // It may run already, only sooner than its owner knows.
        self.arrived.push(seq);
    }
}
