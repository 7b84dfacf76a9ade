//! A step of a job: some letters, and how far the job has come, in one commit.
//!
//! Letters without a key that are next to each other are one `UPDATE`: their stories, payloads and identities are not
//! looked at. Where a step puts many back, the owner is told that there is something to load, and not each of them:
//! it would have to be read for that.

use std::collections::HashMap;
use std::fmt::Write as _;

use redrive_core::entry::{Seq, StreamId};
use redrive_core::event::Mode;
use redrive_core::triage::job::JobAct;
use redrive_core::triage::{CauseId, Job, JobId, JobState, Redrive};
use rusqlite::params;

use super::columns::{Columns, put_back};
use super::desk::Desk;
use super::faults::Step;
use super::held::{Held, PutBack, Stand};
use super::letters::{LETTER_CHANGES, LOOKED_MAX, Walk, died, is_meant, walk};
use super::numbers::{bits, column, from_moment, stream_of};
use super::rows::Stream;
use crate::operate::Advance;

/// How many letters that were put back are told one by one.
const TOLD_MAX: usize = 64;

/// A letter that a job is about.
struct Meant {
    seq: Seq,
    id: String,
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
    pub(super) fn advance(&mut self, step: &Advance) -> Step<Option<Job>> {
        let Some(job) = self.job(step.job)?.cloned() else { return Ok(None) };
        if job.state != JobState::Running || job.cursor != step.from || job.exhausted {
            return Ok(Some(job));
        }
        self.see(step.at);
        let mut looked = self.look_for(&job, step.most)?;
        let recalled_before = std::mem::take(&mut self.recall);
        let letters = std::mem::take(&mut looked.meant);
        let (meant, tells) = (letters.len() as u64, letters.len() <= TOLD_MAX);
        let mut left_out = 0;
        match &job.plan.act {
            JobAct::Redrive(redrive) => {
                let (plain, others): (Vec<_>, Vec<_>) =
                    letters.into_iter().partition(|letter| letter.is_plain && redrive.to.is_none());
                self.redrive_plain(plain, redrive, job.id, step, tells)?;
                for letter in others {
                    left_out += u64::from(!self.redrive_one(letter.seq, redrive, job.id, step)?);
                }
            }
            JobAct::Discard => {
                for letter in letters {
                    left_out += u64::from(!self.discard_letter(letter, step)?);
                }
            }
        }
        self.raise_version()?;
        self.recall |= recalled_before;
        let Some(job) = self.job(step.job)? else { return Ok(None) };
        job.cursor = looked.cursor;
        job.exhausted = looked.exhausted;
        job.took(meant - left_out, step.at);
        job.skipped += looked.skipped + left_out;
        let job = job.clone();
        self.changed_job(step.job);
        Ok(Some(job))
    }

    /// The next letters of a job: as many as it may change, and how many between them it may not.
    fn look_for(&mut self, job: &Job, most: u32) -> Step<Looked> {
        let filter = &job.plan.filter;
        let skips_passed = match &job.plan.act {
            JobAct::Redrive(redrive) => !redrive.out_of_order,
            JobAct::Discard => false,
        };
        let mut found = Looked { meant: Vec::new(), skipped: 0, cursor: job.cursor, exhausted: false };
        let after = job.cursor.map_or(-1, |seq| column(seq.0));
        let mut looked = 0;
        found.exhausted = walk(&self.conn, &mut self.names, filter, after, |row, seq, stream| {
            if found.meant.len() >= most as usize || looked == LOOKED_MAX {
                return Ok(Walk::Stop);
            }
            looked += 1;
            found.cursor = Some(seq);
            let from = LETTER_CHANGES;
            let read = died(row, from).and_then(|died| match is_meant(filter, row, from, died, stream)? {
                true => Columns::read(row, from, seq).map(Some),
                false => Ok(None),
            });
            let columns = match read {
                Ok(Some(columns)) => columns,
                Ok(None) => return Ok(Walk::On),
                // Nothing is done to what is damaged.
                Err(_) => {
                    found.skipped += 1;
                    return Ok(Walk::On);
                }
            };
            if columns.death.is_none_or(|death| bits(death) > job.deaths) {
                return Ok(Walk::On);
            }
            let is_ordered = row.get_ref(2)? != rusqlite::types::ValueRef::Null;
            if is_ordered && columns.state == Stand::DeadPassed as i64 && skips_passed {
                found.skipped += 1;
            } else {
                let is_plain = !is_ordered && !row.get::<_, bool>(4)?;
                found.meant.push(Meant { seq, id: row.get(1)?, is_plain, columns });
            }
            Ok(Walk::On)
        })?;
        Ok(found)
    }

    /// Puts back letters that keep no order: nobody else is to be looked at.
    fn redrive_plain(
        &mut self,
        mut letters: Vec<Meant>,
        redrive: &Redrive,
        job: JobId,
        step: &Advance,
        tells: bool,
    ) -> Step<()> {
        let by = PutBack::Job(job);
        let mut groups: HashMap<(StreamId, Option<i64>), u64> = HashMap::new();
        for Meant { seq, columns, .. } in &mut letters {
            *groups.entry((stream_of(*seq), columns.cause)).or_default() += 1;
            put_back(columns, redrive, by, step.at);
        }
        for run in letters.chunk_by(|letter, next| letter.seq.0 + 1 == next.seq.0) {
            self.write_put_back(run, redrive, by, step)?;
        }
        for ((stream, cause), letters) in groups {
            let cause = cause.map(|cause| CauseId(bits(cause)));
            self.count_redrives(stream, cause, letters, by, step.at)?;
        }
        if !tells {
            self.foreign |= !letters.is_empty();
            return Ok(());
        }
        for Meant { seq, .. } in letters {
            if let Some(stream) = self.names.of(&self.conn, stream_of(seq))? {
                self.tell_of(seq, &stream)?;
            }
        }
        Ok(())
    }

    /// Writes letters next to each other as [`put_back`] made them, with one statement: for each letter alone SQLite would
    /// open the table and all its indexes anew. Their checksums are handed in as digits, and each takes those at its
    /// place.
    fn write_put_back(
        &self,
        run: &[Meant],
        redrive: &Redrive,
        by: PutBack,
        step: &Advance,
    ) -> rusqlite::Result<()> {
        let (Some(first), Some(last)) = (run.first(), run.last()) else { return Ok(()) };
        let mut sums = String::with_capacity(run.len() * 10);
        for Meant { seq, columns, .. } in run {
            // A checksum of 32 bits has at most ten digits. Writing to a string does not fail.
            let _ = write!(sums, "{:010}", columns.sum(*seq));
        }
        self.conn
            .prepare_cached(
                "UPDATE redrive_held SET flow = 1, rev = rev + 1, state = ?3, due = ?4, attempts = attempts * ?5, \
                 mode = ?6, started = NULL, previous = 0, strikes = 0, suspect = 0, reason = NULL, died = NULL, \
                 park_until = NULL, park_count = NULL, route = NULL, out_of_order = 0, death = NULL, redrive = ?7, \
                 redriven = redriven + 1, lease_attempt = NULL, lease_token = NULL, lease_until = NULL, lease_from = NULL, \
                 progress_crc = CAST(substr(?8, (seq - ?1) * 10 + 1, 10) AS INTEGER) \
                 WHERE seq BETWEEN ?1 AND ?2",
            )?
            .execute(params![
                column(first.seq.0),
                column(last.seq.0),
                Stand::Waits as i64,
                from_moment(step.at),
                redrive.keep_attempts,
                Mode::Redrive.as_str(),
                by.to_column(),
                sums.as_bytes(),
            ])
            .map(drop)
    }

    /// Puts back a letter of which more is to be looked at. `false` where it may not, or is damaged: nothing is done
    /// to it, and the job would wait for its end for ever.
    fn redrive_one(&mut self, seq: Seq, redrive: &Redrive, job: JobId, step: &Advance) -> Step<bool> {
        let Some(stream) = self.names.of(&self.conn, stream_of(seq))? else { return Ok(false) };
        let Some(Ok(held)) = Held::find(&self.conn, seq, &stream)? else { return Ok(false) };
        if self.check_redrive(&held, redrive, step.at)?.is_err() {
            return Ok(false);
        }
        self.redrive(held, &stream, redrive, PutBack::Job(job), step.at)?;
        Ok(true)
    }

    fn tell_of(&mut self, seq: Seq, stream: &Stream) -> Step<()> {
        match Held::find(&self.conn, seq, stream)? {
            Some(Ok(held)) => self.arrive(held.entry(), stream)?,
            // The next load names it.
            _ => self.foreign = true,
        }
        Ok(())
    }

    /// Takes a letter away. `false` where it is damaged, and nothing is done to it.
    fn discard_letter(&mut self, letter: Meant, step: &Advance) -> Step<bool> {
        let Meant { seq, id, mut columns, .. } = letter;
        let Some(stream) = self.names.of(&self.conn, stream_of(seq))? else { return Ok(false) };
        if columns.state == Stand::DeadHolding as i64 {
            let Some(Ok(held)) = Held::find(&self.conn, seq, &stream)? else { return Ok(false) };
            return self.discard(held, false, &stream, step.at).map(|()| true);
        }
        self.uncount_death(stream.id, columns.cause.map(|cause| CauseId(bits(cause))), false)?;
        let attempts = u32::try_from(columns.attempts).unwrap_or(u32::MAX);
        self.stamp_discarded(&stream, &id, attempts, step.at)?;
        columns.rev += 1;
        columns.state = Stand::Discarded as i64;
        columns.death = None;
        (columns.lease_attempt, columns.lease_token) = (None, None);
        (columns.lease_until, columns.lease_from) = (None, None);
        columns.update(&self.conn, seq)?;
        Ok(true)
    }
}
