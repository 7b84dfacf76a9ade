//! What becomes of an operator's orders.

use std::sync::Arc;

use redrive_core::entry::{Progress, Seq};
use redrive_core::event::{DeadReason, Mode, State};
use redrive_core::triage::{Job, JobId, JobPlan, JobState, Redrive, Rule};
use redrive_core::{Event, Moment};
use redrive_store::operate::{Act, Operated, Refusal, What};

use super::{Check, Deaths, Fate, Gone, Model, Record};

/// Which event an order is about: whose identity, as of which change.
#[derive(Debug, Clone, Copy)]
pub(in super::super) struct Aim {
    pub(in super::super) intent: usize,
    pub(in super::super) rev: Option<u32>,
}

/// An order, with numbers in place of names.
#[derive(Debug, Clone)]
pub(in super::super) enum Wish {
    Act(Vec<Aim>, Act),
    Edit { aim: Aim, into: usize, event: Arc<Event>, out_of_order: bool },
    SkipHead(usize),
    Unpark(usize),
    Set { rule: Rule, until: Option<Moment> },
    Lift(Rule),
    Start(Box<JobPlan>),
    Turn(JobId, JobState),
}

impl Model {
    /// An order was committed. Gives what its operator should be told.
    pub(in super::super) fn operate(&mut self, wish: &Wish, verb: &What, at: Moment) -> Operated {
        let one = |done: Result<u64, Refusal>| match done {
            Ok(changed) => Operated { changed, ..Operated::default() },
            Err(refusal) => Operated { refused: vec![(0, refusal)], ..Operated::default() },
        };
        let done = match wish {
            Wish::Act(aims, act) => {
                let mut done = Operated::default();
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
                    Ok(unsure) => Operated {
                        changed: 1,
                        unsure: if unsure { vec![0] } else { Vec::new() },
                        ..Operated::default()
                    },
                    Err(refusal) => one(Err(refusal)),
                }
            }
            Wish::SkipHead(chain) => one(self.skip_head(*chain)),
            Wish::Unpark(chain) => one(self.unpark(*chain)),
            Wish::Set { rule, until } => one(self.set(rule, *until, at)),
            Wish::Lift(rule) => one(self.lift(rule)),
            Wish::Start(plan) => match self.start_job(plan, at) {
                Ok(job) => Operated { job: Some(job), ..one(Ok(1)) },
                Err(refusal) => one(Err(refusal)),
            },
            Wish::Turn(job, state) => one(self.turn_job(*job, *state, at)),
        };
        // A line about a job says how many letters the job is about.
        let id = if let Wish::Turn(job, _) = wish { Some(*job) } else { done.job };
        let job = id.and_then(|id| self.jobs.iter().find(|job| job.id == id)).filter(|_| done.changed > 0);
        self.audit.push((verb.word(), job.map_or(done.changed, Job::letters)));
        done
    }

    fn aimed(&self, Aim { intent, rev }: Aim, at: Moment) -> Result<&Record, Refusal> {
        if let Some(gone) = self.gone.get(&intent) {
            // Forgotten by a commit, and not by the clock alone.
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

    /// Where an event is. What lives may be in several places that are not told apart here.
    fn place(&self, record: &Record, _at: Moment) -> State {
        if record.lease.as_ref().is_some_and(|lease| lease.out) {
            return State::Running;
        }
        record.fate.state().unwrap_or(State::Ready)
    }

    fn act(&mut self, aim: Aim, act: &Act, at: Moment) -> Result<(), Refusal> {
        let record = self.aimed(aim, at)?;
        let seq = record.seq;
        let state = Refusal::State { is: self.place(record, at) };
        let out = record.lease.as_ref().is_some_and(|lease| lease.out);
        match (act, record.fate) {
            (Act::Redrive(redrive), Fate::Dead { .. }) => {
                self.check_redrive(record, redrive, at)?;
                self.redrive(seq, redrive, None, at);
            }
            (Act::Discard, Fate::Dead { .. } | Fate::Pending) => self.discard(seq, at),
            (Act::Restore, Fate::Discarded { was, .. }) => {
                if record.remembered < at {
                    return Err(state);
                }
                self.restore(seq, was, at);
            }
            (Act::Kill, Fate::Pending) => self.kill(seq, at),
            (Act::RetryNow, Fate::Pending) if !out => self.retry_now(seq, at),
            _ => return Err(state),
        }
        Ok(())
    }

    pub(super) fn check_redrive(
        &self,
        record: &Record,
        redrive: &Redrive,
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

    pub(super) fn redrive(&mut self, seq: Seq, redrive: &Redrive, job: Option<JobId>, at: Moment) {
        let stamp = self.stamp;
        let Some(record) = self.events.get_mut(&seq) else { return };
        record.progress = Progress {
            mode: Mode::Redrive,
            attempts: if redrive.keep_attempts { record.progress.attempts } else { 0 },
            story: record.progress.story.clone(),
            route: redrive.to.as_deref().map(Arc::from),
            out_of_order: is_passed(record) || record.progress.out_of_order,
            ..Progress::fresh(at)
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

    /// Gives whether an earlier attempt may have had an effect.
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
        let unsure = record.progress.story.as_ref().is_some_and(|story| story.is_unsure());
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
        record.progress = Progress { mode: Mode::Redrive, out_of_order, ..Progress::fresh(at) };
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

/// A dead letter lives again.
fn put_back(record: &mut Record, job: Option<JobId>, stamp: u64) {
    record.fate = Fate::Pending;
    record.rev += 1;
    record.lease = None;
    record.job = job;
    record.put_back = stamp;
    record.deaths = Deaths::default();
}

/// Whether it is a dead letter whose key went on without it.
pub(super) fn is_passed(record: &Record) -> bool {
    record.chain.is_some() && matches!(record.fate, Fate::Dead { holds: None, .. })
}

/// Whether an operator was told what became of an order.
pub(in super::super) fn check_operated(is: &Operated, should: &Operated) -> Check {
    let same = is.changed == should.changed
        && is.job == should.job
        && is.unsure == should.unsure
        && is.refused.len() == should.refused.len()
        && is
            .refused
            .iter()
            .zip(&should.refused)
            .all(|(is, should)| is.0 == should.0 && alike(&is.1, &should.1));
    if same {
        Ok(())
    } else {
        Err(format!("an order is answered with {is:?}, and should be with {should:?}"))
    }
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
