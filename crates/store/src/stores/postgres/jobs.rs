//! Jobs as rows, and what operators do with them.

use redrive_core::Moment;
use redrive_core::triage::job::JobAct;
use redrive_core::triage::{Job, JobId, JobPlan, JobState, Operator};

use super::desk::{Desk, maybe, one, rows, run};
use super::faults::{Fault, Step, damaged};
use super::rows::Damage;
use crate::operate::Refusal;
use crate::stores::shared::jobs::{JOBS_TOLD, job_columns, job_sum, read_job_row};
use crate::stores::shared::numbers::{bits, column, from_moment};

impl Desk {
    /// The last jobs and all that are not over, or one.
    pub(super) async fn jobs(&mut self, id: Option<JobId>) -> Step<Vec<Job>> {
        if let Some(id) = id {
            return Ok(self.job(id).await?.into_iter().collect());
        }
        let found = rows!(
            self,
            concat!(
                "SELECT ",
                job_columns!(),
                " FROM redrive.job WHERE id > (SELECT max(id) FROM redrive.job) - $1 \
                 OR state IN ('running', 'paused') ORDER BY id DESC"
            ),
            JOBS_TOLD
        )?;
        // One that is damaged does not hide the others; whoever asks for it is told.
        Ok(found.iter().filter_map(|row| read_job_row(row).ok()).collect())
    }

    /// The job with this number.
    pub(super) async fn job(&mut self, id: JobId) -> Step<Option<Job>> {
        let select = if self.writes {
            concat!("SELECT ", job_columns!(), " FROM redrive.job WHERE id = $1 FOR UPDATE")
        } else {
            concat!("SELECT ", job_columns!(), " FROM redrive.job WHERE id = $1")
        };
        let found = maybe!(self, select, column(id.0))?.map(|row| read_job_row(&row));
        found.transpose().map_err(|Damage| Fault::Refused(damaged("job", id.0)))
    }

    /// Writes a job, over what it was.
    pub(super) async fn write_job(&mut self, job: &Job) -> sqlx::Result<()> {
        // Words and numbers: this does not fail.
        let plan = serde_json::to_string(&job.plan).unwrap_or_default();
        run!(
            self,
            concat!(
                "INSERT INTO redrive.job (",
                job_columns!(),
                ") VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19) \
                 ON CONFLICT (id) DO UPDATE SET plan = $2, state = $3, why = $4, who = $5, started = $6, \
                 running_since = $7, taken_before = $8, ended = $9, planned = $10, deaths = $11, cursor = $12, \
                 exhausted = $13, taken = $14, skipped = $15, done = $16, failed = $17, other = $18, crc = $19"
            ),
            column(job.id.0),
            &plan,
            job.state.as_str(),
            &job.why,
            &job.who,
            from_moment(job.started),
            from_moment(job.running_since),
            column(job.taken_before),
            job.ended.map(from_moment),
            column(job.planned),
            column(job.deaths),
            job.cursor.map(|seq| column(seq.0)),
            i64::from(job.exhausted),
            column(job.taken),
            column(job.skipped),
            column(job.done),
            column(job.failed),
            column(job.other),
            job_sum(job, &plan)
        )
        .map(drop)
    }

    /// Begins a job.
    pub(super) async fn start(
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
            && self.spec(to).await?.is_none()
        {
            return Ok(Err(Refusal::NoQueue { queue: to.clone() }));
        }
        let id = JobId(bits(one!(self, "SELECT nextval('redrive.job_number')")?));
        let about = (self.how_many(&plan.filter).await?, self.deaths().await?);
        let job = Job::begin(id, plan.clone(), &by.who, at, about);
        self.write_job(&job).await?;
        Ok(Ok(id))
    }

    /// Puts a job in another state.
    pub(super) async fn turn(
        &mut self,
        id: JobId,
        to: JobState,
        why: &str,
        at: Moment,
    ) -> Step<Result<(), Refusal>> {
        let mut job = match self.job(id).await {
            Ok(Some(job)) => job,
            Ok(None) => return Ok(Err(Refusal::NoJob)),
            Err(Fault::Refused(error)) => return Ok(Err(Refusal::Senseless(error.to_string()))),
            Err(fault) => return Err(fault),
        };
        if job.state.is_over() {
            return Ok(Err(Refusal::JobOver { is: job.state.as_str() }));
        }
        job.turn(to, why, at);
        self.write_job(&job).await?;
        Ok(Ok(()))
    }
}
