//! Events that wait, are blocked, held back, leased, dead or discarded: rows that change.
//!
//! What changes has a [checksum of its own](super::columns); the checksum of what never changes stays as it was at
//! publish.

use std::sync::Arc;

use redrive_core::Moment;
use redrive_core::entry::{Entry, Progress, Seq};
use redrive_core::event::DeadReason;
use redrive_core::triage::{CauseId, JobId};
use rusqlite::{Connection, OptionalExtension, Row, params};

use super::columns::{Columns, change_columns};
use super::numbers::{bits, column, from_moment, nanos, signed, stream_of, to_duration, to_moment};
use super::rows::{Damage, EVENT_COLUMNS, EventRow, Stream, event_columns};
use super::stories::{read_story, write_story};
use crate::lease::TokenHash;

/// All columns of the table that are read.
macro_rules! held_columns {
    () => {
        concat!(event_columns!(), ", ", change_columns!())
    };
}
pub(super) use held_columns;

/// Where a held event is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stand {
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
    pub(super) const fn is_dead(self) -> bool {
        matches!(self, Self::DeadHolding | Self::DeadPassed)
    }

    /// Whether it may run some time.
    pub(super) const fn is_alive(self) -> bool {
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
pub(super) enum PutBack {
    /// An order, with the number of its line in the audit.
    Order(u64),
    /// A job.
    Job(JobId),
}

impl PutBack {
    pub(super) fn to_column(self) -> i64 {
        match self {
            Self::Order(line) => column(line),
            Self::Job(JobId(id)) => -column(id),
        }
    }

    pub(super) const fn from_column(column: i64) -> Self {
        if column < 0 { Self::Job(JobId(column.unsigned_abs())) } else { Self::Order(column.unsigned_abs()) }
    }
}

/// The last lease of an event, as long as it lives or is dead by the end of that lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Mark {
    pub(super) attempt: u32,
    pub(super) token: TokenHash,
    pub(super) from: Moment,
    pub(super) until: Moment,
}

/// A held event.
#[derive(Debug, Clone)]
pub(super) struct Held {
    pub(super) row: EventRow,
    pub(super) rev: u32,
    pub(super) stand: Stand,
    pub(super) progress: Progress,
    pub(super) reason: Option<DeadReason>,
    pub(super) died: Option<Moment>,
    pub(super) park_until: Option<Moment>,
    pub(super) park_count: Option<u32>,
    /// What it died of, also after it was put back.
    pub(super) cause: Option<CauseId>,
    /// The number of its death.
    pub(super) death: Option<u64>,
    pub(super) put_back: Option<PutBack>,
    /// How often it was put back.
    pub(super) redriven: u32,
    pub(super) lease: Option<Mark>,
}

impl Held {
    /// An event that has not run yet.
    pub(super) fn fresh(row: EventRow, stand: Stand) -> Self {
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
    pub(super) fn entry(self) -> Entry {
        let stream = stream_of(self.row.seq);
        Entry { rev: self.rev, progress: self.progress, ..self.row.entry(stream) }
    }

    pub(super) fn insert(&self, conn: &Connection) -> rusqlite::Result<()> {
        let mut insert = conn.prepare_cached(concat!(
            "INSERT INTO redrive_held (",
            event_columns!(),
            ", stream, flow, ",
            change_columns!(),
            ") VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?1 >> 40, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18, \
             ?19, ?20, ?21, ?22, ?23, ?24, ?25, ?26, ?27, ?28, ?29, ?30, ?31, ?32, ?33, ?34, ?35)"
        ))?;
        self.row.bind(&mut insert)?;
        self.columns().bind(&mut insert, self.row.seq)?;
        insert.raw_execute().map(drop)
    }

    /// Writes what changes.
    pub(super) fn update(&self, conn: &Connection) -> rusqlite::Result<()> {
        self.columns().update(conn, self.row.seq)
    }

    fn columns(&self) -> Columns {
        let progress = &self.progress;
        Columns {
            rev: i64::from(self.rev),
            state: self.stand as i64,
            due: from_moment(progress.due),
            attempts: i64::from(progress.attempts),
            mode: progress.mode,
            started: progress.started.map(from_moment),
            previous: column(nanos(progress.previous)),
            strikes: i64::from(progress.strikes),
            suspect: i64::from(progress.suspect),
            story: write_story(progress.story.as_deref()),
            reason: self.reason,
            died: self.died.map(from_moment),
            park_until: self.park_until.map(from_moment),
            park_count: self.park_count.map(i64::from),
            route: progress.route.as_deref().map(str::to_owned),
            out_of_order: i64::from(progress.out_of_order),
            cause: self.cause.map(|CauseId(cause)| signed(cause)),
            death: self.death.map(column),
            redrive: self.put_back.map(PutBack::to_column),
            redriven: i64::from(self.redriven),
            lease_attempt: self.lease.map(|lease| i64::from(lease.attempt)),
            lease_token: self.lease.map(|lease| lease.token),
            lease_until: self.lease.map(|lease| from_moment(lease.until)),
            lease_from: self.lease.map(|lease| from_moment(lease.from)),
        }
    }

    /// Reads a row of [`held_columns`].
    pub(super) fn read(row: &Row<'_>, stream: &Stream) -> Result<Self, Damage> {
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

    /// The held event with this seq, if there is one.
    pub(super) fn find(
        conn: &Connection,
        seq: Seq,
        stream: &Stream,
    ) -> rusqlite::Result<Option<Result<Self, Damage>>> {
        conn.prepare_cached(concat!("SELECT ", held_columns!(), " FROM redrive_held WHERE seq = ?1"))?
            .query_row(params![column(seq.0)], |row| Ok(Self::read(row, stream)))
            .optional()
    }
}

/// Takes an event out of those that are held.
pub(super) fn delete_held(conn: &Connection, seq: Seq) -> rusqlite::Result<usize> {
    conn.prepare_cached("DELETE FROM redrive_held WHERE seq = ?1")?.execute(params![column(seq.0)])
}
