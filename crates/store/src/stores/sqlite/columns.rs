//! The columns of an event that change, as they are in the table.
//!
//! They have a checksum of their own, written anew with every change. A story stays the text that it is: whoever
//! changes thousands of rows need not understand what is in each.

use redrive_core::entry::Seq;
use redrive_core::event::{DeadReason, Mode};
use rusqlite::{CachedStatement, Connection, Row};

use super::numbers::column;
use super::rows::{Damage, Sum};
use crate::lease::TokenHash;

/// The columns, in order.
macro_rules! change_columns {
    () => {
        "rev, state, due, attempts, mode, started, previous, strikes, suspect, story, reason, died, park_until, \
         park_count, route, out_of_order, cause, death, redrive, redriven, lease_attempt, lease_token, lease_until, \
         lease_from, progress_crc"
    };
}
pub(super) use change_columns;

/// What changes of an event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Columns {
    pub(super) rev: i64,
    pub(super) state: i64,
    pub(super) due: i64,
    pub(super) attempts: i64,
    pub(super) mode: Mode,
    pub(super) started: Option<i64>,
    pub(super) previous: i64,
    pub(super) strikes: i64,
    pub(super) suspect: i64,
    pub(super) story: Option<String>,
    pub(super) reason: Option<DeadReason>,
    pub(super) died: Option<i64>,
    pub(super) park_until: Option<i64>,
    pub(super) park_count: Option<i64>,
    pub(super) route: Option<String>,
    pub(super) out_of_order: i64,
    pub(super) cause: Option<i64>,
    pub(super) death: Option<i64>,
    pub(super) redrive: Option<i64>,
    pub(super) redriven: i64,
    pub(super) lease_attempt: Option<i64>,
    pub(super) lease_token: Option<TokenHash>,
    pub(super) lease_until: Option<i64>,
    pub(super) lease_from: Option<i64>,
}

impl Columns {
    /// Reads the columns of a row, the first of them at `from`.
    pub(super) fn read(row: &Row<'_>, from: usize, seq: Seq) -> Result<Self, Damage> {
        let number = |n: usize| row.get::<_, i64>(from + n).map_err(|_| Damage);
        let maybe = |n: usize| row.get::<_, Option<i64>>(from + n).map_err(|_| Damage);
        let text = |n: usize| row.get::<_, Option<String>>(from + n).map_err(|_| Damage);
        let word = |n: usize| {
            let word = row.get_ref(from + n).map_err(|_| Damage)?;
            word.as_str_or_null().map_err(|_| Damage)
        };
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
            lease_token: row.get(from + 21).map_err(|_| Damage)?,
            lease_until: maybe(22)?,
            lease_from: maybe(23)?,
        };
        if columns.sum(seq) == number(24)? { Ok(columns) } else { Err(Damage) }
    }

    /// Writes them all.
    pub(super) fn update(&self, conn: &Connection, seq: Seq) -> rusqlite::Result<()> {
        let mut update = conn.prepare_cached(
            "UPDATE redrive_held SET flow = ?10, rev = ?11, state = ?12, due = ?13, attempts = ?14, mode = ?15, \
             started = ?16, previous = ?17, strikes = ?18, suspect = ?19, story = ?20, reason = ?21, died = ?22, \
             park_until = ?23, park_count = ?24, route = ?25, out_of_order = ?26, cause = ?27, death = ?28, \
             redrive = ?29, redriven = ?30, lease_attempt = ?31, lease_token = ?32, lease_until = ?33, \
             lease_from = ?34, progress_crc = ?35 WHERE seq = ?1",
        )?;
        update.raw_bind_parameter(1, column(seq.0))?;
        self.bind(&mut update, seq)?;
        update.raw_execute().map(drop)
    }

    /// Binds them, from the tenth parameter of a statement on.
    pub(super) fn bind(&self, to: &mut CachedStatement<'_>, seq: Seq) -> rusqlite::Result<()> {
        to.raw_bind_parameter(10, i64::from(self.attempts > 0 || self.mode != Mode::Live))?;
        to.raw_bind_parameter(11, self.rev)?;
        to.raw_bind_parameter(12, self.state)?;
        to.raw_bind_parameter(13, self.due)?;
        to.raw_bind_parameter(14, self.attempts)?;
        to.raw_bind_parameter(15, self.mode.as_str())?;
        to.raw_bind_parameter(16, self.started)?;
        to.raw_bind_parameter(17, self.previous)?;
        to.raw_bind_parameter(18, self.strikes)?;
        to.raw_bind_parameter(19, self.suspect)?;
        to.raw_bind_parameter(20, self.story.as_deref())?;
        to.raw_bind_parameter(21, self.reason.map(DeadReason::as_str))?;
        to.raw_bind_parameter(22, self.died)?;
        to.raw_bind_parameter(23, self.park_until)?;
        to.raw_bind_parameter(24, self.park_count)?;
        to.raw_bind_parameter(25, self.route.as_deref())?;
        to.raw_bind_parameter(26, self.out_of_order)?;
        to.raw_bind_parameter(27, self.cause)?;
        to.raw_bind_parameter(28, self.death)?;
        to.raw_bind_parameter(29, self.redrive)?;
        to.raw_bind_parameter(30, self.redriven)?;
        to.raw_bind_parameter(31, self.lease_attempt)?;
        to.raw_bind_parameter(32, self.lease_token)?;
        to.raw_bind_parameter(33, self.lease_until)?;
        to.raw_bind_parameter(34, self.lease_from)?;
        to.raw_bind_parameter(35, self.sum(seq))
    }

    /// Their checksum.
    pub(super) fn sum(&self, seq: Seq) -> i64 {
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
