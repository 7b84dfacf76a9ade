//! Jobs over many dead letters.

use std::ops::Bound;

use redrive_core::Moment;
use redrive_core::queue_entry::EventChange;
use redrive_core::triage::job::JobAct;
use redrive_core::triage::{Filter, FilterSubject, Job, JobId, JobPlan, JobState};
use redrive_store::operate::{JobAdvance, Refusal};

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
    pub(in super::super) fn advance(&mut self, step: JobAdvance) {
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
            // Only letters that were dead when it began: a letter that died since was redriven and had its
            // turn.
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
                // No operator of the simulation starts one.
                JobAct::RetryNow => continue,
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

    /// An event that a job redrove was settled.
    pub(super) fn job_heard(&mut self, id: JobId, change: &EventChange) {
        self.job_mut(id, |job| match change {
            EventChange::Done | EventChange::DoneWith { .. } => job.done += 1,
            EventChange::Dead { .. } => job.failed += 1,
            EventChange::Dropped { .. } | EventChange::Expired { .. } => job.other += 1,
            EventChange::Retry(_) | EventChange::CountCrash | EventChange::Unpark => {}
        });
    }

    pub(super) fn job_mut(&mut self, id: JobId, change: impl FnOnce(&mut Job)) {
        if let Some(job) = self.jobs.iter_mut().find(|job| job.id == id) {
            change(job);
        }
    }

    /// Compares a store's job with the truth.
    pub(in super::super) fn check_job(&self, is: &Job) -> Check {
        let Some(should) = self.jobs.iter().find(|job| job.id == is.id) else {
            return Err(format!("the store has a job that was never started: {is:?}"));
        };
        let same = Job { why: is.why.clone(), who: is.who.clone(), ..should.clone() };
        if *is != same {
            return Err(format!("a job differs from what it should be: {is:?} instead of {should:?}"));
        }
        let under_way = self.events.values().filter(|record| record.job == Some(is.id)).count() as u64;
        let redrives = matches!(is.plan.act, JobAct::Redrive(_));
        if redrives && is.under_way() != under_way {
            return Err(format!(
                "a job counts other letters as under way than the {under_way} that are: {is:?}"
            ));
        }
        Ok(())
    }
}

/// Whether the store still has a row of it beside its dedupe record.
fn is_row(record: &Record) -> bool {
    let restorable = matches!(record.fate, Fate::Discarded { restorable: true, .. });
    record.fate.exists() || (restorable && record.remembered > Moment::default())
}

/// Whether it is a dead letter that a filter selects.
fn is_meant(filter: &Filter, record: &Record) -> bool {
    let Fate::Dead { reason, .. } = record.fate else { return false };
    filter.matches(FilterSubject {
        event: &record.event,
        at: record.died,
        attempts: record.progress.attempts,
        cause: None,
        reason: Some(reason),
        history: record.progress.history.as_deref(),
    })
}
