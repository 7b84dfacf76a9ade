//! The counters: deaths, the groups of dead letters, and the progress of jobs.
//!
//! A thousand dead letters of one cause that end in one commit change one row of `redrive_tally` and one of
//! `redrive_job`, once: within a transaction the counts are kept here. They are valid as long as no other process
//! writes to the file and nothing is rolled back, like the numbers of streams.

use std::collections::HashMap;

use redrive_core::Moment;
use redrive_core::queue_entry::StreamId;
use redrive_core::triage::{CauseId, Job, JobId, cause};
use rusqlite::{Connection, params};

use super::groups::{CAUSES_MAX, OTHER_TITLE, RedriveOutcome, Tally};
use super::jobs::{read_job, write_job};
use crate::stores::shared::numbers::{bits, column};
use crate::stores::sqlite::events::tracked::{RedrivenBy, RowState, TrackedEvent};
use crate::stores::sqlite::faults::{Fault, Step};
use crate::stores::sqlite::writer::tx::WriterTx;

/// How many counts are kept in memory between transactions.
const KEPT_MAX: usize = 4096;

/// The counters that were needed so far.
#[derive(Debug, Default)]
pub(in crate::stores::sqlite) struct Tallies {
    deaths: Option<u64>,
    died: bool,
    groups: HashMap<(StreamId, CauseId), Tally>,
    changed_groups: Vec<(StreamId, CauseId)>,
    causes: HashMap<StreamId, u32>,
    jobs: HashMap<JobId, (Job, bool)>,
}

impl Tallies {
    /// Writes the changed ones.
    pub(in crate::stores::sqlite) fn write(&mut self, conn: &Connection) -> rusqlite::Result<()> {
        if std::mem::take(&mut self.died) {
            conn.prepare_cached("UPDATE redrive_meta SET deaths = ?1")?
                .execute([column(self.deaths.unwrap_or_default())])?;
        }
        for (stream, cause) in self.changed_groups.drain(..) {
            if let Some(tally) = self.groups.get_mut(&(stream, cause)) {
                tally.is_changed = false;
                tally.write(conn, stream, cause)?;
            }
        }
        for (job, is_changed) in self.jobs.values_mut() {
            if std::mem::take(is_changed) {
                write_job(conn, job)?;
            }
        }
        Ok(())
    }

    /// Clears written counters, if there are many.
    pub(in crate::stores::sqlite) fn keep_small(&mut self) {
        if self.groups.len() + self.causes.len() + self.jobs.len() > KEPT_MAX {
            *self = Self::default();
        }
    }
}

impl WriterTx {
    /// How many deaths there were.
    pub(in crate::stores::sqlite) fn deaths(&mut self) -> rusqlite::Result<u64> {
        if let Some(deaths) = self.tallies.deaths {
            return Ok(deaths);
        }
        let deaths = self
            .conn
            .prepare_cached("SELECT deaths FROM redrive_meta")?
            .query_row([], |row| row.get(0).map(bits))?;
        self.tallies.deaths = Some(deaths);
        Ok(deaths)
    }

    /// An event died: numbers its death, finds its cause, and counts it.
    pub(in crate::stores::sqlite) fn count_death(
        &mut self,
        tracked: &mut TrackedEvent,
        stream: StreamId,
    ) -> rusqlite::Result<()> {
        let death = self.deaths()? + 1;
        (self.tallies.deaths, self.tallies.died) = (Some(death), true);
        tracked.death = Some(death);
        self.count_failed(stream, tracked.cause, tracked.redriven_by.take())?;

        let reason = tracked.reason.unwrap_or(redrive_core::event::DeadReason::Killed);
        let (cause, title) = cause::of(reason, tracked.progress.history.as_deref());
        let died = tracked.died.unwrap_or_default();
        let cause = self.open_group(stream, cause, title, died)?;
        tracked.cause = Some(cause);
        let is_holding = tracked.state == RowState::DeadHolding;
        self.change_group(stream, Some(cause), |tally| {
            tally.letters += 1;
            tally.holding += u64::from(is_holding);
            tally.first = tally.first.min(died);
            tally.last = tally.last.max(died);
        })
    }

    /// A dead letter was removed.
    pub(in crate::stores::sqlite) fn uncount_death(
        &mut self,
        stream: StreamId,
        cause: Option<CauseId>,
        was_holding: bool,
    ) -> rusqlite::Result<()> {
        self.change_group(stream, cause, |tally| {
            tally.letters = tally.letters.saturating_sub(1);
            tally.holding = tally.holding.saturating_sub(u64::from(was_holding));
        })
    }

    /// A dead letter no longer blocks its key.
    pub(in crate::stores::sqlite) fn uncount_hold(
        &mut self,
        stream: StreamId,
        cause: Option<CauseId>,
    ) -> rusqlite::Result<()> {
        self.change_group(stream, cause, |tally| tally.holding = tally.holding.saturating_sub(1))
    }

    /// A dead letter was redriven.
    pub(in crate::stores::sqlite) fn count_redrive(
        &mut self,
        stream: StreamId,
        cause: Option<CauseId>,
        by: RedrivenBy,
        at: Moment,
    ) -> rusqlite::Result<()> {
        self.change_group(stream, cause, |tally| tally.count_redriven(1, by, at))
    }

    /// Counts dead letters that block no key as redriven, many at once.
    pub(in crate::stores::sqlite) fn count_redrives(
        &mut self,
        stream: StreamId,
        cause: Option<CauseId>,
        letters: u64,
        by: RedrivenBy,
        at: Moment,
    ) -> rusqlite::Result<()> {
        self.change_group(stream, cause, |tally| {
            tally.letters = tally.letters.saturating_sub(letters);
            tally.count_redriven(letters, by, at);
        })
    }

    fn count_failed(
        &mut self,
        stream: StreamId,
        cause: Option<CauseId>,
        by: Option<RedrivenBy>,
    ) -> rusqlite::Result<()> {
        let Some(by) = by else { return Ok(()) };
        self.charge(Some(by), RedriveOutcome::Failed)?;
        self.change_group(stream, cause, |tally| tally.failed_again(by))
    }

    /// Records for the job that redrove an event, if any, how the event ended.
    pub(in crate::stores::sqlite) fn charge(
        &mut self,
        by: Option<RedrivenBy>,
        outcome: RedriveOutcome,
    ) -> rusqlite::Result<()> {
        let Some(id) = by.and_then(RedrivenBy::job) else { return Ok(()) };
        let job = match self.job(id) {
            Ok(Some(job)) => job,
            // An unreadable job is not charged: its dead letters go on.
            Ok(None) | Err(Fault::Refused(_) | Fault::Void) => return Ok(()),
            Err(Fault::Sql(error)) => return Err(error),
        };
        match outcome {
            RedriveOutcome::Done => job.done += 1,
            RedriveOutcome::Failed => job.failed += 1,
            RedriveOutcome::Other => job.other += 1,
        }
        self.changed_job(id);
        Ok(())
    }

    /// A job. A caller that changes it says so with [`Self::changed_job`].
    pub(in crate::stores::sqlite) fn job(&mut self, id: JobId) -> Step<Option<&mut Job>> {
        if !self.tallies.jobs.contains_key(&id) {
            let Some(job) = read_job(&self.conn, id)? else { return Ok(None) };
            self.tallies.jobs.insert(id, (job, false));
        }
        Ok(self.tallies.jobs.get_mut(&id).map(|(job, _)| job))
    }

    /// Keeps a changed job, to be written.
    pub(in crate::stores::sqlite) fn put_job(&mut self, job: Job) {
        self.tallies.jobs.insert(job.id, (job, true));
    }

    /// Marks a job to be written.
    pub(in crate::stores::sqlite) fn changed_job(&mut self, id: JobId) {
        if let Some((_, is_changed)) = self.tallies.jobs.get_mut(&id) {
            *is_changed = true;
        }
    }

    fn change_group(
        &mut self,
        stream: StreamId,
        cause: Option<CauseId>,
        change: impl FnOnce(&mut Tally),
    ) -> rusqlite::Result<()> {
        let Some(cause) = cause else { return Ok(()) };
        let key = (stream, cause);
        if !self.tallies.groups.contains_key(&key) {
            let Some(tally) = Tally::read(&self.conn, stream, cause)? else { return Ok(()) };
            self.tallies.groups.insert(key, tally);
        }
        let Tallies { groups, changed_groups, .. } = &mut self.tallies;
        if let Some(tally) = groups.get_mut(&key) {
            change(tally);
            if !std::mem::replace(&mut tally.is_changed, true) {
                changed_groups.push(key);
            }
        }
        Ok(())
    }

    /// Makes sure that there is a group for this cause, or takes the group of all others if there are too many.
    fn open_group(
        &mut self,
        stream: StreamId,
        cause: CauseId,
        title: String,
        died: Moment,
    ) -> rusqlite::Result<CauseId> {
        if self.has_group(stream, cause)? {
            return Ok(cause);
        }
        let causes = match self.tallies.causes.get(&stream) {
            Some(causes) => *causes,
            None => {
                // New ones are only in memory until they are written.
                self.tallies.write(&self.conn)?;
                self.conn
                    .prepare_cached("SELECT count(*) FROM redrive_tally WHERE stream = ?1")?
                    .query_row(params![stream.0], |row| row.get(0))?
            }
        };
        let (cause, title) = if causes < CAUSES_MAX {
            (cause, title)
        } else if self.has_group(stream, CauseId::OTHER)? {
            return Ok(CauseId::OTHER);
        } else {
            (CauseId::OTHER, OTHER_TITLE.to_owned())
        };
        self.tallies.causes.insert(stream, causes + 1);
        self.tallies.groups.insert((stream, cause), Tally::new(title, died));
        Ok(cause)
    }

    fn has_group(&mut self, stream: StreamId, cause: CauseId) -> rusqlite::Result<bool> {
        if self.tallies.groups.contains_key(&(stream, cause)) {
            return Ok(true);
        }
        let there = Tally::read(&self.conn, stream, cause)?;
        let is_there = there.is_some();
        self.tallies.groups.extend(there.map(|tally| ((stream, cause), tally)));
        Ok(is_there)
    }
}
