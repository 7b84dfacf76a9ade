//! Events that wait, are blocked, held back, leased, dead or discarded: rows that change.
//!
//! The changing columns have a [checksum of their own](super::columns); the checksum of the others stays as it was at
//! publish.

use std::sync::Arc;

use redrive_core::Moment;
use redrive_core::event::DeadReason;
use redrive_core::queue_entry::{EventProgress, ParkFollowers, QueueEntry};
use redrive_core::triage::{CauseId, JobId};

use super::cells::{Cells, Damage};
use super::columns::Columns;
use super::history::{read_history, write_history};
use super::numbers::{bits, column, from_moment, nanos, signed, stream_of, to_duration, to_moment};
use super::rows::{EVENT_COLUMNS, EventRow, Stream};
use crate::lease::{DeadByExpiry, TokenHash};

/// All columns of the table that are read.
macro_rules! tracked_columns {
    () => {
        concat!(
            $crate::stores::shared::rows::event_columns!(),
            ", ",
            $crate::stores::shared::columns::change_columns!()
        )
    };
}
pub(in crate::stores) use tracked_columns;

/// The state of a tracked event, as the column `state` stores it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::stores) enum RowState {
    /// It waits for its time.
    Waiting = 0,
    /// It waits for an earlier event of its key.
    Blocked = 1,
    /// It is dead, and blocks the later events of its key.
    DeadHolding = 2,
    /// It is dead, and does not block its key.
    DeadPassed = 3,
    /// It is the head of a key that a rule withholds.
    Withheld = 4,
    /// An operator discarded it, and may restore it.
    Discarded = 5,
    /// A worker outside the engine holds it.
    Leased = 6,
}

/// The states of these names as SQL writes them, separated by commas: the numbers of [`RowState`].
///
/// ```text
/// concat!("state = ", states!(Leased))
/// concat!("state IN (", states!(DeadHolding, DeadPassed), ")")
/// ```
macro_rules! states {
    (Waiting) => { "0" };
    (Blocked) => { "1" };
    (DeadHolding) => { "2" };
    (DeadPassed) => { "3" };
    (Withheld) => { "4" };
    (Discarded) => { "5" };
    (Leased) => { "6" };
    ($first:ident, $($more:ident),+) => {
        concat!(
            $crate::stores::shared::tracked::states!($first),
            ", ",
            $crate::stores::shared::tracked::states!($($more),+)
        )
    };
}
pub(in crate::stores) use states;

impl RowState {
    pub(in crate::stores) const fn is_dead(self) -> bool {
        matches!(self, Self::DeadHolding | Self::DeadPassed)
    }

    /// Whether it may run at some time.
    pub(in crate::stores) const fn is_alive(self) -> bool {
        matches!(self, Self::Waiting | Self::Blocked | Self::Withheld | Self::Leased)
    }

    const fn from_column(column: i64) -> Result<Self, Damage> {
        match column {
            0 => Ok(Self::Waiting),
            1 => Ok(Self::Blocked),
            2 => Ok(Self::DeadHolding),
            3 => Ok(Self::DeadPassed),
            4 => Ok(Self::Withheld),
            5 => Ok(Self::Discarded),
            6 => Ok(Self::Leased),
            _ => Err(Damage),
        }
    }
}

/// What redrove a dead letter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::stores) enum RedrivenBy {
    /// A command, with the number of its line in the audit.
    Order(u64),
    /// A job.
    Job(JobId),
    /// A job that retried a living event at once: the next end of an attempt counts for it.
    Retry(JobId),
}

/// Added to the number of a job in the column, if the job retried the event.
const RETRY: u64 = 1 << 48;

impl RedrivenBy {
    pub(in crate::stores) fn to_column(self) -> i64 {
        match self {
            Self::Order(line) => column(line),
            Self::Job(JobId(id)) => -column(id),
            Self::Retry(JobId(id)) => -column(id + RETRY),
        }
    }

    pub(in crate::stores) const fn from_column(column: i64) -> Self {
        match (column < 0, column.unsigned_abs()) {
            (false, line) => Self::Order(line),
            (true, id) if id > RETRY => Self::Retry(JobId(id - RETRY)),
            (true, id) => Self::Job(JobId(id)),
        }
    }

    /// The job, if it was one.
    pub(in crate::stores) const fn job(self) -> Option<JobId> {
        match self {
            Self::Order(_) => None,
            Self::Job(id) | Self::Retry(id) => Some(id),
        }
    }
}

/// The last lease of an event, as long as it lives or died because that lease ran out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::stores) struct LastLease {
    pub(in crate::stores) attempt: u32,
    pub(in crate::stores) token: TokenHash,
    pub(in crate::stores) from: Moment,
    pub(in crate::stores) until: Moment,
}

/// A tracked event: one that ran, waits, is leased, dead or discarded.
#[derive(Debug, Clone)]
pub(in crate::stores) struct TrackedEvent {
    pub(in crate::stores) row: EventRow,
    pub(in crate::stores) rev: u32,
    pub(in crate::stores) state: RowState,
    pub(in crate::stores) progress: EventProgress,
    pub(in crate::stores) reason: Option<DeadReason>,
    pub(in crate::stores) died: Option<Moment>,
    pub(in crate::stores) park_until: Option<Moment>,
    pub(in crate::stores) park_count: Option<u32>,
    /// The cause of its death, also after it was redriven.
    pub(in crate::stores) cause: Option<CauseId>,
    /// The number of its death.
    pub(in crate::stores) death: Option<u64>,
    pub(in crate::stores) redriven_by: Option<RedrivenBy>,
    /// How often it was redriven.
    pub(in crate::stores) redriven: u32,
    pub(in crate::stores) lease: Option<LastLease>,
}

impl TrackedEvent {
    /// An event that has not run yet.
    pub(in crate::stores) fn fresh(row: EventRow, state: RowState) -> Self {
        let progress = EventProgress::fresh(row.event.when.moment(row.published));
        Self {
            row,
            rev: 0,
            state,
            progress,
            reason: None,
            died: None,
            park_until: None,
            park_count: None,
            cause: None,
            death: None,
            redriven_by: None,
            redriven: 0,
            lease: None,
        }
    }

    /// The entry for its owner.
    pub(in crate::stores) fn entry(self) -> QueueEntry {
        let stream = stream_of(self.row.seq);
        QueueEntry { rev: self.rev, progress: self.progress, ..self.row.entry(stream) }
    }

    /// Its changing columns.
    pub(in crate::stores) fn columns(&self) -> Columns {
        Columns {
            state: self.state as i64,
            reason: self.reason,
            died: self.died.map(from_moment),
            park_until: self.park_until.map(from_moment),
            park_count: self.park_count.map(i64::from),
            cause: self.cause.map(|CauseId(cause)| signed(cause)),
            death: self.death.map(column),
            redrive: self.redriven_by.map(RedrivenBy::to_column),
            redriven: i64::from(self.redriven),
            lease_attempt: self.lease.map(|lease| i64::from(lease.attempt)),
            lease_token: self.lease.map(|lease| lease.token),
            lease_until: self.lease.map(|lease| from_moment(lease.until)),
            lease_from: self.lease.map(|lease| from_moment(lease.from)),
            ..plain_columns(&self.progress, self.rev)
        }
    }

    /// Reads a row of [`tracked_columns`].
    pub(in crate::stores) fn read(row: &impl Cells, stream: &Stream) -> Result<Self, Damage> {
        let event = EventRow::read(row, stream)?;
        let columns = Columns::read(row, EVENT_COLUMNS, event.seq)?;
        Self::of(event, columns)
    }

    /// The event with these columns.
    fn of(row: EventRow, columns: Columns) -> Result<Self, Damage> {
        let small = |number: i64| u32::try_from(number).map_err(|_| Damage);
        let progress = EventProgress {
            due: to_moment(columns.due),
            attempts: small(columns.attempts)?,
            mode: columns.mode,
            started: columns.started.map(to_moment),
            previous: to_duration(columns.previous),
            crash_count: u8::try_from(columns.crash_count).map_err(|_| Damage)?,
            suspect: columns.suspect != 0,
            history: read_history(columns.history.as_deref())?,
            route: columns.route.map(Arc::from),
            out_of_order: columns.out_of_order != 0,
        };
        let times = columns.lease_from.zip(columns.lease_until);
        let lease = match (columns.lease_attempt, columns.lease_token, times) {
            (Some(attempt), Some(token), Some((from, until))) => {
                let (from, until) = (to_moment(from), to_moment(until));
                Some(LastLease { attempt: small(attempt)?, token, from, until })
            }
            _ => None,
        };
        Ok(Self {
            row,
            rev: small(columns.rev)?,
            state: RowState::from_column(columns.state)?,
            progress,
            reason: columns.reason,
            died: columns.died.map(to_moment),
            park_until: columns.park_until.map(to_moment),
            park_count: columns.park_count.map(small).transpose()?,
            cause: columns.cause.map(|cause| CauseId(bits(cause))),
            death: columns.death.map(bits),
            redriven_by: columns.redrive.map(RedrivenBy::from_column),
            redriven: small(columns.redriven)?,
            lease,
        })
    }

    /// Whether it is a dead letter that no longer blocks its key.
    pub(in crate::stores) fn is_passed(&self) -> bool {
        self.state == RowState::DeadPassed && self.row.ordered
    }

    /// What a late settle needs to know of a dead letter.
    pub(in crate::stores) fn lapsed(&self) -> Option<DeadByExpiry> {
        let reason = self.reason.filter(|_| self.state.is_dead())?;
        let park = match self.state {
            RowState::DeadHolding => ParkFollowers::UpTo { until: self.park_until, count: self.park_count },
            _ => ParkFollowers::No,
        };
        Some(DeadByExpiry { reason, park, passed: self.is_passed() })
    }
}

/// The changing columns of an event that waits for its time, and was never dead or leased.
pub(in crate::stores) fn plain_columns(progress: &EventProgress, rev: u32) -> Columns {
    Columns {
        rev: i64::from(rev),
        state: RowState::Waiting as i64,
        due: from_moment(progress.due),
        attempts: i64::from(progress.attempts),
        mode: progress.mode,
        started: progress.started.map(from_moment),
        previous: column(nanos(progress.previous)),
        crash_count: i64::from(progress.crash_count),
        suspect: i64::from(progress.suspect),
        history: write_history(progress.history.as_deref()),
        reason: None,
        died: None,
        park_until: None,
        park_count: None,
        route: progress.route.as_deref().map(str::to_owned),
        out_of_order: i64::from(progress.out_of_order),
        cause: None,
        death: None,
        redrive: None,
        redriven: 0,
        lease_attempt: None,
        lease_token: None,
        lease_until: None,
        lease_from: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_redrove_an_event_is_read_as_it_was_written() {
        let jobs = [1, (1 << 40) - 1].map(JobId);
        let all = jobs
            .into_iter()
            .flat_map(|id| [RedrivenBy::Job(id), RedrivenBy::Retry(id), RedrivenBy::Order(id.0)]);
        for by in all {
            assert_eq!(RedrivenBy::from_column(by.to_column()), by);
        }
    }

    #[test]
    fn sql_and_rust_number_the_states_alike() {
        for (sql, state) in [
            (states!(Waiting), RowState::Waiting),
            (states!(Blocked), RowState::Blocked),
            (states!(DeadHolding), RowState::DeadHolding),
            (states!(DeadPassed), RowState::DeadPassed),
            (states!(Withheld), RowState::Withheld),
            (states!(Discarded), RowState::Discarded),
            (states!(Leased), RowState::Leased),
        ] {
            assert_eq!(sql.parse(), Ok(state as i64));
            assert_eq!(RowState::from_column(state as i64), Ok(state));
        }
        assert_eq!(states!(DeadHolding, DeadPassed), "2, 3");
    }
}
