//! A step of a job that retries events at once.
//!
//! An outage leaves events that wait for hours, and due events that wait for the retry budget. The job takes both:
//! they run like an operator's redrive, outside the budget, and before the retries that are not taken yet. An attempt
//! that is running when its event is taken counts for the job.

use std::collections::HashMap;
use std::sync::Arc;

use redrive_core::queue_entry::Seq;
use redrive_core::triage::{Filter, Job, JobId, cause};

use super::Step;
use super::act::or_refused;
use super::advance::Candidate;
use super::contract::Rows;
use crate::operate::JobAdvance;
use crate::stores::shared::cells::Cells;
use crate::stores::shared::dead_letter_filter::{LETTER_CHANGES, is_meant};
use crate::stores::shared::failing::retrying;
use crate::stores::shared::history::read_history;
use crate::stores::shared::numbers::from_moment;
use crate::stores::shared::rows::Stream;
use crate::stores::shared::tracked::RedrivenBy;

/// The event of a row, if the job includes it: it is retrying, its first attempt was before the job began, and the
/// filter matches it. A damaged one is left alone.
pub(super) fn candidate(job: &Job, seq: Seq, stream: Arc<Stream>, row: &impl Cells) -> Option<Candidate> {
    let columns = retrying(row).ok().flatten()?;
    let started = columns.started.filter(|started| *started <= from_moment(job.started))?;
    // The cause of a dead letter is on its row; that of a retrying event is in its attempt history.
    let filter = Filter { cause: None, ..job.plan.filter.clone() };
    if !is_meant(&filter, row, LETTER_CHANGES, started, &stream).ok()? {
        return None;
    }
    if let Some(wanted) = job.plan.filter.cause {
        let history = read_history(columns.history.as_deref()).ok()?;
        if cause::of_failing(history.as_deref()).0 != wanted {
            return None;
        }
    }
    Some(Candidate { seq, id: row.text(1).ok()?, stream, is_plain: false, columns })
}

/// Retries events at once. Returns how many could not be: an event of another running job is left to that job.
pub(super) async fn retry_all<R: Rows>(
    tx: &mut R,
    events: Vec<Candidate>,
    job: JobId,
    step: &JobAdvance,
) -> Step<u64, R> {
    let mut goes_on = HashMap::new();
    let mut left_out = 0;
    for Candidate { seq, stream, .. } in events {
        // Read again, and locked: a worker may have leased it meanwhile.
        let Ok(Some(mut event)) = or_refused(tx.tracked_row(seq, &stream).await)? else {
            left_out += 1;
            continue;
        };
        let other = event.redriven_by.and_then(RedrivenBy::job);
        if let Some(other) = other
            && !goes_on.contains_key(&other)
        {
            let job = or_refused(tx.job(other).await)?;
            goes_on.insert(other, job.is_ok_and(|job| job.is_some_and(|job| !job.state.is_over())));
        }
        if !event.is_retrying() || other.is_some_and(|other| goes_on[&other]) {
            left_out += 1;
            continue;
        }
        event.retry_by(job, step.at);
        tx.write_tracked(&event, false).await?;
        // Owners may have it in memory, behind others, and as a retry that waits for the budget.
        *tx.recall() = true;
    }
    Ok(left_out)
}
