//! The effects of operators' commands.

use std::sync::Arc;

use redrive_core::event::{DeadReason, Mode, State};
use redrive_core::queue_entry::{EventProgress, Seq};
use redrive_core::triage::{Job, JobId, JobPlan, JobState, RedriveOptions, Rule};
use redrive_core::{Event, Moment};
use redrive_store::operate::{CommandResult, EventAction, OperatorAction, Refusal};

use super::{Check, Deaths, Fate, Gone, Model, Record};

/// The target of a command: an identity and a revision.
#[derive(Debug, Clone, Copy)]
pub(in super::super) struct Aim {
    pub(in super::super) intent: usize,
    pub(in super::super) rev: Option<u32>,
}

/// A command, with numbers in place of names.
#[derive(Debug, Clone)]
pub(in super::super) enum Wish {
    Act(Vec<Aim>, EventAction),
    Edit { aim: Aim, into: usize, event: Arc<Event>, out_of_order: bool },
    SkipHead(usize),
    Unpark(usize),
    Set { rule: Rule, until: Option<Moment> },
    Lift(Rule),
    Start(Box<JobPlan>),
    Turn(JobId, JobState),
}

impl Model {
    /// A command was committed. Returns the answer that its operator should get.
    pub(in super::super) fn operate(
        &mut self,
        wish: &Wish,
        verb: &OperatorAction,
        at: Moment,
    ) -> CommandResult {
        let one = |done: Result<u64, Refusal>| match done {
            Ok(changed) => CommandResult { changed, ..CommandResult::default() },
            Err(refusal) => CommandResult { refused: vec![(0, refusal)], ..CommandResult::default() },
        };
        let done = match wish {
            Wish::Act(aims, act) => {
                let mut done = CommandResult::default();
                for (place, aim) in aims.iter().enumerate() {
                    match self.act(*aim, act, at) {
                        Ok(()) => done.changed += 1,
                        Err(refusal) => done.refused.push((place, refusal)),
                    }
                }
                done
            }
            Wish::Edit { aim, into, event, out_of_order } => {
                match self.edit(*aim, *into, event, *out_of_order, at) {
                    Ok(unsure) => CommandResult {
                        changed: 1,
                        unsure: if unsure { vec![0] } else { Vec::new() },
                        ..CommandResult::default()
                    },
                    Err(refusal) => one(Err(refusal)),
                }
            }
            Wish::SkipHead(chain) => one(self.skip_head(*chain)),
            Wish::Unpark(chain) => one(self.unpark(*chain)),
            Wish::Set { rule, until } => one(self.set(rule, *until, at)),
            Wish::Lift(rule) => one(self.lift(rule)),
            Wish::Start(plan) => match self.start_job(plan, at) {
                Ok(job) => CommandResult { job: Some(job), ..one(Ok(1)) },
                Err(refusal) => one(Err(refusal)),
            },
            Wish::Turn(job, state) => one(self.turn_job(*job, *state, at)),
        };
        // An entry about a job has the number of the job's dead letters.
        let id = if let Wish::Turn(job, _) = wish { Some(*job) } else { done.job };
        let job = id.and_then(|id| self.jobs.iter().find(|job| job.id == id)).filter(|_| done.changed > 0);
        self.audit.push((verb.word(), job.map_or(done.changed, Job::letters)));
        done
    }

    fn aimed(&self, Aim { intent, rev }: Aim, at: Moment) -> Result<&Record, Refusal> {
        if let Some(gone) = self.gone.get(&intent) {
            // Forgotten by a commit, and not only by the clock.
            let known = gone.remembered > Moment::default();
            return Err(if known { Refusal::Edited { into: gone.into.clone() } } else { Refusal::Unknown });
        }
        let record = self.record_of(intent).ok_or(Refusal::Unknown)?;
        let exists = record.fate.exists();
        if !exists && record.remembered == Moment::default() {
            return Err(Refusal::Unknown);
        }
        let is_row = exists || matches!(record.fate, Fate::Discarded { restorable: true, .. });
        if !is_row {
            return Err(Refusal::State { is: self.place(record, at) });
        }
        match rev {
            Some(rev) if rev != record.rev => Err(Refusal::Changed { is: record.rev }),
            _ => Ok(record),
        }
    }

    /// The state of an event. Several states of a live event are not distinguished here.
    fn place(&self, record: &Record, _at: Moment) -> State {
        if record.lease.as_ref().is_some_and(|lease| lease.out) {
            return State::Running;
        }
        record.fate.state().unwrap_or(State::Ready)
    }

    fn act(&mut self, aim: Aim, act: &EventAction, at: Moment) -> Result<(), Refusal> {
        let record = self.aimed(aim, at)?;
        let seq = record.seq;
        let state = Refusal::State { is: self.place(record, at) };
        let out = record.lease.as_ref().is_some_and(|lease| lease.out);
        match (act, record.fate) {
            (EventAction::Redrive(redrive), Fate::Dead { .. }) => {
                self.check_redrive(record, redrive, at)?;
                self.redrive(seq, redrive, None, at);
            }
            (EventAction::Discard, Fate::Dead { .. } | Fate::Pending) => self.discard(seq, at),
            (EventAction::Restore, Fate::Discarded { was, .. }) => {
                if record.remembered < at {
                    return Err(state);
                }
                self.restore(seq, was, at);
            }
            (EventAction::Kill, Fate::Pending) => self.kill(seq, at),
            (EventAction::RetryNow, Fate::Pending) if !out => self.retry_now(seq, at),
            _ => return Err(state),
        }
        Ok(())
    }

    pub(super) fn check_redrive(
        &self,
        record: &Record,
        redrive: &RedriveOptions,
        at: Moment,
    ) -> Result<(), Refusal> {
        if let Some(to) = &redrive.to {
            self.check_route(&record.event.queue, to)?;
        }
        if record.expires.is_some_and(|expires| expires <= at) {
            return Err(Refusal::Expired);
        }
        if is_passed(record) && !redrive.out_of_order {
            return Err(Refusal::OutOfOrder);
        }
        Ok(())
    }

    pub(super) fn redrive(&mut self, seq: Seq, redrive: &RedriveOptions, job: Option<JobId>, at: Moment) {
        let stamp = self.stamp;
        let Some(record) = self.events.get_mut(&seq) else { return };
        record.progress = EventProgress {
            mode: Mode::Redrive,
            attempts: if redrive.keep_attempts { record.progress.attempts } else { 0 },
            history: record.progress.history.clone(),
            route: redrive.to.as_deref().map(Arc::from),
            out_of_order: is_passed(record) || record.progress.out_of_order,
            ..EventProgress::fresh(at)
        };
        put_back(record, job, stamp);
        self.care_no_more(seq);
    }

    pub(super) fn discard(&mut self, seq: Seq, at: Moment) {
        let (window, stamp) = (self.window(seq), self.stamp);
        let Some(record) = self.events.get_mut(&seq) else { return };
        if record.lease.as_ref().is_some_and(|lease| lease.out) {
            record.progress = record.progress.taken_away(at);
        }
        let was = match record.fate {
            Fate::Dead { reason, .. } => reason,
            _ => DeadReason::Killed,
        };
        if record.fate == Fate::Pending {
            record.taken_away = stamp;
        }
        record.fate = Fate::Discarded { was, restorable: true };
        record.rev += 1;
        record.remembered = record.remembered.max(at + window);
        record.lease = None;
        let (chain, job) = (record.chain, record.job.take());
        if let Some(job) = job {
            self.job_mut(job, |job| job.other += 1);
        }
        if let Some(chain) = chain {
            self.relieve(chain);
        }
        self.care_no_more(seq);
    }

    fn restore(&mut self, seq: Seq, was: DeadReason, at: Moment) {
        self.die_by_order(seq, was, at);
    }

    fn kill(&mut self, seq: Seq, at: Moment) {
        let stamp = self.stamp;
        let Some(record) = self.events.get_mut(&seq) else { return };
        if record.lease.as_ref().is_some_and(|lease| lease.out) {
            record.progress = record.progress.taken_away(at);
        }
        record.taken_away = stamp;
        if let Some(job) = record.job {
            self.job_mut(job, |job| job.failed += 1);
        }
        self.die_by_order(seq, DeadReason::Killed, at);
    }

    fn die_by_order(&mut self, seq: Seq, reason: DeadReason, at: Moment) {
        let Some(record) = self.events.get_mut(&seq) else { return };
        record.rev += 1;
        let chain = record.chain;
        self.bury(seq, reason, None, at);
        self.care_no_more(seq);
        if let Some(chain) = chain {
            self.relieve(chain);
        }
    }

    fn retry_now(&mut self, seq: Seq, at: Moment) {
        if let Some(record) = self.events.get_mut(&seq).filter(|record| record.progress.due > at) {
            record.progress.due = at;
            record.rev += 1;
            record.hastened = record.rev;
        }
    }

    /// Returns whether an earlier attempt may have had an effect.
    fn edit(
        &mut self,
        aim: Aim,
        into: usize,
        event: &Arc<Event>,
        out_of_order: bool,
        at: Moment,
    ) -> Result<bool, Refusal> {
        let record = self.aimed(aim, at)?;
        let Fate::Dead { .. } = record.fate else {
            return Err(Refusal::State { is: self.place(record, at) });
        };
        if self.is_remembered(into, at) {
            return Err(Refusal::IdTaken { id: event.id.clone() });
        }
        let seq = record.seq;
        self.forget_identity(into);
        let record = &self.events[&seq];
        if is_passed(record) && !out_of_order {
            return Err(Refusal::OutOfOrder);
        }
        let (seq, spec, stamp) = (record.seq, &self.specs[record.queue], self.stamp);
        let (window, horizon) = (spec.window, spec.horizon);
        let Some(record) = self.events.get_mut(&seq) else { return Err(Refusal::Unknown) };
        let unsure = record.progress.history.as_ref().is_some_and(|history| history.is_unsure());
        let gone = Gone {
            seq,
            into: event.id.clone(),
            attempts: record.progress.attempts,
            remembered: record.remembered.max(at + window),
        };
        let original = record.intent;
        record.event = Arc::clone(event);
        record.expires = event.expires.map(|expires| expires.moment(at));
        record.remembered = at + horizon + window;
        record.result = None;
        let out_of_order = is_passed(record) || record.progress.out_of_order;
        record.progress = EventProgress { mode: Mode::Redrive, out_of_order, ..EventProgress::fresh(at) };
        put_back(record, None, stamp);
        self.care_no_more(seq);
        self.give_identity(into, seq);
        self.gone.insert(original, gone);
        if let Some(record) = self.events.get_mut(&seq) {
            record.intent = into;
        }
        Ok(unsure)
    }
}

/// Redrives a dead letter.
fn put_back(record: &mut Record, job: Option<JobId>, stamp: u64) {
    record.fate = Fate::Pending;
    record.rev += 1;
    record.lease = None;
    record.job = job;
    record.put_back = stamp;
    record.deaths = Deaths::default();
}

/// Whether it is a dead letter that does not park its key.
pub(super) fn is_passed(record: &Record) -> bool {
    record.chain.is_some() && matches!(record.fate, Fate::Dead { holds: None, .. })
}

/// Whether an operator got the right answer to a command.
pub(in super::super) fn check_operated(is: &CommandResult, should: &CommandResult) -> Check {
    let same = is.changed == should.changed
        && is.job == should.job
        && is.unsure == should.unsure
        && is.refused.len() == should.refused.len()
        && is
            .refused
            .iter()
            .zip(&should.refused)
            .all(|(is, should)| is.0 == should.0 && alike(&is.1, &should.1));
    if same { Ok(()) } else { Err(format!("the store answered an order with {is:?} instead of {should:?}")) }
}

fn alike(is: &Refusal, should: &Refusal) -> bool {
    let lives =
        |state: &State| matches!(state, State::Ready | State::Waiting | State::Parked | State::Quarantined);
    match (is, should) {
        (Refusal::State { is }, Refusal::State { is: should }) => {
            is == should || (lives(is) && lives(should))
        }
        (Refusal::Senseless(_), Refusal::Senseless(_)) => true,
        (is, should) => is == should,
    }
}
