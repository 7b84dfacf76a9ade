//! What is counted: deaths, the groups of dead letters, and how far jobs have come.
//!
//! A thousand letters of one cause that end in one commit change one row of `redrive_group` and one of
//! `redrive_job`, once: within a transaction the counts are kept here. They hold as long as nobody else writes to
//! the file and nothing is rolled back, like the numbers of streams.

use std::collections::HashMap;

use redrive_core::Moment;
use redrive_core::entry::StreamId;
use redrive_core::triage::{CauseId, Job, JobId, cause};
use rusqlite::{Connection, params};

use super::desk::Desk;
use super::faults::{Fault, Step};
use super::group::{CAUSES_MAX, OTHER_TITLE, Tally};
use super::held::{Held, PutBack, Stand};
use super::jobs::{read_job, write_job};
use super::numbers::{bits, column};

/// How many counts are kept in memory between transactions.
const KEPT_MAX: usize = 4096;

/// What is counted, as far as it was needed.
#[derive(Debug, Default)]
pub(super) struct Ledger {
    deaths: Option<u64>,
    died: bool,
    groups: HashMap<(StreamId, CauseId), Tally>,
    changed_groups: Vec<(StreamId, CauseId)>,
    causes: HashMap<StreamId, u32>,
    jobs: HashMap<JobId, (Job, bool)>,
}

/// How an event that a job put back ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Outcome {
    Done,
    Failed,
    Other,
}

impl Ledger {
    /// Writes what has changed.
    pub(super) fn write(&mut self, conn: &Connection) -> rusqlite::Result<()> {
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

    /// Forgets what is written, if it is much.
    pub(super) fn keep_small(&mut self) {
        if self.groups.len() + self.causes.len() + self.jobs.len() > KEPT_MAX {
            *self = Self::default();
        }
    }
}

impl Desk {
    /// How many deaths there were.
    pub(super) fn deaths(&mut self) -> rusqlite::Result<u64> {
        if let Some(deaths) = self.ledger.deaths {
            return Ok(deaths);
        }
        let deaths = self
            .conn
            .prepare_cached("SELECT deaths FROM redrive_meta")?
            .query_row([], |row| row.get(0).map(bits))?;
        self.ledger.deaths = Some(deaths);
        Ok(deaths)
    }

    /// An event is dead now, as it says: gives its death a number, finds what it died of, and counts it.
    pub(super) fn count_death(&mut self, held: &mut Held, stream: StreamId) -> rusqlite::Result<()> {
        let death = self.deaths()? + 1;
        (self.ledger.deaths, self.ledger.died) = (Some(death), true);
        held.death = Some(death);
        self.count_failed(stream, held.cause, held.put_back.take())?;

        let reason = held.reason.unwrap_or(redrive_core::event::DeadReason::Killed);
        let (cause, title) = cause::of(reason, held.progress.story.as_deref());
        let died = held.died.unwrap_or_default();
        let cause = self.open_group(stream, cause, title, died)?;
        held.cause = Some(cause);
        let is_holding = held.stand == Stand::DeadHolding;
        self.change_group(stream, Some(cause), |tally| {
            tally.letters += 1;
            tally.holding += u64::from(is_holding);
            tally.first = tally.first.min(died);
            tally.last = tally.last.max(died);
        })
    }

    /// A dead letter is none any more.
    pub(super) fn uncount_death(
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

    /// A dead letter no longer holds up its key.
    pub(super) fn uncount_hold(&mut self, stream: StreamId, cause: Option<CauseId>) -> rusqlite::Result<()> {
        self.change_group(stream, cause, |tally| tally.holding = tally.holding.saturating_sub(1))
    }

    /// A dead letter was put back.
    pub(super) fn count_redrive(
        &mut self,
        stream: StreamId,
        cause: Option<CauseId>,
        by: PutBack,
        at: Moment,
    ) -> rusqlite::Result<()> {
        self.change_group(stream, cause, |tally| tally.put_back(1, by, at))
    }

    /// Dead letters that hold up nobody were put back, so many at once.
    pub(super) fn count_redrives(
        &mut self,
        stream: StreamId,
        cause: Option<CauseId>,
        letters: u64,
        by: PutBack,
        at: Moment,
    ) -> rusqlite::Result<()> {
        self.change_group(stream, cause, |tally| {
            tally.letters = tally.letters.saturating_sub(letters);
            tally.put_back(letters, by, at);
        })
    }

    fn count_failed(
        &mut self,
        stream: StreamId,
        cause: Option<CauseId>,
        by: Option<PutBack>,
    ) -> rusqlite::Result<()> {
        let Some(by) = by else { return Ok(()) };
        self.charge(Some(by), Outcome::Failed)?;
        self.change_group(stream, cause, |tally| tally.failed_again(by))
    }

    /// Tells the job that put an event back, if one did, how the event ended.
    pub(super) fn charge(&mut self, by: Option<PutBack>, outcome: Outcome) -> rusqlite::Result<()> {
        let Some(PutBack::Job(id)) = by else { return Ok(()) };
        let job = match self.job(id) {
            Ok(Some(job)) => job,
            // A job that nobody can read is told nothing: its letters go on.
            Ok(None) | Err(Fault::Refused(_) | Fault::Spoiled) => return Ok(()),
            Err(Fault::Sql(error)) => return Err(error),
        };
        match outcome {
            Outcome::Done => job.done += 1,
            Outcome::Failed => job.failed += 1,
            Outcome::Other => job.other += 1,
        }
        self.changed_job(id);
        Ok(())
    }

    /// A job. Whoever changes it says so with [`Self::changed_job`].
    pub(super) fn job(&mut self, id: JobId) -> Step<Option<&mut Job>> {
        if !self.ledger.jobs.contains_key(&id) {
            let Some(job) = read_job(&self.conn, id)? else { return Ok(None) };
            self.ledger.jobs.insert(id, (job, false));
        }
        Ok(self.ledger.jobs.get_mut(&id).map(|(job, _)| job))
    }

    /// A job is to be written.
    pub(super) fn changed_job(&mut self, id: JobId) {
        if let Some((_, is_changed)) = self.ledger.jobs.get_mut(&id) {
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
        if !self.ledger.groups.contains_key(&key) {
            let Some(tally) = Tally::read(&self.conn, stream, cause)? else { return Ok(()) };
            self.ledger.groups.insert(key, tally);
        }
        let Ledger { groups, changed_groups, .. } = &mut self.ledger;
        if let Some(tally) = groups.get_mut(&key) {
            change(tally);
            if !std::mem::replace(&mut tally.is_changed, true) {
                changed_groups.push(key);
            }
        }
        Ok(())
    }

    /// Makes sure that there is a group for this cause, or takes the one for those that are too many.
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
        let causes = match self.ledger.causes.get(&stream) {
            Some(causes) => *causes,
            None => {
                // New ones are in memory alone until they are written.
                self.ledger.write(&self.conn)?;
                self.conn
                    .prepare_cached("SELECT count(*) FROM redrive_group WHERE stream = ?1")?
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
        self.ledger.causes.insert(stream, causes + 1);
        self.ledger.groups.insert((stream, cause), Tally::new(title, died));
        Ok(cause)
    }

    fn has_group(&mut self, stream: StreamId, cause: CauseId) -> rusqlite::Result<bool> {
        if self.ledger.groups.contains_key(&(stream, cause)) {
            return Ok(true);
        }
        let there = Tally::read(&self.conn, stream, cause)?;
        let is_there = there.is_some();
        self.ledger.groups.extend(there.map(|tally| ((stream, cause), tally)));
        Ok(is_there)
    }
}
