//! Jobs over many dead letters.

use std::ops::Bound;

use redrive_core::Moment;
use redrive_core::entry::Change;
use redrive_core::triage::job::JobAct;
use redrive_core::triage::{Filter, Job, JobId, JobPlan, JobState, Subject};
use redrive_store::operate::{Advance, Refusal};

use super::{Check, Fate, Model, Record};

impl Model {
    pub(super) fn start_job(&mut self, plan: &JobPlan, at: Moment) -> Result<JobId, Refusal> {
        if plan.strategy.check().is_err() {
            return Err(Refusal::Senseless(String::new()));
        }
        if let JobAct::Redrive(redrive) = &plan.act
            && let Some(to) = &redrive.to
        {
            self.declared(to)?;
        }
        let id = JobId(self.jobs.len() as u64 + 1);
        let planned = self.events.values().filter(|record| is_meant(&plan.filter, record)).count() as u64;
        self.jobs.push(Job::begin(id, plan.clone(), "", at, (planned, self.deaths)));
        Ok(id)
    }

    pub(super) fn turn_job(&mut self, id: JobId, state: JobState, at: Moment) -> Result<u64, Refusal> {
        let Some(job) = self.jobs.iter_mut().find(|job| job.id == id) else { return Err(Refusal::NoJob) };
        if job.state.is_over() {
            return Err(Refusal::JobOver { is: job.state.as_str() });
        }
        job.state = state;
        if state == JobState::Running {
            job.running_since = at;
            job.taken_before = job.taken;
        }
        job.ended = state.is_over().then_some(at);
        Ok(1)
    }

    /// A step of a job was committed.
    pub(in super::super) fn advance(&mut self, step: Advance) {
        let Some(job) = self.jobs.iter().find(|job| job.id == step.job).cloned() else { return };
        if job.state != JobState::Running || job.cursor != step.from || job.exhausted {
            return;
        }
        let after = job.cursor.map_or(Bound::Unbounded, Bound::Excluded);
        let rows: Vec<_> = self.events.range((after, Bound::Unbounded)).map(|(seq, _)| *seq).collect();
        let (mut taken, mut skipped, mut cursor, mut room) = (0, 0, job.cursor, step.most);
        let mut left =
            rows.into_iter().filter(|seq| is_row(&self.events[seq])).collect::<Vec<_>>().into_iter();
        while room > 0
            && let Some(seq) = left.next()
        {
            cursor = Some(seq);
            let record = &self.events[&seq];
            // Only what was dead when it began: what died since was put back by somebody, and had its turn.
            if !is_meant(&job.plan.filter, record) || record.death > job.deaths {
                continue;
            }
            match &job.plan.act {
                JobAct::Redrive(redrive) if self.check_redrive(record, redrive, step.at).is_ok() => {
                    self.redrive(seq, redrive, Some(job.id), step.at);
                }
                JobAct::Redrive(_) => {
                    skipped += 1;
                    continue;
                }
                JobAct::Discard => self.discard(seq, step.at),
            }
            taken += 1;
            room -= 1;
        }
        let exhausted = left.next().is_none();
        self.job_mut(job.id, |job| {
            job.cursor = cursor;
            job.exhausted = exhausted;
            job.taken += taken;
            job.skipped += skipped;
        });
    }

    /// Something became of an event that a job put back.
    pub(super) fn job_heard(&mut self, id: JobId, change: &Change) {
        self.job_mut(id, |job| match change {
            Change::Done | Change::DoneWith { .. } => job.done += 1,
            Change::Dead { .. } => job.failed += 1,
            Change::Dropped { .. } | Change::Expired { .. } => job.other += 1,
            Change::Again(_) | Change::Strike | Change::GoOn => {}
        });
    }

    pub(super) fn job_mut(&mut self, id: JobId, change: impl FnOnce(&mut Job)) {
        if let Some(job) = self.jobs.iter_mut().find(|job| job.id == id) {
            change(job);
        }
    }

    /// What a store says of a job.
    pub(in super::super) fn check_job(&self, is: &Job) -> Check {
        let Some(should) = self.jobs.iter().find(|job| job.id == is.id) else {
            return Err(format!("nobody started {is:?}"));
        };
        let same = Job { why: is.why.clone(), who: is.who.clone(), ..should.clone() };
        if *is != same {
            return Err(format!("a job is {is:?}, and should be {should:?}"));
        }
        let under_way = self.events.values().filter(|record| record.job == Some(is.id)).count() as u64;
        let redrives = matches!(is.plan.act, JobAct::Redrive(_));
        if redrives && is.under_way() != under_way {
            return Err(format!("{is:?} has {under_way} letters under way"));
        }
        Ok(())
    }
}

/// Whether there is still something of it in the store beside its receipt.
fn is_row(record: &Record) -> bool {
    let restorable = matches!(record.fate, Fate::Discarded { restorable: true, .. });
    record.fate.exists() || (restorable && record.remembered > Moment::default())
}

/// Whether it is a dead letter that a filter means.
fn is_meant(filter: &Filter, record: &Record) -> bool {
    let Fate::Dead { reason, .. } = record.fate else { return false };
    filter.matches(Subject {
        event: &record.event,
        at: record.died,
        attempts: record.progress.attempts,
        cause: None,
        reason: Some(reason),
        story: record.progress.story.as_deref(),
    })
}
