//! Groups: dead letters that have something in common, counted by stream and cause.
//!
//! The counts are kept with every death and every end of one, so that looking at a million letters reads a row for
//! each cause and not for each letter. What is not counted so is in [`sampled`].

use redrive_core::entry::StreamId;
use redrive_core::triage::CauseId;
use rusqlite::{Connection, OptionalExtension, params};

use super::faults::{Step, damaged};
use super::names::Names;
use super::numbers::{bits, column, from_moment, signed};
use super::rows::Damage;
use crate::operate::{Group, GroupBy, GroupQuery};
use crate::stores::shared::group::Groups;
pub(super) use crate::stores::shared::group::{CAUSES_MAX, OTHER_TITLE, Tally};

mod sampled;

impl Tally {
    /// The row of a stream and a cause.
    pub(super) fn read(
        conn: &Connection,
        stream: StreamId,
        CauseId(cause): CauseId,
    ) -> rusqlite::Result<Option<Self>> {
        conn.prepare_cached(
            "SELECT title, letters, holding, first, last, redrive, redriven_at, redriven_letters, redriven_failed \
             FROM redrive_group WHERE stream = ?1 AND cause = ?2",
        )?
        .query_row(params![stream.0, signed(cause)], |row| Ok(Self::from_row(row, 0).ok()))
        .optional()
        .map(Option::flatten)
    }

    pub(super) fn write(
        &self,
        conn: &Connection,
        stream: StreamId,
        CauseId(cause): CauseId,
    ) -> rusqlite::Result<()> {
        let by = self.redriven.map(|(by, _)| by.to_column());
        let redriven = self.redriven.map(|(_, redriven)| redriven);
        let (letters, failed) = redriven.map_or((0, 0), |redriven| (redriven.letters, redriven.failed));
        conn.prepare_cached(
            "INSERT INTO redrive_group VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11) ON CONFLICT DO UPDATE \
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

/// Dead letters, put together, in the transaction that is open.
pub(super) fn groups(conn: &Connection, names: &mut Names, query: &GroupQuery) -> Step<Vec<Group>> {
    if let GroupBy::Type | GroupBy::Key = query.by {
        return sampled::groups(conn, names, query);
    }
    let mut groups = Groups::default();
    let mut select = conn.prepare_cached(
        "SELECT stream, cause, title, letters, holding, first, last, redrive, redriven_at, redriven_letters, \
         redriven_failed FROM redrive_group WHERE letters > 0",
    )?;
    let mut rows = select.query([])?;
    while let Some(row) = rows.next()? {
        let Some(stream) = names.of(conn, StreamId(row.get(0)?))? else { continue };
        let tally = Tally::from_row(row, 2).map_err(|Damage| damaged("redrive_group", stream.id.0))?;
        groups.add(query, &stream, CauseId(bits(row.get(1)?)), &tally);
    }
    Ok(groups.end(query))
}
