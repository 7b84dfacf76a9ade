//! Jobs: starting, pausing and ending bulk changes that run in the background. A step of one is in
//! [`advance`](super::advance).

use redrive_core::Moment;
use redrive_core::triage::job::JobAct;
use redrive_core::triage::{Job, JobId, JobPlan, JobState, Operator};

use super::Step;
use super::act::or_refused;
use super::contract::Rows;
use crate::operate::Refusal;

/// Starts a job.
pub(super) async fn start<R: Rows>(
    tx: &mut R,
    plan: &JobPlan,
    by: &Operator,
    at: Moment,
) -> Step<Result<JobId, Refusal>, R> {
    if let Err(what) = plan.strategy.check() {
        return Ok(Err(Refusal::Senseless(what)));
    }
    if let JobAct::Redrive(redrive) = &plan.act
        && let Some(to) = &redrive.to
        && tx.spec(to).await?.is_none()
    {
        return Ok(Err(Refusal::NoQueue { queue: to.clone() }));
    }
    let id = tx.next_job_id().await?;
    let deaths = tx.deaths().await?;
    let mut job = Job::begin(id, plan.clone(), &by.who, at, (0, deaths));
    job.planned = match plan.act {
        JobAct::RetryNow => tx.candidates(&job, usize::MAX).await?.len() as u64,
        JobAct::Redrive(_) | JobAct::Discard => tx.count_letters(&plan.filter).await?,
    };
    tx.write_job(&job).await?;
    Ok(Ok(id))
}

/// Changes the state of a job.
pub(super) async fn turn<R: Rows>(
    tx: &mut R,
    id: JobId,
    to: JobState,
    why: &str,
    at: Moment,
) -> Step<Result<(), Refusal>, R> {
    let mut job = match or_refused(tx.job(id).await)? {
        Ok(Some(job)) => job,
        Ok(None) => return Ok(Err(Refusal::NoJob)),
        Err(refusal) => return Ok(Err(refusal)),
    };
    if job.state.is_over() {
        return Ok(Err(Refusal::JobOver { is: job.state.as_str() }));
    }
    job.turn(to, why, at);
    tx.write_job(&job).await?;
    Ok(Ok(()))
}
