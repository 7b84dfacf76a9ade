//! A step of a job: some letters, and how far the job has come, in one commit.
//!
//! Where a step puts many back, the owners are told that there is something to load, and not each of them.

use std::sync::Arc;

use redrive_core::entry::Seq;
use redrive_core::triage::job::JobAct;
use redrive_core::triage::{CauseId, Job, JobId, JobState, Redrive};

use super::desk::Desk;
use super::faults::Step;
use super::held::{PutBack, Stand};
use super::keys::seq_at;
use super::rows::Stream;
use crate::operate::Advance;
use crate::stores::shared::cells::Cells;
use crate::stores::shared::columns::{Columns, put_back};
use crate::stores::shared::letters::{LETTER_CHANGES, LOOKED_MAX, died, is_meant};
use crate::stores::shared::numbers::{bits, stream_of};

/// How many letters that were put back are told one by one.
const TOLD_MAX: usize = 64;
/// How many rows are fetched at once.
const FETCHED: usize = 500;

/// A letter that a job is about.
struct Meant {
    seq: Seq,
    id: String,
    stream: Arc<Stream>,
    /// Whether it keeps no order, has no time at which it is over, and goes its own way: nothing else is to be looked
    /// at.
    is_plain: bool,
    columns: Columns,
}

/// What was found from a place on.
struct Looked {
    meant: Vec<Meant>,
    skipped: u64,
    cursor: Option<Seq>,
    exhausted: bool,
}

impl Desk {
    /// Takes a job a step further, unless somebody has done so already.
    pub(super) async fn advance(&mut self, step: &Advance) -> Step<Option<Job>> {
        // Shards before jobs, as everybody does who locks both.
        self.lock_shards().await?;
        let Some(mut job) = self.job(step.job).await? else { return Ok(None) };
        if job.state != JobState::Running || job.cursor != step.from || job.exhausted {
            return Ok(Some(job));
        }
        self.see(step.at);
        let mut looked = self.look_for(&job, step.most as usize).await?;
        let letters = std::mem::take(&mut looked.meant);
        let (meant, tells) = (letters.len() as u64, letters.len() <= TOLD_MAX);
        let mut left_out = 0;
        for letter in letters {
            let is_done = match &job.plan.act {
                JobAct::Redrive(redrive) if letter.is_plain && redrive.to.is_none() => {
                    self.redrive_plain(letter, redrive, job.id, step, tells).await?;
                    true
                }
                JobAct::Redrive(redrive) => self.redrive_one(&letter, redrive, job.id, step).await?,
                JobAct::Discard => self.discard_letter(letter, step).await?,
            };
            left_out += u64::from(!is_done);
        }
        self.raise_version().await?;
        job.cursor = looked.cursor;
        job.exhausted = looked.exhausted;
        job.took(meant - left_out, step.at);
        job.skipped += looked.skipped + left_out;
        self.write_job(&job).await?;
        // What these letters' ends charge to it is written now, so that the job is told as it is.
        self.write_counts().await?;
        self.job(step.job).await
    }

    /// The next letters of a job: as many as it may change, and how many between them it may not.
    async fn look_for(&mut self, job: &Job, most: usize) -> Step<Looked> {
        let filter = &job.plan.filter;
        let skips_passed = match &job.plan.act {
            JobAct::Redrive(redrive) => !redrive.out_of_order,
            JobAct::Discard => false,
        };
        let mut found = Looked { meant: Vec::new(), skipped: 0, cursor: job.cursor, exhausted: false };
        let mut walk = self.walk(filter, job.cursor).await?;
        let mut looked = 0;
        while !walk.is_over() {
            for row in self.next_letters(filter, &mut walk, FETCHED).await? {
                if found.meant.len() >= most || looked == LOOKED_MAX {
                    return Ok(found);
                }
                looked += 1;
                let seq = seq_at(&row, 0);
                found.cursor = Some(seq);
                let Some(stream) = self.stream(stream_of(seq)).await? else { continue };
                let from = LETTER_CHANGES;
                let read =
                    died(&row, from).and_then(|died| match is_meant(filter, &row, from, died, &stream)? {
                        true => Columns::read(&row, from, seq).map(Some),
                        false => Ok(None),
                    });
                let columns = match read {
                    Ok(Some(columns)) => columns,
                    Ok(None) => continue,
                    // Nothing is done to what is damaged.
                    Err(_) => {
                        found.skipped += 1;
                        continue;
                    }
                };
                if columns.death.is_none_or(|death| bits(death) > job.deaths) {
                    continue;
                }
                let is_ordered = row.word(2).is_ok_and(|key| key.is_some());
                if is_ordered && columns.state == Stand::DeadPassed as i64 && skips_passed {
                    found.skipped += 1;
                } else {
                    let is_plain = !is_ordered && row.number(4) == Ok(0);
                    let id = row.text(1).unwrap_or_default();
                    found.meant.push(Meant { seq, id, stream, is_plain, columns });
                }
            }
        }
        found.exhausted = true;
        Ok(found)
    }

    /// Puts back a letter that keeps no order: nobody else is to be looked at.
    async fn redrive_plain(
        &mut self,
        letter: Meant,
        redrive: &Redrive,
        job: JobId,
        step: &Advance,
        tells: bool,
    ) -> Step<()> {
        let Meant { seq, stream, mut columns, .. } = letter;
        let by = PutBack::Job(job);
        let cause = columns.cause.map(|cause| CauseId(bits(cause)));
        put_back(&mut columns, redrive, by, step.at);
        self.update_columns(seq, &columns).await?;
        self.uncount_death(stream.id, cause, false);
        self.count_redrive(stream.id, cause, by, step.at);
        if self.spec(&stream.queue).await?.is_some_and(|queue| queue.pull) {
            return Ok(());
        }
        match if tells { self.held(seq, &stream).await? } else { None } {
            Some(Ok(held)) => {
                let entry = held.entry();
                self.arrived.push(entry);
            }
            _ => self.miss(&stream),
        }
        Ok(())
    }

    /// Puts back a letter of which more is to be looked at. `false` where it may not, or is damaged: nothing is done
    /// to it, and the job would wait for its end for ever.
    async fn redrive_one(
        &mut self,
        letter: &Meant,
        redrive: &Redrive,
        job: JobId,
        step: &Advance,
    ) -> Step<bool> {
        let Some(Ok(held)) = self.held(letter.seq, &letter.stream).await? else { return Ok(false) };
        if self.check_redrive(&held, redrive, step.at).await?.is_err() {
            return Ok(false);
        }
        self.redrive(held, &letter.stream, redrive, PutBack::Job(job), step.at).await?;
        Ok(true)
    }

    /// Takes a letter away. `false` where it is damaged, and nothing is done to it.
    async fn discard_letter(&mut self, letter: Meant, step: &Advance) -> Step<bool> {
        let Meant { seq, id, stream, mut columns, .. } = letter;
        if columns.state == Stand::DeadHolding as i64 {
            let Some(Ok(held)) = self.held(seq, &stream).await? else { return Ok(false) };
            return self.discard(held, false, &stream, step.at).await.map(|()| true);
        }
        self.uncount_death(stream.id, columns.cause.map(|cause| CauseId(bits(cause))), false);
        let attempts = u32::try_from(columns.attempts).unwrap_or(u32::MAX);
        self.stamp_discarded(&stream, &id, attempts, step.at).await?;
        columns.rev += 1;
        columns.state = Stand::Discarded as i64;
        columns.death = None;
        (columns.lease_attempt, columns.lease_token) = (None, None);
        (columns.lease_until, columns.lease_from) = (None, None);
        self.update_columns(seq, &columns).await?;
        Ok(true)
    }
}
