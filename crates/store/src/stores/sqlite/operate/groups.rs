//! Groups: dead letters with a common property, counted by stream and cause.
//!
//! The counts change with every death and every redrive, so a query over a million dead letters reads one row per
//! cause and not per dead letter. [`sampled`] has the groups without counts.

use redrive_core::queue_entry::StreamId;
use redrive_core::triage::CauseId;
use rusqlite::{Connection, OptionalExtension, params};

use crate::operate::{Group, GroupBy, GroupQuery};
use crate::stores::shared::group::Groups;
pub(in crate::stores::sqlite) use crate::stores::shared::group::{
    CAUSES_MAX, OTHER_TITLE, RedriveOutcome, Tally,
};
use crate::stores::shared::numbers::{bits, column, from_moment, signed};
use crate::stores::sqlite::events::fresh::Damage;
use crate::stores::sqlite::events::stream_names::StreamNames;
use crate::stores::sqlite::faults::{Step, damaged};

mod sampled;

impl Tally {
    /// The row of a stream and a cause.
    pub(in crate::stores::sqlite) fn read(
        conn: &Connection,
        stream: StreamId,
        CauseId(cause): CauseId,
    ) -> rusqlite::Result<Option<Self>> {
        conn.prepare_cached(
            "SELECT title, letters, holding, first, last, redrive, redriven_at, redriven_letters, redriven_failed \
             FROM redrive_tally WHERE stream = ?1 AND cause = ?2",
        )?
        .query_row(params![stream.0, signed(cause)], |row| Ok(Self::from_row(row, 0).ok()))
        .optional()
        .map(Option::flatten)
    }

    pub(in crate::stores::sqlite) fn write(
        &self,
        conn: &Connection,
        stream: StreamId,
        CauseId(cause): CauseId,
    ) -> rusqlite::Result<()> {
        let by = self.redriven.map(|(by, _)| by.to_column());
        let redriven = self.redriven.map(|(_, redriven)| redriven);
        let (letters, failed) = redriven.map_or((0, 0), |redriven| (redriven.letters, redriven.failed));
        conn.prepare_cached(
            "INSERT INTO redrive_tally VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11) ON CONFLICT DO UPDATE \
             SET letters = ?4, holding = ?5, first = ?6, last = ?7, redrive = ?8, redriven_at = ?9, \
             redriven_letters = ?10, redriven_failed = ?11",
        )?
        .execute(params![
            stream.0,
            signed(cause),
            self.title,
            column(self.letters),
            column(self.holding),
            from_moment(self.first),
            from_moment(self.last),
            by,
            redriven.map_or(0, |redriven| from_moment(redriven.at)),
            column(letters),
            column(failed),
        ])
        .map(drop)
    }
}

/// Dead letters in groups, in the open transaction.
pub(in crate::stores::sqlite) fn groups(
    conn: &Connection,
    names: &mut StreamNames,
    query: &GroupQuery,
) -> Step<Vec<Group>> {
    if let GroupBy::Type | GroupBy::Key = query.by {
        return sampled::groups(conn, names, query);
    }
    let mut groups = Groups::default();
    let mut select = conn.prepare_cached(
        "SELECT stream, cause, title, letters, holding, first, last, redrive, redriven_at, redriven_letters, \
         redriven_failed FROM redrive_tally WHERE letters > 0",
    )?;
    let mut rows = select.query([])?;
    while let Some(row) = rows.next()? {
        let Some(stream) = names.of(conn, StreamId(row.get(0)?))? else { continue };
        let tally = Tally::from_row(row, 2).map_err(|Damage| damaged("redrive_tally", stream.id.0))?;
        groups.add(query, &stream, CauseId(bits(row.get(1)?)), &tally);
    }
    Ok(groups.end(query))
}
