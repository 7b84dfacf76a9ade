//! A step of a job: some dead letters or retrying events, and the job's progress, in one commit.

use std::sync::Arc;

use redrive_core::queue_entry::Seq;
use redrive_core::triage::job::JobAct;
use redrive_core::triage::{CauseId, Job, JobId, JobState, RedriveOptions};

use super::Step;
use super::act::{check_redrive, discard, or_refused, redrive, stamp};
use super::contract::Rows;
use super::operate::note_recall;
use super::retry;
use crate::operate::JobAdvance;
use crate::stores::shared::cells::Cells;
use crate::stores::shared::columns::Columns;
use crate::stores::shared::dead_letter_filter::{LETTER_CHANGES, LOOKED_MAX, died, is_meant};
use crate::stores::shared::dedupe::End;
use crate::stores::shared::numbers::bits;
use crate::stores::shared::rows::Stream;
use crate::stores::shared::tracked::{RedrivenBy, RowState};

/// How many redriven dead letters are announced to an owner one by one. With more, the owner is notified that there is
/// something to load: each would have to be read to name it.
const ANNOUNCED_MAX: usize = 64;

/// A dead letter of a job.
pub(in crate::stores) struct Candidate {
    pub(in crate::stores) seq: Seq,
    pub(in crate::stores) id: String,
    pub(in crate::stores) stream: Arc<Stream>,
    /// Whether it keeps no order, does not expire and is not routed elsewhere: no other row has to be read.
    pub(in crate::stores) is_plain: bool,
    pub(in crate::stores) columns: Columns,
}

/// The next dead letters of a job: those it may change, and how many between them it may not.
pub(in crate::stores) struct Candidates {
    letters: Vec<Candidate>,
    skipped: u64,
    looked_at: usize,
    cursor: Option<Seq>,
    /// Whether the job has no more dead letters.
    pub(in crate::stores) exhausted: bool,
}

impl Candidates {
    /// How many there are.
    pub(super) const fn len(&self) -> usize {
        self.letters.len()
    }

    /// Empty, after the job's progress so far.
    pub(in crate::stores) const fn of(job: &Job) -> Self {
        Self { letters: Vec::new(), skipped: 0, looked_at: 0, cursor: job.cursor, exhausted: false }
    }

    /// Whether a step has enough of them, or has read enough rows.
    pub(in crate::stores) const fn is_full(&self, most: usize) -> bool {
        self.letters.len() >= most || self.looked_at == LOOKED_MAX
    }

    /// Checks the next dead letter.
    pub(in crate::stores) fn look(
        &mut self,
        job: &Job,
        seq: Seq,
        stream: Option<Arc<Stream>>,
        row: &impl Cells,
    ) {
        self.looked_at += 1;
        self.cursor = Some(seq);
        if job.plan.act == JobAct::RetryNow {
            self.letters.extend(stream.and_then(|stream| retry::candidate(job, seq, stream, row)));
            return;
        }
        let (Some(stream), filter) = (stream, &job.plan.filter) else { return };
        let from = LETTER_CHANGES;
        let read = died(row, from).and_then(|died| match is_meant(filter, row, from, died, &stream)? {
            true => Columns::read(row, from, seq).map(Some),
            false => Ok(None),
        });
        let columns = match read {
            Ok(Some(columns)) => columns,
            Ok(None) => return,
            // A job does nothing to a damaged dead letter.
            Err(_) => {
                self.skipped += 1;
                return;
            }
        };
        if columns.death.is_none_or(|death| bits(death) > job.deaths) {
            return;
        }
        let skips_passed = match &job.plan.act {
            JobAct::Redrive(redrive) => !redrive.out_of_order,
            JobAct::Discard | JobAct::RetryNow => false,
        };
        let is_ordered = row.word(2).is_ok_and(|key| key.is_some());
        if is_ordered && columns.state == RowState::DeadPassed as i64 && skips_passed {
            self.skipped += 1;
        } else {
            let is_plain = !is_ordered && row.number(4) == Ok(0);
            let id = row.text(1).unwrap_or_default();
            self.letters.push(Candidate { seq, id, stream, is_plain, columns });
        }
    }
}

/// Takes a job one step further, unless another caller has done so already.
pub(in crate::stores) async fn advance<R: Rows>(tx: &mut R, step: &JobAdvance) -> Step<Option<Job>, R> {
    // Every transaction that locks both locks shards before jobs.
    tx.lock_shards().await?;
    let Some(job) = tx.job(step.job).await? else { return Ok(None) };
    if job.state != JobState::Running || job.cursor != step.from || job.exhausted {
        return Ok(Some(job));
    }
    tx.advance_clock(step.at);
    let Candidates { letters, skipped, cursor, exhausted, .. } =
        tx.candidates(&job, step.most as usize).await?;
    let recalled_before = std::mem::take(tx.recall());
    let (meant, announce) = (letters.len() as u64, letters.len() <= ANNOUNCED_MAX);
    let left_out = match &job.plan.act {
        JobAct::Redrive(how) => redrive_all(tx, letters, how, job.id, step, announce).await?,
        JobAct::Discard => discard_all(tx, letters, step).await?,
        JobAct::RetryNow => retry::retry_all(tx, letters, job.id, step).await?,
    };
    note_recall(tx, recalled_before).await?;
    // Read again: dead letters that this job redrove before may have been charged to it just now.
    let Some(mut job) = tx.job(step.job).await? else { return Ok(None) };
    job.cursor = cursor;
    job.exhausted = exhausted;
    job.took(meant - left_out, step.at);
    job.skipped += skipped + left_out;
    tx.write_job(&job).await?;
    tx.flush_tallies().await?;
    tx.job(step.job).await
}

/// Redrives dead letters. Returns how many could not be.
async fn redrive_all<R: Rows>(
    tx: &mut R,
    letters: Vec<Candidate>,
    how: &RedriveOptions,
    job: JobId,
    step: &JobAdvance,
    announce: bool,
) -> Step<u64, R> {
    let is_plain = |letter: &Candidate| letter.is_plain && how.to.is_none();
    let (plain, others): (Vec<_>, Vec<_>) = letters.into_iter().partition(is_plain);
    tx.redrive_plain(plain, how, job, step, announce).await?;
    let mut left_out = 0;
    for letter in others {
        left_out += u64::from(!redrive_one(tx, &letter, how, job, step).await?);
    }
    Ok(left_out)
}

/// Redrives a dead letter. `false` if it may not be, or is damaged: the job would wait for its end for ever.
async fn redrive_one<R: Rows>(
    tx: &mut R,
    letter: &Candidate,
    how: &RedriveOptions,
    job: JobId,
    step: &JobAdvance,
) -> Step<bool, R> {
    let Ok(Some(event)) = or_refused(tx.tracked_row(letter.seq, &letter.stream).await)? else {
        return Ok(false);
    };
    if check_redrive(tx, &event, how, step.at).await?.is_err() {
        return Ok(false);
    }
    redrive(tx, event, &letter.stream, how, RedrivenBy::Job(job), step.at).await?;
    Ok(true)
}

/// Discards dead letters. Returns how many could not be.
async fn discard_all<R: Rows>(tx: &mut R, letters: Vec<Candidate>, step: &JobAdvance) -> Step<u64, R> {
    let mut left_out = 0;
    for letter in letters {
        left_out += u64::from(!discard_one(tx, letter, step).await?);
    }
    Ok(left_out)
}

/// Discards a dead letter. `false` if it is damaged.
async fn discard_one<R: Rows>(tx: &mut R, letter: Candidate, step: &JobAdvance) -> Step<bool, R> {
    let Candidate { seq, id, stream, mut columns, .. } = letter;
    if columns.state == RowState::DeadHolding as i64 {
        let Ok(Some(event)) = or_refused(tx.tracked_row(seq, &stream).await)? else { return Ok(false) };
        return discard(tx, event, false, &stream, step.at).await.map(|()| true);
    }
    let cause = columns.cause.map(|cause| CauseId(bits(cause)));
    tx.uncount_death(stream.id, cause, false).await?;
    let attempts = u32::try_from(columns.attempts).unwrap_or(u32::MAX);
    stamp(tx, &stream, &id, step.at, Some(End::discarded(attempts, step.at))).await?;
    columns.discard();
    tx.write_columns(seq, &columns).await?;
    Ok(true)
}
