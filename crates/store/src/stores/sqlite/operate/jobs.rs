//! Jobs as rows.

use std::sync::LazyLock;

use redrive_core::triage::{Job, JobId};
use rusqlite::{Connection, OptionalExtension, params_from_iter};

use crate::stores::shared::jobs::{JOBS_TOLD, job_columns, job_params, plan_text, read_job_row};
use crate::stores::shared::numbers::{bits, column};
use crate::stores::shared::params::placeholders;
use crate::stores::sqlite::events::fresh::Damage;
use crate::stores::sqlite::faults::{Fault, Step, damaged};
use crate::stores::sqlite::writer::tx::WriterTx;

/// The last jobs and all unfinished ones, or one.
pub(in crate::stores::sqlite) fn jobs(conn: &Connection, id: Option<JobId>) -> Step<Vec<Job>> {
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
        // A damaged job does not hide the others; a caller that asks for it learns of the damage.
        jobs.extend(read_job_row(row).ok());
    }
    Ok(jobs)
}

/// The job with this number.
pub(in crate::stores::sqlite) fn read_job(conn: &Connection, id: JobId) -> Step<Option<Job>> {
    let found = conn
        .prepare_cached(concat!("SELECT ", job_columns!(), " FROM redrive_job WHERE id = ?1"))?
        .query_row([column(id.0)], |row| Ok(read_job_row(row)))
        .optional()?;
    found.transpose().map_err(|Damage| Fault::Refused(damaged("redrive_job", id.0)))
}

/// Writes a job over its previous state.
pub(in crate::stores::sqlite) fn write_job(conn: &Connection, job: &Job) -> rusqlite::Result<()> {
    static SQL: LazyLock<String> = LazyLock::new(|| {
        let values = placeholders(job_columns!(), '?', 1);
        format!("INSERT OR REPLACE INTO redrive_job ({}) VALUES ({values})", job_columns!())
    });
    let plan = plan_text(job);
    conn.prepare_cached(&SQL)?.execute(params_from_iter(job_params(job, &plan))).map(drop)
}

impl WriterTx {
    /// The number of the next job.
    pub(in crate::stores::sqlite) fn next_job_id(&self) -> rusqlite::Result<JobId> {
        self.conn
            .prepare_cached("SELECT coalesce(max(id), 0) + 1 FROM redrive_job")?
            .query_row([], |row| row.get(0).map(|id| JobId(bits(id))))
    }
}
