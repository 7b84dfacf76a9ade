//! Jobs: bulk changes to many dead letters, a step at a time, each step a commit with the job's progress.

use redrive_core::Moment;
use redrive_core::event::{Mode, State as Where};
use redrive_core::planted::{PlantedBug, has};
use redrive_core::queue_entry::EventProgress;
use redrive_core::triage::job::JobAct;
use redrive_core::triage::{FilterSubject, Job, JobId, JobPlan, JobState, Operator, cause};

use crate::operate::{JobAdvance, Refusal};
use crate::stores::memory::operate::groups::is_meant_letter;
use crate::stores::memory::row::{RedrivenBy, Row};
use crate::stores::memory::state::{Counter, State};

/// How many events a step reads, so that it stays short if few of them match.
const LOOKED_MAX: usize = 10_000;
/// How many finished jobs are listed.
const JOBS_TOLD: usize = 100;

impl State {
    pub(in crate::stores::memory) fn jobs(&self, id: Option<JobId>) -> Vec<Job> {
        match id {
            Some(id) => self.jobs.get(&id).cloned().into_iter().collect(),
            None => {
                let told = self.jobs.iter().rev().enumerate();
                let told = told.filter(|(place, (_, job))| *place < JOBS_TOLD || !job.state.is_over());
                told.map(|(_, (_, job))| job.clone()).collect()
            }
        }
    }

    pub(in crate::stores::memory) fn start(
        &mut self,
        plan: &JobPlan,
        by: &Operator,
        at: Moment,
    ) -> Result<JobId, Refusal> {
        plan.strategy.check().map_err(Refusal::Senseless)?;
        if let JobAct::Redrive(redrive) = &plan.act
            && let Some(to) = &redrive.to
        {
            self.declared(to)?;
        }
        let id = JobId(self.jobs.iter().next_back().map_or(1, |(id, _)| id.0 + 1));
        let deaths = self.counters.get(&Counter::Deaths).copied().unwrap_or_default();
        let mut job = Job::begin(id, plan.clone(), &by.who, at, (0, deaths));
        job.planned = match plan.act {
            JobAct::RetryNow => self.look_for(&job, u32::MAX, at).meant.len() as u64,
            JobAct::Redrive(_) | JobAct::Discard => self.matching(&plan.filter).letters,
        };
        self.jobs.put(id, job);
        Ok(id)
    }

    pub(in crate::stores::memory) fn turn(
        &mut self,
        id: JobId,
        to: JobState,
        why: &str,
        at: Moment,
    ) -> Result<(), Refusal> {
        let is = self.jobs.get(&id).ok_or(Refusal::NoJob)?.state;
        if is.is_over() {
            return Err(Refusal::JobOver { is: is.as_str() });
        }
        if let Some(job) = self.jobs.alter(&id) {
            job.turn(to, why, at);
        }
        Ok(())
    }

    /// Takes a job one step further, unless another caller has done so already.
    pub(in crate::stores::memory) fn advance(&mut self, step: JobAdvance) -> Option<Job> {
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
                    self.redrive(row, redrive, RedrivenBy::Job(job.id), step.at);
                    taken += 1;
                }
                JobAct::Redrive(_) => skipped += 1,
                JobAct::Discard => {
                    self.discard(row, step.at);
                    taken += 1;
                }
                JobAct::RetryNow if self.is_of_another(&row) => skipped += 1,
                JobAct::RetryNow => {
                    self.retry_by(row, job.id, step.at);
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

    /// The next dead letters of a job: those that it may change, up to a number, and those between them that it may
    /// not.
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
            let is_meant = match job.plan.act {
                JobAct::RetryNow => is_failing(row, job),
                _ => is_meant_letter(&job.plan.filter, row) && was_dead(row, job),
            };
            if !is_meant {
                continue;
            }
            let may = match &job.plan.act {
                JobAct::Redrive(redrive) => self.check_redrive(row, redrive, at).is_ok(),
                JobAct::Discard | JobAct::RetryNow => true,
            };
            room -= u32::from(may);
            meant.push(row.clone());
        }
        Looked { meant, cursor, exhausted: rows.next().is_none() }
    }

    /// Whether another running job waits for the end of an event.
    fn is_of_another(&self, row: &Row) -> bool {
        let job = row.put_back.and_then(RedrivenBy::job).and_then(|id| self.jobs.get(&id));
        job.is_some_and(|job| !job.state.is_over())
    }

    /// Retries an event at once, before the retries that wait for the budget. If it was due already, its attempt may
    /// be running: its rev stays, so that the outcome can still be settled.
    fn retry_by(&mut self, mut row: Row, job: JobId, at: Moment) {
        let progress = &mut row.entry.progress;
        row.entry.rev += u32::from(progress.due > at);
        progress.due = progress.started.unwrap_or(at).min(at);
        progress.mode = Mode::Redrive;
        row.put_back = Some(RedrivenBy::Retry(job));
        self.write(row.entry.seq, Some(row));
        self.recall();
    }

    /// Records for a job how an event that it redrove ended.
    pub(in crate::stores::memory) fn job_saw_the_end(&mut self, row: &Row, state: Where) {
        let Some(id) = row.put_back.and_then(RedrivenBy::job) else { return };
        if let Some(job) = self.jobs.alter(&id) {
            match state {
                Where::Done => job.done += 1,
                _ => job.other += 1,
            }
        }
    }
}

/// Whether a retry job includes this event: its first attempt was before the job began.
fn is_failing(row: &Row, job: &Job) -> bool {
    let EventProgress { started, attempts, ref history, .. } = row.entry.progress;
    let Some(started) = started.filter(|started| row.is_retrying() && *started <= job.started) else {
        return false;
    };
    let cause = Some(cause::of_failing(history.as_deref()).0);
    let (event, history) = (&*row.entry.event, history.as_deref());
    job.plan.filter.matches(FilterSubject { event, at: started, attempts, cause, reason: None, history })
}

struct Looked {
    meant: Vec<Row>,
    cursor: Option<redrive_core::queue_entry::Seq>,
    exhausted: bool,
}

/// Whether a dead letter was dead when a job began, by the number of its death.
fn was_dead(row: &Row, job: &Job) -> bool {
    has(PlantedBug::TwoJobsOneLetter) || row.letter().is_some_and(|death| death.number <= job.deaths)
}
