//! The columns of an event that change, as they are in the table.
//!
//! They have a checksum of their own, written anew with every change. A story stays the text that it is: whoever
//! changes thousands of rows need not understand what is in each.

use redrive_core::Moment;
use redrive_core::entry::Seq;
use redrive_core::event::{DeadReason, Mode};
use redrive_core::triage::Redrive;

use super::cells::{Cells, Damage};
use super::held::{PutBack, Stand};
use super::numbers::{column, from_moment};
use super::rows::Sum;
use crate::lease::TokenHash;

/// The columns, in order.
macro_rules! change_columns {
    () => {
        "rev, state, due, attempts, mode, started, previous, strikes, suspect, story, reason, died, park_until, \
         park_count, route, out_of_order, cause, death, redrive, redriven, lease_attempt, lease_token, lease_until, \
         lease_from, progress_crc"
    };
}
pub(in crate::stores) use change_columns;

/// What changes of an event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::stores) struct Columns {
    pub(in crate::stores) rev: i64,
    pub(in crate::stores) state: i64,
    pub(in crate::stores) due: i64,
    pub(in crate::stores) attempts: i64,
    pub(in crate::stores) mode: Mode,
    pub(in crate::stores) started: Option<i64>,
    pub(in crate::stores) previous: i64,
    pub(in crate::stores) strikes: i64,
    pub(in crate::stores) suspect: i64,
    pub(in crate::stores) story: Option<String>,
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
            strikes: number(7)?,
            suspect: number(8)?,
            story: text(9)?,
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
            .number(self.strikes)
            .number(self.suspect)
            .maybe(self.story.as_deref().map(str::as_bytes))
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

/// What becomes of the columns of a letter that keeps no order and goes its own way.
pub(in crate::stores) fn put_back(columns: &mut Columns, redrive: &Redrive, by: PutBack, at: Moment) {
    columns.rev += 1;
    columns.state = Stand::Waits as i64;
    columns.due = from_moment(at);
    columns.mode = Mode::Redrive;
    if !redrive.keep_attempts {
        columns.attempts = 0;
    }
    (columns.started, columns.previous, columns.strikes, columns.suspect) = (None, 0, 0, 0);
    (columns.reason, columns.died, columns.death) = (None, None, None);
    (columns.park_until, columns.park_count) = (None, None);
    (columns.lease_attempt, columns.lease_token) = (None, None);
    (columns.lease_until, columns.lease_from) = (None, None);
    (columns.route, columns.out_of_order) = (None, 0);
    (columns.redrive, columns.redriven) = (Some(by.to_column()), columns.redriven + 1);
}
