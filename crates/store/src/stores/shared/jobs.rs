//! Jobs as rows.

use redrive_core::queue_entry::Seq;
use redrive_core::triage::{Job, JobId, JobPlan, JobState};

use super::cells::{Cells, Damage};
use super::numbers::{bits, column, from_moment, to_moment};
use super::params::Param;
use super::rows::Sum;

/// How many finished jobs are listed.
pub(in crate::stores) const JOBS_TOLD: i64 = 100;

/// The columns of a job, in order.
macro_rules! job_columns {
    () => {
        "id, plan, state, why, who, started, running_since, taken_before, ended, planned, deaths, cursor, exhausted, \
         taken, skipped, done, failed, other, crc"
    };
}
pub(in crate::stores) use job_columns;

/// How many [`job_columns`] there are.
const JOB_COLUMNS: usize = 19;

/// The plan of a job as it is stored.
pub(in crate::stores) fn plan_text(job: &Job) -> String {
    // Words and numbers: this does not fail.
    serde_json::to_string(&job.plan).unwrap_or_default()
}

/// The values of [`job_columns`], with the [plan](plan_text) of the job.
pub(in crate::stores) fn job_params<'a>(job: &'a Job, plan: &'a str) -> [Param<'a>; JOB_COLUMNS] {
    [
        column(job.id.0).into(),
        plan.into(),
        job.state.as_str().into(),
        job.why.as_str().into(),
        job.who.as_str().into(),
        from_moment(job.started).into(),
        from_moment(job.running_since).into(),
        column(job.taken_before).into(),
        job.ended.map(from_moment).into(),
        column(job.planned).into(),
        column(job.deaths).into(),
        job.cursor.map(|seq| column(seq.0)).into(),
        i64::from(job.exhausted).into(),
        column(job.taken).into(),
        column(job.skipped).into(),
        column(job.done).into(),
        column(job.failed).into(),
        column(job.other).into(),
        job_sum(job, plan).into(),
    ]
}

/// The checksum of a job.
pub(in crate::stores) fn job_sum(job: &Job, plan: &str) -> i64 {
    let numbers = [
        column(job.id.0),
        from_moment(job.started),
        from_moment(job.running_since),
        column(job.taken_before),
        column(job.planned),
        column(job.deaths),
        i64::from(job.exhausted),
        column(job.taken),
        column(job.skipped),
        column(job.done),
        column(job.failed),
        column(job.other),
    ];
    let mut sum = Sum::new();
    for number in numbers {
        sum.number(number);
    }
    sum.text(plan)
        .text(job.state.as_str())
        .text(&job.why)
        .text(&job.who)
        .maybe_number(job.ended.map(from_moment))
        .maybe_number(job.cursor.map(|seq| column(seq.0)))
        .end()
}

/// Reads a row of [`job_columns`].
pub(in crate::stores) fn read_job_row(row: &impl Cells) -> Result<Job, Damage> {
    let number = |n: usize| row.number(n);
    let maybe = |n: usize| row.maybe_number(n);
    let text = |n: usize| row.text(n);
    let plan = text(1)?;
    let job = Job {
        id: JobId(bits(number(0)?)),
        plan: serde_json::from_str::<JobPlan>(&plan).map_err(|_| Damage)?,
        state: JobState::from_word(&text(2)?).ok_or(Damage)?,
        why: text(3)?,
        who: text(4)?,
        started: to_moment(number(5)?),
        running_since: to_moment(number(6)?),
        taken_before: bits(number(7)?),
        ended: maybe(8)?.map(to_moment),
        planned: bits(number(9)?),
        deaths: bits(number(10)?),
        cursor: maybe(11)?.map(|seq| Seq(bits(seq))),
        exhausted: number(12)? != 0,
        taken: bits(number(13)?),
        skipped: bits(number(14)?),
        done: bits(number(15)?),
        failed: bits(number(16)?),
        other: bits(number(17)?),
    };
    if job_sum(&job, &plan) == number(18)? { Ok(job) } else { Err(Damage) }
}
