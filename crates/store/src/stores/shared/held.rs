//! Events that wait, are blocked, held back, leased, dead or discarded: rows that change.
//!
//! What changes has a [checksum of its own](super::columns); the checksum of what never changes stays as it was at
//! publish.

use std::sync::Arc;

use redrive_core::Moment;
use redrive_core::entry::{Entry, Park, Progress};
use redrive_core::event::DeadReason;
use redrive_core::triage::{CauseId, JobId};

use super::cells::{Cells, Damage};
use super::columns::Columns;
use super::numbers::{bits, column, from_moment, nanos, signed, stream_of, to_duration, to_moment};
use super::rows::{EVENT_COLUMNS, EventRow, Stream};
use super::stories::{read_story, write_story};
use crate::lease::{Lapsed, TokenHash};

/// All columns of the table that are read.
macro_rules! held_columns {
    () => {
        concat!(
            $crate::stores::shared::rows::event_columns!(),
            ", ",
            $crate::stores::shared::columns::change_columns!()
        )
    };
}
pub(in crate::stores) use held_columns;

/// Where a held event is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::stores) enum Stand {
    /// It waits for its time.
    Waits = 0,
    /// It waits for the one of its key before it.
    Blocked = 1,
    /// It is dead, and those of its key that follow wait.
    DeadHolding = 2,
    /// It is dead, and those that follow go on.
    DeadPassed = 3,
    /// It is the head of a key that a rule withholds.
    Withheld = 4,
    /// An operator took it away, and may restore it.
    Discarded = 5,
    /// Somebody outside has it.
    Leased = 6,
}

impl Stand {
    pub(in crate::stores) const fn is_dead(self) -> bool {
        matches!(self, Self::DeadHolding | Self::DeadPassed)
    }

    /// Whether it may run some time.
    pub(in crate::stores) const fn is_alive(self) -> bool {
        matches!(self, Self::Waits | Self::Blocked | Self::Withheld | Self::Leased)
    }

    const fn from_column(column: i64) -> Result<Self, Damage> {
        match column {
            0 => Ok(Self::Waits),
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

/// What put a dead letter back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::stores) enum PutBack {
    /// An order, with the number of its line in the audit.
    Order(u64),
    /// A job.
    Job(JobId),
}

impl PutBack {
    pub(in crate::stores) fn to_column(self) -> i64 {
        match self {
            Self::Order(line) => column(line),
            Self::Job(JobId(id)) => -column(id),
        }
    }

    pub(in crate::stores) const fn from_column(column: i64) -> Self {
        if column < 0 { Self::Job(JobId(column.unsigned_abs())) } else { Self::Order(column.unsigned_abs()) }
    }
}

/// The last lease of an event, as long as it lives or is dead by the end of that lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::stores) struct Mark {
    pub(in crate::stores) attempt: u32,
    pub(in crate::stores) token: TokenHash,
    pub(in crate::stores) from: Moment,
    pub(in crate::stores) until: Moment,
}

/// A held event.
#[derive(Debug, Clone)]
pub(in crate::stores) struct Held {
    pub(in crate::stores) row: EventRow,
    pub(in crate::stores) rev: u32,
    pub(in crate::stores) stand: Stand,
    pub(in crate::stores) progress: Progress,
    pub(in crate::stores) reason: Option<DeadReason>,
    pub(in crate::stores) died: Option<Moment>,
    pub(in crate::stores) park_until: Option<Moment>,
    pub(in crate::stores) park_count: Option<u32>,
    /// What it died of, also after it was put back.
    pub(in crate::stores) cause: Option<CauseId>,
    /// The number of its death.
    pub(in crate::stores) death: Option<u64>,
    pub(in crate::stores) put_back: Option<PutBack>,
    /// How often it was put back.
    pub(in crate::stores) redriven: u32,
    pub(in crate::stores) lease: Option<Mark>,
}

impl Held {
    /// An event that has not run yet.
    pub(in crate::stores) fn fresh(row: EventRow, stand: Stand) -> Self {
        let progress = Progress::fresh(row.event.when.moment(row.published));
        Self {
            row,
            rev: 0,
            stand,
            progress,
            reason: None,
            died: None,
            park_until: None,
            park_count: None,
            cause: None,
            death: None,
            put_back: None,
            redriven: 0,
            lease: None,
        }
    }

    /// What the owner gets of it.
    pub(in crate::stores) fn entry(self) -> Entry {
        let stream = stream_of(self.row.seq);
        Entry { rev: self.rev, progress: self.progress, ..self.row.entry(stream) }
    }

    /// Its columns that change.
    pub(in crate::stores) fn columns(&self) -> Columns {
        Columns {
            state: self.stand as i64,
            reason: self.reason,
            died: self.died.map(from_moment),
            park_until: self.park_until.map(from_moment),
            park_count: self.park_count.map(i64::from),
            cause: self.cause.map(|CauseId(cause)| signed(cause)),
            death: self.death.map(column),
            redrive: self.put_back.map(PutBack::to_column),
            redriven: i64::from(self.redriven),
            lease_attempt: self.lease.map(|lease| i64::from(lease.attempt)),
            lease_token: self.lease.map(|lease| lease.token),
            lease_until: self.lease.map(|lease| from_moment(lease.until)),
            lease_from: self.lease.map(|lease| from_moment(lease.from)),
            ..plain_columns(&self.progress, self.rev)
        }
    }

    /// Reads a row of [`held_columns`].
    pub(in crate::stores) fn read(row: &impl Cells, stream: &Stream) -> Result<Self, Damage> {
        let event = EventRow::read(row, stream)?;
        let columns = Columns::read(row, EVENT_COLUMNS, event.seq)?;
        Self::of(event, columns)
    }

    /// The event that has these columns.
    fn of(row: EventRow, columns: Columns) -> Result<Self, Damage> {
        let small = |number: i64| u32::try_from(number).map_err(|_| Damage);
        let progress = Progress {
            due: to_moment(columns.due),
            attempts: small(columns.attempts)?,
            mode: columns.mode,
            started: columns.started.map(to_moment),
            previous: to_duration(columns.previous),
            strikes: u8::try_from(columns.strikes).map_err(|_| Damage)?,
            suspect: columns.suspect != 0,
            story: read_story(columns.story.as_deref())?,
            route: columns.route.map(Arc::from),
            out_of_order: columns.out_of_order != 0,
        };
        let times = columns.lease_from.zip(columns.lease_until);
        let lease = match (columns.lease_attempt, columns.lease_token, times) {
            (Some(attempt), Some(token), Some((from, until))) => {
                let (from, until) = (to_moment(from), to_moment(until));
                Some(Mark { attempt: small(attempt)?, token, from, until })
            }
            _ => None,
        };
        Ok(Self {
            row,
            rev: small(columns.rev)?,
            stand: Stand::from_column(columns.state)?,
            progress,
            reason: columns.reason,
            died: columns.died.map(to_moment),
            park_until: columns.park_until.map(to_moment),
            park_count: columns.park_count.map(small).transpose()?,
            cause: columns.cause.map(|cause| CauseId(bits(cause))),
            death: columns.death.map(bits),
            put_back: columns.redrive.map(PutBack::from_column),
            redriven: small(columns.redriven)?,
            lease,
        })
    }

    /// Whether it is a dead letter whose key went on without it.
    pub(in crate::stores) fn is_passed(&self) -> bool {
        self.stand == Stand::DeadPassed && self.row.ordered
    }

    /// What a late answer has to know of it, where it is a dead letter.
    pub(in crate::stores) fn lapsed(&self) -> Option<Lapsed> {
        let reason = self.reason.filter(|_| self.stand.is_dead())?;
        let park = match self.stand {
            Stand::DeadHolding => Park::UpTo { until: self.park_until, count: self.park_count },
            _ => Park::GoOn,
        };
        Some(Lapsed { reason, park, passed: self.is_passed() })
    }
}

/// The columns that change of an event that waits for its time, and was never dead or leased.
pub(in crate::stores) fn plain_columns(progress: &Progress, rev: u32) -> Columns {
    Columns {
        rev: i64::from(rev),
        state: Stand::Waits as i64,
        due: from_moment(progress.due),
        attempts: i64::from(progress.attempts),
        mode: progress.mode,
        started: progress.started.map(from_moment),
        previous: column(nanos(progress.previous)),
        strikes: i64::from(progress.strikes),
        suspect: i64::from(progress.suspect),
        story: write_story(progress.story.as_deref()),
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
