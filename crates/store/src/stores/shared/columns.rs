//! The changing columns of an event, as they are in the table.
//!
//! They have a checksum of their own, which every change rewrites. An attempt history stays text: a change to
//! thousands of rows need not parse it.

use redrive_core::Moment;
use redrive_core::event::{DeadReason, Mode};
use redrive_core::queue_entry::Seq;
use redrive_core::triage::RedriveOptions;

use super::cells::{Cells, Damage};
use super::numbers::{column, from_moment};
use super::params::Param;
use super::rows::Sum;
use super::tracked::{RedrivenBy, RowState};
use crate::lease::TokenHash;

/// The columns, in order.
macro_rules! change_columns {
    () => {
        "rev, state, due, attempts, mode, started, previous, crash_count, suspect, history, reason, died, park_until, \
         park_count, route, out_of_order, cause, death, redrive, redriven, lease_attempt, lease_token, lease_until, \
         lease_from, progress_crc"
    };
}
pub(in crate::stores) use change_columns;

/// The columns that a change writes: `flow` follows from the others, and is never read.
macro_rules! written_columns {
    () => {
        concat!("flow, ", $crate::stores::shared::columns::change_columns!())
    };
}
pub(in crate::stores) use written_columns;

/// How many [`written_columns`] there are.
const WRITTEN_COLUMNS: usize = 26;

/// The changing columns of an event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::stores) struct Columns {
    pub(in crate::stores) rev: i64,
    pub(in crate::stores) state: i64,
    pub(in crate::stores) due: i64,
    pub(in crate::stores) attempts: i64,
    pub(in crate::stores) mode: Mode,
    pub(in crate::stores) started: Option<i64>,
    pub(in crate::stores) previous: i64,
    pub(in crate::stores) crash_count: i64,
    pub(in crate::stores) suspect: i64,
    pub(in crate::stores) history: Option<String>,
    pub(in crate::stores) reason: Option<DeadReason>,
    pub(in crate::stores) died: Option<i64>,
    pub(in crate::stores) park_until: Option<i64>,
    pub(in crate::stores) park_count: Option<i64>,
    pub(in crate::stores) route: Option<String>,
    pub(in crate::stores) out_of_order: i64,
    pub(in crate::stores) cause: Option<i64>,
    pub(in crate::stores) death: Option<i64>,
    pub(in crate::stores) redrive: Option<i64>,
    pub(in crate::stores) redriven: i64,
    pub(in crate::stores) lease_attempt: Option<i64>,
    pub(in crate::stores) lease_token: Option<TokenHash>,
    pub(in crate::stores) lease_until: Option<i64>,
    pub(in crate::stores) lease_from: Option<i64>,
}

impl Columns {
    /// Reads the columns of a row, the first of them at `from`.
    pub(in crate::stores) fn read(row: &impl Cells, from: usize, seq: Seq) -> Result<Self, Damage> {
        let number = |n: usize| row.number(from + n);
        let maybe = |n: usize| row.maybe_number(from + n);
        let text = |n: usize| row.maybe_text(from + n);
        let word = |n: usize| row.word(from + n);
        let columns = Self {
            rev: number(0)?,
            state: number(1)?,
            due: number(2)?,
            attempts: number(3)?,
            mode: word(4)?.and_then(Mode::from_word).ok_or(Damage)?,
            started: maybe(5)?,
            previous: number(6)?,
            crash_count: number(7)?,
            suspect: number(8)?,
            history: text(9)?,
            reason: word(10)?.map(|word| DeadReason::from_word(word).ok_or(Damage)).transpose()?,
            died: maybe(11)?,
            park_until: maybe(12)?,
            park_count: maybe(13)?,
            route: text(14)?,
            out_of_order: number(15)?,
            cause: maybe(16)?,
            death: maybe(17)?,
            redrive: maybe(18)?,
            redriven: number(19)?,
            lease_attempt: maybe(20)?,
            lease_token: row.maybe_hash(from + 21)?,
            lease_until: maybe(22)?,
            lease_from: maybe(23)?,
        };
        if columns.sum(seq) == number(24)? { Ok(columns) } else { Err(Damage) }
    }

    /// The values of [`written_columns`].
    pub(in crate::stores) fn params(&self, seq: Seq) -> [Param<'_>; WRITTEN_COLUMNS] {
        [
            i64::from(self.attempts > 0 || self.mode != Mode::Live).into(),
            self.rev.into(),
            self.state.into(),
            self.due.into(),
            self.attempts.into(),
            self.mode.as_str().into(),
            self.started.into(),
            self.previous.into(),
            self.crash_count.into(),
            self.suspect.into(),
            self.history.as_deref().into(),
            self.reason.map(DeadReason::as_str).into(),
            self.died.into(),
            self.park_until.into(),
            self.park_count.into(),
            self.route.as_deref().into(),
            self.out_of_order.into(),
            self.cause.into(),
            self.death.into(),
            self.redrive.into(),
            self.redriven.into(),
            self.lease_attempt.into(),
            self.lease_token.as_ref().map(<[u8; 16]>::as_slice).into(),
            self.lease_until.into(),
            self.lease_from.into(),
            self.sum(seq).into(),
        ]
    }

    /// Their checksum.
    pub(in crate::stores) fn sum(&self, seq: Seq) -> i64 {
        Sum::new()
            .number(column(seq.0))
            .number(self.rev)
            .number(self.state)
            .number(self.due)
            .number(self.attempts)
            .text(self.mode.as_str())
            .maybe_number(self.started)
            .number(self.previous)
            .number(self.crash_count)
            .number(self.suspect)
            .maybe(self.history.as_deref().map(str::as_bytes))
            .maybe(self.reason.map(|reason| reason.as_str().as_bytes()))
            .maybe_number(self.died)
            .maybe_number(self.park_until)
            .maybe_number(self.park_count)
            .maybe(self.route.as_deref().map(str::as_bytes))
            .number(self.out_of_order)
            .maybe_number(self.cause)
            .maybe_number(self.death)
            .maybe_number(self.redrive)
            .number(self.redriven)
            .maybe_number(self.lease_attempt)
            .maybe(self.lease_token.as_ref().map(<[u8; 16]>::as_slice))
            .maybe_number(self.lease_until)
            .maybe_number(self.lease_from)
            .end()
    }
}

impl Columns {
    /// The columns of a discarded event.
    pub(in crate::stores) fn discard(&mut self) {
        self.rev += 1;
        self.state = RowState::Discarded as i64;
        self.death = None;
        (self.lease_attempt, self.lease_token) = (None, None);
        (self.lease_until, self.lease_from) = (None, None);
    }
}

/// The columns of a redriven dead letter that keeps no order.
pub(in crate::stores) fn redrive_columns(
    columns: &mut Columns,
    redrive: &RedriveOptions,
    by: RedrivenBy,
    at: Moment,
) {
    columns.rev += 1;
    columns.state = RowState::Waiting as i64;
    columns.due = from_moment(at);
    columns.mode = Mode::Redrive;
    if !redrive.keep_attempts {
        columns.attempts = 0;
    }
    (columns.started, columns.previous, columns.crash_count, columns.suspect) = (None, 0, 0, 0);
    (columns.reason, columns.died, columns.death) = (None, None, None);
    (columns.park_until, columns.park_count) = (None, None);
    (columns.lease_attempt, columns.lease_token) = (None, None);
    (columns.lease_until, columns.lease_from) = (None, None);
    (columns.route, columns.out_of_order) = (None, 0);
    (columns.redrive, columns.redriven) = (Some(by.to_column()), columns.redriven + 1);
}
