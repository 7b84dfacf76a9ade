//! Jobs as rows.

use std::sync::LazyLock;

use redrive_core::triage::{Job, JobId};

use crate::stores::postgres::events::fresh::Damage;
use crate::stores::postgres::events::tracked::bind_all;
use crate::stores::postgres::faults::{Fault, Step, damaged};
use crate::stores::postgres::tx::{OwnTx, maybe, rows};
use crate::stores::shared::jobs::{JOBS_TOLD, job_columns, job_params, plan_text, read_job_row};
use crate::stores::shared::numbers::column;
use crate::stores::shared::params::{assignments, behind_key, placeholders};

impl OwnTx {
    /// The last jobs and all unfinished ones, or one.
    pub(in crate::stores::postgres) async fn jobs(&mut self, id: Option<JobId>) -> Step<Vec<Job>> {
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
        // A damaged job does not hide the others; a caller that asks for it learns of the damage.
        Ok(found.iter().filter_map(|row| read_job_row(row).ok()).collect())
    }

    /// The job with this number.
    pub(in crate::stores::postgres) async fn job(&mut self, id: JobId) -> Step<Option<Job>> {
        let select = if self.writes {
            concat!("SELECT ", job_columns!(), " FROM redrive.job WHERE id = $1 FOR UPDATE")
        } else {
            concat!("SELECT ", job_columns!(), " FROM redrive.job WHERE id = $1")
        };
        let found = maybe!(self, select, column(id.0))?.map(|row| read_job_row(&row));
        found.transpose().map_err(|Damage| Fault::Refused(damaged("job", id.0)))
    }

    /// Writes a job over its previous state.
    pub(in crate::stores::postgres) async fn write_job(&mut self, job: &Job) -> sqlx::Result<()> {
        static SQL: LazyLock<String> = LazyLock::new(|| {
            let columns = job_columns!();
            let (values, changes) =
                (placeholders(columns, '$', 1), assignments(behind_key(columns, 1), '$', 2));
            format!(
                "INSERT INTO redrive.job ({columns}) VALUES ({values}) ON CONFLICT (id) DO UPDATE SET {changes}"
            )
        });
        let plan = plan_text(job);
        let query = sqlx::query(self.sql(&SQL)).persistent(self.keeps());
        bind_all(query, job_params(job, &plan)).execute(&mut *self.conn).await.map(drop)
    }
}
