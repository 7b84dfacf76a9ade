//! The counters: deaths, the groups of dead letters, and the progress of jobs.
//!
//! A thousand dead letters of one cause that end in one commit change one row of `tally` and one of `job`, once, at
//! the end of the transaction: until then this module collects the changes. Rows are locked in order, so that two
//! transactions never deadlock over them.

use std::collections::BTreeMap;
use std::sync::PoisonError;

use redrive_core::Moment;
use redrive_core::event::DeadReason;
use redrive_core::queue_entry::StreamId;
use redrive_core::triage::{CauseId, JobId, cause};

use crate::stores::postgres::events::tracked::{RedrivenBy, RowState, TrackedEvent};
use crate::stores::postgres::faults::{Fault, Step};
use crate::stores::postgres::tx::{OwnTx, PgTx, maybe, one, run};
use crate::stores::shared::group::{CAUSES_MAX, OTHER_TITLE, RedriveOutcome, Tally};
use crate::stores::shared::numbers::{bits, column, from_moment, signed};

/// The changes to counters in a transaction.
#[derive(Debug, Default)]
pub(in crate::stores::postgres) struct Tallies {
    groups: BTreeMap<(StreamId, CauseId), Vec<Happened>>,
    jobs: BTreeMap<JobId, Charged>,
}

/// A change to a group.
#[derive(Debug)]
enum Happened {
    /// The group is new.
    Opened { title: String, at: Moment },
    /// An event died.
    Died { at: Moment, holding: bool },
    /// Dead letters were removed.
    Gone { letters: u64, holding: bool },
    /// A dead letter no longer blocks its key.
    Freed,
    /// Dead letters were redriven.
    Redriven { letters: u64, by: RedrivenBy, at: Moment },
    /// A redriven event died again.
    Failed(RedrivenBy),
}

/// How events ended that a job redrove.
#[derive(Debug, Default, Clone, Copy)]
struct Charged {
    done: u64,
    failed: u64,
    other: u64,
}

impl Happened {
    fn apply(self, tally: &mut Tally) {
        match self {
            Self::Opened { .. } => {}
            Self::Died { at, holding } => {
                tally.letters += 1;
                tally.holding += u64::from(holding);
                tally.first = tally.first.min(at);
                tally.last = tally.last.max(at);
            }
            Self::Gone { letters, holding } => {
                tally.letters = tally.letters.saturating_sub(letters);
                tally.holding = tally.holding.saturating_sub(u64::from(holding));
            }
            Self::Freed => tally.holding = tally.holding.saturating_sub(1),
            Self::Redriven { letters, by, at } => tally.count_redriven(letters, by, at),
            Self::Failed(by) => tally.failed_again(by),
        }
    }
}

impl PgTx<'_> {
    /// A dead letter no longer blocks its key.
    pub(in crate::stores::postgres) fn uncount_hold(&mut self, stream: StreamId, cause: Option<CauseId>) {
        self.happened(stream, cause, Happened::Freed);
    }

    fn happened(&mut self, stream: StreamId, cause: Option<CauseId>, what: Happened) {
        if let Some(cause) = cause {
            self.tallies.groups.entry((stream, cause)).or_default().push(what);
        }
    }
}

impl OwnTx {
    /// How many deaths there were.
    pub(in crate::stores::postgres) async fn deaths(&mut self) -> sqlx::Result<u64> {
        let select = "SELECT CASE WHEN is_called THEN last_value ELSE 0 END FROM redrive.death";
        one!(self, select).map(bits)
    }

    /// An event died: numbers its death, finds its cause, and counts it.
    pub(in crate::stores::postgres) async fn count_death(
        &mut self,
        tracked: &mut TrackedEvent,
        stream: StreamId,
    ) -> sqlx::Result<()> {
        tracked.death = Some(bits(one!(self, "SELECT nextval('redrive.death')")?));
        if let Some(by) = tracked.redriven_by.take() {
            self.charge(Some(by), RedriveOutcome::Failed);
            self.happened(stream, tracked.cause, Happened::Failed(by));
        }
        let reason = tracked.reason.unwrap_or(DeadReason::Killed);
        let (cause, title) = cause::of(reason, tracked.progress.history.as_deref());
        let at = tracked.died.unwrap_or_default();
        let cause = self.open_group(stream, cause, title, at).await?;
        tracked.cause = Some(cause);
        let holding = tracked.state == RowState::DeadHolding;
        self.happened(stream, Some(cause), Happened::Died { at, holding });
        Ok(())
    }

    /// A dead letter was removed.
    pub(in crate::stores::postgres) fn uncount_death(
        &mut self,
        stream: StreamId,
        cause: Option<CauseId>,
        was_holding: bool,
    ) {
        self.happened(stream, cause, Happened::Gone { letters: 1, holding: was_holding });
    }

    /// A dead letter was redriven.
    pub(in crate::stores::postgres) fn count_redrive(
        &mut self,
        stream: StreamId,
        cause: Option<CauseId>,
        by: RedrivenBy,
        at: Moment,
    ) {
        self.happened(stream, cause, Happened::Redriven { letters: 1, by, at });
    }

    /// Records for the job that redrove an event, if any, how the event ended.
    pub(in crate::stores::postgres) fn charge(&mut self, by: Option<RedrivenBy>, outcome: RedriveOutcome) {
        let Some(id) = by.and_then(RedrivenBy::job) else { return };
        let charged = self.tallies.jobs.entry(id).or_default();
        match outcome {
            RedriveOutcome::Done => charged.done += 1,
            RedriveOutcome::Failed => charged.failed += 1,
            RedriveOutcome::Other => charged.other += 1,
        }
    }

    /// Makes sure that there is a group for this cause, or takes the group of all others if there are too many.
    async fn open_group(
        &mut self,
        stream: StreamId,
        cause: CauseId,
        title: String,
        at: Moment,
    ) -> sqlx::Result<CauseId> {
        if self.has_group(stream, cause).await? {
            return Ok(cause);
        }
        let (cause, title) = if self.causes(stream).await? < CAUSES_MAX {
            (cause, title)
        } else if self.has_group(stream, CauseId::OTHER).await? {
            return Ok(CauseId::OTHER);
        } else {
            (CauseId::OTHER, OTHER_TITLE.to_owned())
        };
        let mut causes = self.db.cache.causes.lock().unwrap_or_else(PoisonError::into_inner);
        *causes.entry(stream).or_default() += 1;
        drop(causes);
        self.happened(stream, Some(cause), Happened::Opened { title, at });
        Ok(cause)
    }

    /// How many causes a stream has, roughly: from this process's cache, or from the database if that says too many.
    async fn causes(&mut self, stream: StreamId) -> sqlx::Result<u32> {
        let known = self.db.cache.causes.lock().unwrap_or_else(PoisonError::into_inner).get(&stream).copied();
        if let Some(known) = known.filter(|known| *known < CAUSES_MAX) {
            return Ok(known);
        }
        let there: i64 =
            one!(self, "SELECT count(*) FROM redrive.tally WHERE stream = $1", i64::from(stream.0))?;
        let opened = self.tallies.groups.iter().filter(|((of, _), happened)| {
            *of == stream && matches!(happened.first(), Some(Happened::Opened { .. }))
        });
        let causes = u32::try_from(there)
            .unwrap_or(u32::MAX)
            .saturating_add(u32::try_from(opened.count()).unwrap_or(u32::MAX));
        self.db.cache.causes.lock().unwrap_or_else(PoisonError::into_inner).insert(stream, causes);
        Ok(causes)
    }

    async fn has_group(&mut self, stream: StreamId, cause: CauseId) -> sqlx::Result<bool> {
        if self.tallies.groups.contains_key(&(stream, cause)) {
            return Ok(true);
        }
        let select = "SELECT 1 FROM redrive.tally WHERE stream = $1 AND cause = $2";
        Ok(maybe!(self, select, i64::from(stream.0), signed(cause.0))?.is_some())
    }

    /// Writes the collected changes.
    pub(in crate::stores::postgres) async fn write_counts(&mut self) -> Step<()> {
        let Tallies { groups, jobs } = std::mem::take(&mut self.tallies);
        for ((stream, cause), happened) in groups {
            self.write_group(stream, cause, happened).await?;
        }
        for (id, charged) in jobs {
            let mut job = match self.job(id).await {
                Ok(Some(job)) => job,
                // An unreadable job is not charged: its dead letters go on.
                Ok(None) | Err(Fault::Refused(_)) => continue,
                Err(fault) => return Err(fault),
            };
            job.done += charged.done;
            job.failed += charged.failed;
            job.other += charged.other;
            self.write_job(&job).await?;
        }
        Ok(())
    }

    async fn write_group(
        &mut self,
        stream: StreamId,
        CauseId(cause): CauseId,
        happened: Vec<Happened>,
    ) -> Step<()> {
        let (stream, cause) = (i64::from(stream.0), signed(cause));
        if let Some(Happened::Opened { title, at }) = happened.first() {
            run!(
                self,
                "INSERT INTO redrive.tally (stream, cause, title, letters, holding, first, last, redriven_at, \
                 redriven_letters, redriven_failed) VALUES ($1, $2, $3, 0, 0, $4, $4, 0, 0, 0) ON CONFLICT DO NOTHING",
                stream,
                cause,
                title,
                from_moment(*at)
            )?;
        }
        let row = maybe!(
            self,
            "SELECT title, letters, holding, first, last, redrive, redriven_at, redriven_letters, redriven_failed \
             FROM redrive.tally WHERE stream = $1 AND cause = $2 FOR UPDATE",
            stream,
            cause
        )?;
        let Some(Ok(mut tally)) = row.map(|row| Tally::from_row(&row, 0)) else { return Ok(()) };
        for one in happened {
            one.apply(&mut tally);
        }
        let redriven = tally.redriven.map(|(_, redriven)| redriven);
        let (letters, failed) = redriven.map_or((0, 0), |redriven| (redriven.letters, redriven.failed));
        run!(
            self,
            "UPDATE redrive.tally SET letters = $3, holding = $4, first = $5, last = $6, redrive = $7, \
             redriven_at = $8, redriven_letters = $9, redriven_failed = $10 WHERE stream = $1 AND cause = $2",
            stream,
            cause,
            column(tally.letters),
            column(tally.holding),
            from_moment(tally.first),
            from_moment(tally.last),
            tally.redriven.map(|(by, _)| by.to_column()),
            redriven.map_or(0, |redriven| from_moment(redriven.at)),
            column(letters),
            column(failed)
        )?;
        Ok(())
    }
}
