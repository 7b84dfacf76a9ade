//! The dead letters of a job.
//!
//! One `UPDATE` redrives adjacent dead letters without a key: their attempt histories, payloads and identities are not
//! read.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::sync::Arc;

use redrive_core::event::Mode;
use redrive_core::queue_entry::{Seq, StreamId};
use redrive_core::triage::{CauseId, Job, JobAct, JobId, RedriveOptions};
use rusqlite::{Row, params};

use super::letters::{Walk, walk, walk_all};
use crate::operate::JobAdvance;
use crate::stores::rows::advance::{Candidate, Candidates};
use crate::stores::shared::numbers::{bits, column, from_moment, stream_of};
use crate::stores::sqlite::events::columns::redrive_columns;
use crate::stores::sqlite::events::fresh::Stream;
use crate::stores::sqlite::events::tracked::{RedrivenBy, RowState, TrackedEvent};
use crate::stores::sqlite::faults::Step;
use crate::stores::sqlite::writer::tx::WriterTx;

impl WriterTx {
    /// The next dead letters of a job.
    pub(in crate::stores::sqlite) fn candidates(&mut self, job: &Job, most: usize) -> Step<Candidates> {
        let mut found = Candidates::of(job);
        let after = job.cursor.map_or(-1, |seq| column(seq.0));
        let look = |row: &Row<'_>, seq: Seq, stream: &Arc<Stream>| {
            if found.is_full(most) {
                return Ok(Walk::Stop);
            }
            found.look(job, seq, Some(Arc::clone(stream)), row);
            Ok(Walk::On)
        };
        let (conn, names, filter) = (&self.conn, &mut self.names, &job.plan.filter);
        let exhausted = match job.plan.act {
            JobAct::RetryNow => walk_all(conn, names, filter, after, look)?,
            JobAct::Redrive(_) | JobAct::Discard => walk(conn, names, filter, after, look)?,
        };
        found.exhausted = exhausted;
        Ok(found)
    }

    /// Redrives dead letters that keep no order: no other row has to be read.
    pub(in crate::stores::sqlite) fn redrive_plain(
        &mut self,
        mut letters: Vec<Candidate>,
        redrive: &RedriveOptions,
        job: JobId,
        step: &JobAdvance,
        announce: bool,
    ) -> Step<()> {
        let by = RedrivenBy::Job(job);
        let mut groups: HashMap<(StreamId, Option<i64>), u64> = HashMap::new();
        for Candidate { seq, columns, .. } in &mut letters {
            *groups.entry((stream_of(*seq), columns.cause)).or_default() += 1;
            redrive_columns(columns, redrive, by, step.at);
        }
        for run in letters.chunk_by(|letter, next| letter.seq.0 + 1 == next.seq.0) {
            self.write_redriven(run, redrive, by, step)?;
        }
        for ((stream, cause), letters) in groups {
            let cause = cause.map(|cause| CauseId(bits(cause)));
            self.count_redrives(stream, cause, letters, by, step.at)?;
        }
        if !announce {
            self.foreign |= !letters.is_empty();
            return Ok(());
        }
        for Candidate { seq, stream, .. } in letters {
            self.announce(seq, &stream)?;
        }
        Ok(())
    }

    /// Writes adjacent dead letters as [`redrive_columns`] made them, with one statement: with one for each, SQLite
    /// would open the table and all its indexes every time. Their checksums are passed as a string of digits, from
    /// which each row takes its own.
    fn write_redriven(
        &self,
        run: &[Candidate],
        redrive: &RedriveOptions,
        by: RedrivenBy,
        step: &JobAdvance,
    ) -> rusqlite::Result<()> {
        let (Some(first), Some(last)) = (run.first(), run.last()) else { return Ok(()) };
        let mut sums = String::with_capacity(run.len() * 10);
        for Candidate { seq, columns, .. } in run {
            // A checksum of 32 bits has at most ten digits. Writing to a string does not fail.
            let _ = write!(sums, "{:010}", columns.sum(*seq));
        }
        self.conn
            .prepare_cached(
                "UPDATE redrive_tracked SET flow = 1, rev = rev + 1, state = ?3, due = ?4, attempts = attempts * ?5, \
                 mode = ?6, started = NULL, previous = 0, crash_count = 0, suspect = 0, reason = NULL, died = NULL, \
                 park_until = NULL, park_count = NULL, route = NULL, out_of_order = 0, death = NULL, redrive = ?7, \
                 redriven = redriven + 1, lease_attempt = NULL, lease_token = NULL, lease_until = NULL, lease_from = NULL, \
                 progress_crc = CAST(substr(?8, (seq - ?1) * 10 + 1, 10) AS INTEGER) \
                 WHERE seq BETWEEN ?1 AND ?2",
            )?
            .execute(params![
                column(first.seq.0),
                column(last.seq.0),
                RowState::Waiting as i64,
                from_moment(step.at),
                redrive.keep_attempts,
                Mode::Redrive.as_str(),
                by.to_column(),
                sums.as_bytes(),
            ])
            .map(drop)
    }

    fn announce(&mut self, seq: Seq, stream: &Stream) -> Step<()> {
        match TrackedEvent::find(&self.conn, seq, stream)? {
            Some(Ok(tracked)) => self.arrive(tracked.entry(), stream)?,
            // The next load reports it.
            _ => self.foreign = true,
        }
        Ok(())
    }
}
