//! Events that wait, are blocked or are dead: rows that change.
//!
//! What changes has a checksum of its own, written anew with every change; the checksum of what never changes
//! stays as it was at publish.

use std::sync::Arc;

use redrive_core::Moment;
use redrive_core::entry::{Entry, Progress, Seq};
use redrive_core::event::{DeadReason, Mode, Story};
use rusqlite::{Connection, OptionalExtension, Row, params};

use super::numbers::{column, from_moment, nanos, stream_of, to_duration, to_moment};
use super::rows::{Damage, EVENT_COLUMNS, EventRow, Stream, Sum, event_columns};

/// All columns of the table that are read.
macro_rules! held_columns {
    () => {
        concat!(
            event_columns!(),
            ", rev, state, due, attempts, mode, started, previous, strikes, suspect, story, reason, died, \
             park_until, park_count, progress_crc"
        )
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
}

impl Stand {
    pub(super) const fn is_dead(self) -> bool {
        matches!(self, Self::DeadHolding | Self::DeadPassed)
    }

    const fn from_column(column: i64) -> Result<Self, Damage> {
        match column {
            0 => Ok(Self::Waits),
            1 => Ok(Self::Blocked),
            2 => Ok(Self::DeadHolding),
            3 => Ok(Self::DeadPassed),
            _ => Err(Damage),
        }
    }
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
}

impl Held {
    /// An event that has not run yet.
    pub(super) fn fresh(row: EventRow, stand: Stand) -> Self {
        let progress = Progress::fresh(row.event.when.moment(row.published));
        Self { row, rev: 0, stand, progress, reason: None, died: None, park_until: None, park_count: None }
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
            ", stream, flow, rev, state, due, attempts, mode, started, previous, strikes, suspect, story, reason, \
             died, park_until, park_count, progress_crc) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?1 >> 40, ?10, ?11, \
             ?12, ?13, ?14, ?15, ?16, ?17, ?18, ?19, ?20, ?21, ?22, ?23, ?24, ?25)"
        ))?;
        self.row.bind(&mut insert)?;
        self.bind(&mut insert)?;
        insert.raw_execute().map(drop)
    }

    /// Writes what changes.
    pub(super) fn update(&self, conn: &Connection) -> rusqlite::Result<()> {
        let mut update = conn.prepare_cached(
            "UPDATE redrive_held SET flow = ?10, rev = ?11, state = ?12, due = ?13, attempts = ?14, mode = ?15, \
             started = ?16, previous = ?17, strikes = ?18, suspect = ?19, story = ?20, reason = ?21, \
             died = ?22, park_until = ?23, park_count = ?24, progress_crc = ?25 WHERE seq = ?1",
        )?;
        update.raw_bind_parameter(1, column(self.row.seq.0))?;
        self.bind(&mut update)?;
        update.raw_execute().map(drop)
    }

    fn bind(&self, to: &mut rusqlite::CachedStatement<'_>) -> rusqlite::Result<()> {
        let progress = &self.progress;
        let columns = Columns {
            rev: i64::from(self.rev),
            state: self.stand as i64,
            due: from_moment(progress.due),
            attempts: i64::from(progress.attempts),
            mode: progress.mode.as_str(),
            started: progress.started.map(from_moment),
            previous: column(nanos(progress.previous)),
            strikes: i64::from(progress.strikes),
            suspect: i64::from(progress.suspect),
            story: write_story(progress.story.as_deref()),
            reason: self.reason.map(DeadReason::as_str),
            died: self.died.map(from_moment),
            park_until: self.park_until.map(from_moment),
            park_count: self.park_count.map(i64::from),
        };
        to.raw_bind_parameter(10, i64::from(progress.attempts > 0 || progress.mode != Mode::Live))?;
        to.raw_bind_parameter(11, columns.rev)?;
        to.raw_bind_parameter(12, columns.state)?;
        to.raw_bind_parameter(13, columns.due)?;
        to.raw_bind_parameter(14, columns.attempts)?;
        to.raw_bind_parameter(15, columns.mode)?;
        to.raw_bind_parameter(16, columns.started)?;
        to.raw_bind_parameter(17, columns.previous)?;
        to.raw_bind_parameter(18, columns.strikes)?;
        to.raw_bind_parameter(19, columns.suspect)?;
        to.raw_bind_parameter(20, columns.story.as_deref())?;
        to.raw_bind_parameter(21, columns.reason)?;
        to.raw_bind_parameter(22, columns.died)?;
        to.raw_bind_parameter(23, columns.park_until)?;
        to.raw_bind_parameter(24, columns.park_count)?;
        to.raw_bind_parameter(25, columns.sum(column(self.row.seq.0)))
    }

    /// Reads a row of [`held_columns`].
    pub(super) fn read(row: &Row<'_>, stream: &Stream) -> Result<Self, Damage> {
        let event = EventRow::read(row, stream)?;
        let at = |n: usize| EVENT_COLUMNS + n;
        let number = |n: usize| row.get::<_, i64>(at(n)).map_err(|_| Damage);
        let maybe = |n: usize| row.get::<_, Option<i64>>(at(n)).map_err(|_| Damage);
        let text = |n: usize| row.get::<_, Option<String>>(at(n)).map_err(|_| Damage);
        let (mode, reason) = (text(4)?.ok_or(Damage)?, text(10)?);
        let columns = Columns {
            rev: number(0)?,
            state: number(1)?,
            due: number(2)?,
            attempts: number(3)?,
            mode: &mode,
            started: maybe(5)?,
            previous: number(6)?,
            strikes: number(7)?,
            suspect: number(8)?,
            story: text(9)?,
            reason: reason.as_deref(),
            died: maybe(11)?,
            park_until: maybe(12)?,
            park_count: maybe(13)?,
        };
        if columns.sum(column(event.seq.0)) != number(14)? {
            return Err(Damage);
        }
        let small = |number: i64| u32::try_from(number).map_err(|_| Damage);
        let progress = Progress {
            due: to_moment(columns.due),
            attempts: small(columns.attempts)?,
            mode: Mode::from_word(&mode).ok_or(Damage)?,
            started: columns.started.map(to_moment),
            previous: to_duration(columns.previous),
            strikes: u8::try_from(columns.strikes).map_err(|_| Damage)?,
            suspect: columns.suspect != 0,
            story: read_story(columns.story.as_deref())?,
            route: None,
            out_of_order: false,
        };
        Ok(Self {
            row: event,
            rev: small(columns.rev)?,
            stand: Stand::from_column(columns.state)?,
            progress,
            reason: reason.as_deref().map(|word| DeadReason::from_word(word).ok_or(Damage)).transpose()?,
            died: columns.died.map(to_moment),
            park_until: columns.park_until.map(to_moment),
            park_count: columns.park_count.map(small).transpose()?,
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

/// A story as it is stored.
pub(super) fn write_story(story: Option<&Story>) -> Option<String> {
    // Words and numbers: this does not fail.
    story.and_then(|story| serde_json::to_string(story).ok())
}

/// A story as it was stored.
pub(super) fn read_story(text: Option<&str>) -> Result<Option<Arc<Story>>, Damage> {
    text.map(|text| serde_json::from_str(text).map(Arc::new).map_err(|_| Damage)).transpose()
}

struct Columns<'a> {
    rev: i64,
    state: i64,
    due: i64,
    attempts: i64,
    mode: &'a str,
    started: Option<i64>,
    previous: i64,
    strikes: i64,
    suspect: i64,
    story: Option<String>,
    reason: Option<&'a str>,
    died: Option<i64>,
    park_until: Option<i64>,
    park_count: Option<i64>,
}

impl Columns<'_> {
    fn sum(&self, seq: i64) -> i64 {
        Sum::new()
            .number(seq)
            .number(self.rev)
            .number(self.state)
            .number(self.due)
            .number(self.attempts)
            .text(self.mode)
            .maybe_number(self.started)
            .number(self.previous)
            .number(self.strikes)
            .number(self.suspect)
            .maybe(self.story.as_deref().map(str::as_bytes))
            .maybe(self.reason.map(str::as_bytes))
            .maybe_number(self.died)
            .maybe_number(self.park_until)
            .maybe_number(self.park_count)
            .end()
    }
}
