//! The dead letters of a job.

use redrive_core::triage::{CauseId, Job, JobAct, JobId, RedriveOptions};

use crate::operate::JobAdvance;
use crate::stores::postgres::events::tracked::RedrivenBy;
use crate::stores::postgres::faults::Step;
use crate::stores::postgres::keys::seq_at;
use crate::stores::postgres::tx::OwnTx;
use crate::stores::rows::advance::{Candidate, Candidates};
use crate::stores::shared::columns::redrive_columns;
use crate::stores::shared::numbers::{bits, stream_of};

/// How many rows are fetched at once.
const FETCHED: usize = 500;

impl OwnTx {
    /// The next dead letters of a job.
    pub(in crate::stores::postgres) async fn candidates(
        &mut self,
        job: &Job,
        most: usize,
    ) -> Step<Candidates> {
        let filter = &job.plan.filter;
        let mut found = Candidates::of(job);
        let mut walk = self.walk(filter, job.cursor).await?;
        while !walk.is_over() {
            let found_rows = match job.plan.act {
                JobAct::RetryNow => self.next_tracked(&mut walk, FETCHED).await?,
                JobAct::Redrive(_) | JobAct::Discard => self.next_letters(filter, &mut walk, FETCHED).await?,
            };
            for row in found_rows {
                if found.is_full(most) {
                    return Ok(found);
                }
                let seq = seq_at(&row, 0);
                let stream = self.stream(stream_of(seq)).await?;
                found.look(job, seq, stream, &row);
            }
        }
        found.exhausted = true;
        Ok(found)
    }

    /// Redrives a dead letter that keeps no order: no other row has to be read.
    pub(in crate::stores::postgres) async fn redrive_plain(
        &mut self,
        letter: Candidate,
        redrive: &RedriveOptions,
        job: JobId,
        step: &JobAdvance,
        announce: bool,
    ) -> Step<()> {
        let Candidate { seq, stream, mut columns, .. } = letter;
        let by = RedrivenBy::Job(job);
        let cause = columns.cause.map(|cause| CauseId(bits(cause)));
        redrive_columns(&mut columns, redrive, by, step.at);
        self.update_columns(seq, &columns).await?;
        self.uncount_death(stream.id, cause, false);
        self.count_redrive(stream.id, cause, by, step.at);
        if self.spec(&stream.queue).await?.is_some_and(|queue| queue.pull) {
            return Ok(());
        }
        match if announce { self.tracked(seq, &stream).await? } else { None } {
            Some(Ok(tracked)) => {
                let entry = tracked.entry();
                self.arrived.push(entry);
            }
            _ => self.miss(&stream),
        }
        Ok(())
    }
}
