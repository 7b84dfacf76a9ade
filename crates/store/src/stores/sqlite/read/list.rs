//! Listing events, a [page](crate::stores::shared::pages) at a time.

use std::sync::Arc;

use redrive_core::event::State;
use redrive_core::queue_entry::Seq;
use redrive_core::triage::CauseId;
use rusqlite::{Connection, params};

use super::find::kept;
use crate::event_status::{EventPage, EventQuery};
use crate::stores::shared::acts::discarded;
use crate::stores::shared::numbers::{bits, signed, stream_of};
use crate::stores::shared::pages::{Page, Part, Room, is_asked, is_meant_fresh, is_meant_tracked};
use crate::stores::shared::tracked::states;
use crate::stores::sqlite::events::dedupe::DedupeRecord;
use crate::stores::sqlite::events::fresh::{Damage, EventRow, Stream, event_columns};
use crate::stores::sqlite::events::stream_names::StreamNames;
use crate::stores::sqlite::events::tracked::{RowState, TrackedEvent, tracked_columns};
use crate::stores::sqlite::faults::{Step, damaged, damaged_row};
use crate::stores::sqlite::operate::letters::spans;
use crate::stores::sqlite::operate::rules::View;

/// A listing: its connection, and its query.
struct Looking<'a> {
    conn: &'a Connection,
    names: &'a mut StreamNames,
    query: &'a EventQuery,
    view: &'a View,
}

/// A page of events, in the open transaction.
pub(in crate::stores::sqlite) fn list(
    conn: &Connection,
    names: &mut StreamNames,
    query: &EventQuery,
    view: &View,
) -> Step<EventPage> {
    let Some(mut page) = Page::new(query) else { return Ok(EventPage::default()) };
    let mut looking = Looking { conn, names, query, view };
    for span in spans(conn, &query.filter)? {
        let Some(range) = page.rest(span) else { continue };
        if page.ends_before(span) {
            break;
        }
        let fresh = looking.fresh(range, &page.room)?;
        let tracked = looking.tracked(range, &page.room)?;
        if page.add(fresh, tracked) {
            break;
        }
    }
    Ok(page.end())
}

impl Looking<'_> {
    /// Events that may run and never ran.
    fn fresh(&mut self, (first, last): (i64, i64), room: &Room) -> Step<Part> {
        let mut part = Part::default();
        let is_meant = match self.query.state {
            None | Some(State::Ready) => true,
            Some(State::Quarantined) => !self.view.rules.controls.list.is_empty(),
            Some(_) => false,
        };
        if !is_meant {
            return Ok(part);
        }
        let conn = self.conn;
        let mut select = conn.prepare_cached(concat!(
            "SELECT ",
            event_columns!(),
            " FROM redrive_fresh WHERE seq BETWEEN ?1 AND ?2 ORDER BY seq"
        ))?;
        let mut rows = select.query([first, last])?;
        while let Some(row) = rows.next()? {
            let seq = row.get(0)?;
            let stream = self.stream(seq)?;
            match EventRow::read(row, &stream) {
                Ok(read) => {
                    let known = self.view.ready(&read, &stream);
                    if self.query.state.is_none_or(|state| state == known.state)
                        && is_meant_fresh(self.query, &read)
                    {
                        part.push(read.event, known);
                    }
                }
                Err(Damage) => part.damaged.push(damaged_row("redrive_fresh", seq)),
            }
            if part.is_enough(seq, room) {
                break;
            }
        }
        Ok(part)
    }

    /// All others.
    fn tracked(&mut self, (first, last): (i64, i64), room: &Room) -> Step<Part> {
        let mut part = Part::default();
        let conn = self.conn;
        let mut select = conn.prepare_cached(select(self.query))?;
        let cause = self.query.filter.cause.filter(|_| self.query.state == Some(State::Dead));
        let mut rows = match cause {
            Some(CauseId(cause)) => select.query(params![first, last, signed(cause)])?,
            None => select.query([first, last])?,
        };
        while let Some(row) = rows.next()? {
            let seq = row.get(0)?;
            let stream = self.stream(seq)?;
            let tracked = match is_meant_tracked(self.query, row, &stream) {
                Ok(true) => TrackedEvent::read(row, &stream).map(Some),
                Ok(false) => Ok(None),
                Err(Damage) => Err(Damage),
            };
            match tracked {
                Ok(Some(tracked)) => {
                    let mut known = kept(conn, &tracked, &stream, self.view)?;
                    if is_asked(self.query, &tracked, known.state) {
                        if tracked.state == RowState::Discarded
                            && let Ok(Some(dedupe)) =
                                DedupeRecord::find(conn, stream.id, &tracked.row.event.id)
                        {
                            known = discarded(known, &dedupe);
                        }
                        part.push(tracked.row.event, known);
                    }
                }
                Ok(None) => {}
                Err(Damage) => part.damaged.push(damaged_row("redrive_tracked", seq)),
            }
            if part.is_enough(seq, room) {
                break;
            }
        }
        Ok(part)
    }

    fn stream(&mut self, seq: i64) -> Step<Arc<Stream>> {
        let id = stream_of(Seq(bits(seq)));
        let stream = self.names.of(self.conn, id)?;
        Ok(stream.ok_or_else(|| damaged("redrive_stream", id.0))?)
    }
}

/// Which rows to read.
const fn select(query: &EventQuery) -> &'static str {
    let is_of_cause = query.filter.cause.is_some();
    match query.state {
        Some(State::Dead) if is_of_cause => concat!(
            "SELECT ",
            tracked_columns!(),
            " FROM redrive_tracked INDEXED BY redrive_tracked_cause \
             WHERE state IN (",
            states!(DeadHolding, DeadPassed),
            ") AND cause = ?3 AND seq BETWEEN ?1 AND ?2 ORDER BY seq"
        ),
        Some(State::Dead) => concat!(
            "SELECT ",
            tracked_columns!(),
            " FROM redrive_tracked INDEXED BY redrive_tracked_dead \
             WHERE state IN (",
            states!(DeadHolding, DeadPassed),
            ") AND seq BETWEEN ?1 AND ?2 ORDER BY seq"
        ),
        Some(State::Discarded) => concat!(
            "SELECT ",
            tracked_columns!(),
            " FROM redrive_tracked INDEXED BY redrive_tracked_gone \
             WHERE state = ",
            states!(Discarded),
            " AND seq BETWEEN ?1 AND ?2 ORDER BY seq"
        ),
        // As many as workers hold, so sorting them is cheap.
        Some(State::Running) => concat!(
            "SELECT ",
            tracked_columns!(),
            " FROM redrive_tracked INDEXED BY redrive_tracked_lease \
             WHERE state = ",
            states!(Leased),
            " AND seq BETWEEN ?1 AND ?2 ORDER BY seq"
        ),
        _ => {
            concat!(
                "SELECT ",
                tracked_columns!(),
                " FROM redrive_tracked WHERE seq BETWEEN ?1 AND ?2 ORDER BY seq"
            )
        }
    }
}
