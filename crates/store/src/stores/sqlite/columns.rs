//! The columns of an event that change, as SQLite is given them.

use redrive_core::entry::Seq;
use redrive_core::event::{DeadReason, Mode};
use rusqlite::{CachedStatement, Connection};

use super::numbers::column;
pub(super) use crate::stores::shared::columns::{Columns, change_columns, put_back};

impl Columns {
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
}
