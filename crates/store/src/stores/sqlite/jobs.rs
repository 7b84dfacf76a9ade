//! Jobs as rows, and what operators do with them.

use redrive_core::Moment;
use redrive_core::triage::job::JobAct;
use redrive_core::triage::{Job, JobId, JobPlan, JobState, Operator};
use rusqlite::{Connection, OptionalExtension, params};

use super::desk::Desk;
use super::faults::{Fault, Step, damaged};
use super::letters::how_many;
use super::numbers::{bits, column, from_moment};
use super::rows::Damage;
use crate::operate::Refusal;
use crate::stores::shared::jobs::{JOBS_TOLD, job_columns, job_sum, read_job_row};

/// The last jobs and all that are not over, or one.
pub(super) fn jobs(conn: &Connection, id: Option<JobId>) -> Step<Vec<Job>> {
    if let Some(id) = id {
        return Ok(read_job(conn, id)?.into_iter().collect());
    }
    let mut select = conn.prepare_cached(concat!(
        "SELECT ",
        job_columns!(),
        " FROM redrive_job WHERE id > (SELECT max(id) FROM redrive_job) - ?1 OR state IN ('running', 'paused') \
         ORDER BY id DESC"
    ))?;
    let mut rows = select.query([JOBS_TOLD])?;
    let mut jobs = Vec::new();
    while let Some(row) = rows.next()? {
        // One that is damaged does not hide the others; whoever asks for it is told.
        jobs.extend(read_job_row(row).ok());
    }
    Ok(jobs)
}

/// The job with this number.
pub(super) fn read_job(conn: &Connection, id: JobId) -> Step<Option<Job>> {
    let found = conn
        .prepare_cached(concat!("SELECT ", job_columns!(), " FROM redrive_job WHERE id = ?1"))?
        .query_row([column(id.0)], |row| Ok(read_job_row(row)))
        .optional()?;
    found.transpose().map_err(|Damage| Fault::Refused(damaged("redrive_job", id.0)))
}

/// Writes a job, over what it was.
pub(super) fn write_job(conn: &Connection, job: &Job) -> rusqlite::Result<()> {
    // Words and numbers: this does not fail.
    let plan = serde_json::to_string(&job.plan).unwrap_or_default();
    let (started, running_since) = (from_moment(job.started), from_moment(job.running_since));
    let (ended, cursor) = (job.ended.map(from_moment), job.cursor.map(|seq| column(seq.0)));
    conn.prepare_cached(concat!(
        "INSERT OR REPLACE INTO redrive_job (",
        job_columns!(),
        ") VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18, ?19)"
    ))?
    .execute(params![
        column(job.id.0),
        plan,
        job.state.as_str(),
        job.why,
        job.who,
        started,
        running_since,
        column(job.taken_before),
        ended,
        column(job.planned),
        column(job.deaths),
        cursor,
        job.exhausted,
        column(job.taken),
        column(job.skipped),
        column(job.done),
        column(job.failed),
        column(job.other),
        job_sum(job, &plan),
    ])
    .map(drop)
}

impl Desk {
    /// Begins a job.
    pub(super) fn start(
        &mut self,
        plan: &JobPlan,
        by: &Operator,
        at: Moment,
    ) -> Step<Result<JobId, Refusal>> {
        if let Err(what) = plan.strategy.check() {
            return Ok(Err(Refusal::Senseless(what)));
        }
        if let JobAct::Redrive(redrive) = &plan.act
            && let Some(to) = &redrive.to
            && self.spec(to)?.is_none()
        {
            return Ok(Err(Refusal::NoQueue { queue: to.clone() }));
        }
        // What was counted in this transaction counts.
        self.write_numbers()?;
        let id = self
            .conn
            .prepare_cached("SELECT coalesce(max(id), 0) + 1 FROM redrive_job")?
            .query_row([], |row| row.get(0).map(|id| JobId(bits(id))))?;
        let about = (how_many(&self.conn, &mut self.names, &plan.filter)?, self.deaths()?);
        let job = Job::begin(id, plan.clone(), &by.who, at, about);
        write_job(&self.conn, &job)?;
        Ok(Ok(id))
    }

    /// Puts a job in another state.
    pub(super) fn turn(
        &mut self,
        id: JobId,
        to: JobState,
        why: &str,
        at: Moment,
    ) -> Step<Result<(), Refusal>> {
        let job = match self.job(id) {
            Ok(Some(job)) => job,
            Ok(None) => return Ok(Err(Refusal::NoJob)),
            Err(Fault::Refused(error)) => return Ok(Err(Refusal::Senseless(error.to_string()))),
            Err(fault) => return Err(fault),
        };
        if job.state.is_over() {
            return Ok(Err(Refusal::JobOver { is: job.state.as_str() }));
        }
        job.turn(to, why, at);
        self.changed_job(id);
        Ok(Ok(()))
    }
}
