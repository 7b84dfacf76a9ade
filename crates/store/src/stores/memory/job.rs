//! Jobs: changes to many dead letters, a step at a time, each step a commit with how far the job has come.

use redrive_core::Moment;
use redrive_core::event::State as Where;
use redrive_core::planted::{Flaw, has};
use redrive_core::triage::job::JobAct;
use redrive_core::triage::{Job, JobId, JobPlan, JobState, Operator};

use super::group::is_meant_letter;
use super::row::{PutBack, Row};
use super::state::{Counter, State};
use crate::operate::{Advance, Refusal};

/// How many events a step looks at, so that it stays short where few are meant.
const LOOKED_MAX: usize = 10_000;
/// How many of the jobs that are over are told.
const JOBS_TOLD: usize = 100;

impl State {
    pub(super) fn jobs(&self, id: Option<JobId>) -> Vec<Job> {
        match id {
            Some(id) => self.jobs.get(&id).cloned().into_iter().collect(),
            None => {
                let told = self.jobs.iter().rev().enumerate();
                let told = told.filter(|(place, (_, job))| *place < JOBS_TOLD || !job.state.is_over());
                told.map(|(_, (_, job))| job.clone()).collect()
            }
        }
    }

    pub(super) fn start(&mut self, plan: &JobPlan, by: &Operator, at: Moment) -> Result<JobId, Refusal> {
        plan.strategy.check().map_err(Refusal::Senseless)?;
        if let JobAct::Redrive(redrive) = &plan.act
            && let Some(to) = &redrive.to
        {
            self.declared(to)?;
        }
        let id = JobId(self.jobs.iter().next_back().map_or(1, |(id, _)| id.0 + 1));
        let planned = self.matching(&plan.filter).letters;
        let deaths = self.counters.get(&Counter::Deaths).copied().unwrap_or_default();
        let job = Job::begin(id, plan.clone(), &by.who, at, (planned, deaths));
        self.jobs.put(id, job);
        Ok(id)
    }

    pub(super) fn turn(&mut self, id: JobId, to: JobState, why: &str, at: Moment) -> Result<(), Refusal> {
        let is = self.jobs.get(&id).ok_or(Refusal::NoJob)?.state;
        if is.is_over() {
            return Err(Refusal::JobOver { is: is.as_str() });
        }
        if let Some(job) = self.jobs.alter(&id) {
            job.turn(to, why, at);
        }
        Ok(())
    }

    /// Takes a job a step further, unless somebody has done so already.
    pub(super) fn advance(&mut self, step: Advance) -> Option<Job> {
        let job = self.jobs.get(&step.job)?.clone();
        if job.state != JobState::Running || job.cursor != step.from || job.exhausted {
            return Some(job);
        }
        self.see(step.at);
        let Looked { meant, cursor, exhausted } = self.look_for(&job, step.most, step.at);
        let (mut taken, mut skipped) = (0, 0);
        for row in meant {
            match &job.plan.act {
                JobAct::Redrive(redrive) if self.check_redrive(&row, redrive, step.at).is_ok() => {
                    self.redrive(row, redrive, PutBack::Job(job.id), step.at);
                    taken += 1;
                }
                JobAct::Redrive(_) => skipped += 1,
                JobAct::Discard => {
                    self.discard(row, step.at);
                    taken += 1;
                }
            }
        }
        let job = self.jobs.alter(&step.job)?;
        job.cursor = cursor;
        job.exhausted = exhausted;
        job.took(taken, step.at);
        job.skipped += skipped;
        Some(job.clone())
    }

    /// The next letters of a job: so many that it may change, and those between them that it may not.
    fn look_for(&self, job: &Job, most: u32, at: Moment) -> Looked {
        let after = job.cursor.map_or(std::ops::Bound::Unbounded, std::ops::Bound::Excluded);
        let mut rows = self.rows.range((after, std::ops::Bound::Unbounded)).map(|(_, row)| row);
        let (mut meant, mut cursor, mut room) = (Vec::new(), job.cursor, most);
        for _ in 0..LOOKED_MAX {
            if room == 0 {
                break;
            }
            let Some(row) = rows.next() else { break };
            cursor = Some(row.entry.seq);
            if !is_meant_letter(&job.plan.filter, row) || !was_dead(row, job) {
                continue;
            }
            let may = match &job.plan.act {
                JobAct::Redrive(redrive) => self.check_redrive(row, redrive, at).is_ok(),
                JobAct::Discard => true,
            };
            room -= u32::from(may);
            meant.push(row.clone());
        }
        Looked { meant, cursor, exhausted: rows.next().is_none() }
    }

    /// Tells a job of the end of an event that it put back.
    pub(super) fn job_saw_the_end(&mut self, row: &Row, state: Where) {
        let Some(PutBack::Job(id)) = row.put_back else { return };
        if let Some(job) = self.jobs.alter(&id) {
            match state {
                Where::Done => job.done += 1,
                _ => job.other += 1,
            }
        }
    }
}

struct Looked {
    meant: Vec<Row>,
    cursor: Option<redrive_core::entry::Seq>,
    exhausted: bool,
}

/// Whether a letter was dead when a job began, by the number of its death.
fn was_dead(row: &Row, job: &Job) -> bool {
    has(Flaw::TwoJobsOneLetter) || row.letter().is_some_and(|death| death.number <= job.deaths)
}
