//! Listing what there is, a [page](crate::stores::shared::pages) at a time.

use std::sync::Arc;

use redrive_core::entry::Seq;
use redrive_core::event::State;
use redrive_core::triage::CauseId;
use rusqlite::{Connection, params};

use super::faults::{Step, damaged, damaged_row};
use super::find::kept;
use super::held::{Held, Stand, held_columns};
use super::letters::spans;
use super::names::Names;
use super::numbers::{bits, signed, stream_of};
use super::receipt::Receipt;
use super::rows::{Damage, EventRow, Stream, event_columns};
use super::rules::View;
use crate::found::{Listed, Query};
use crate::stores::shared::acts::discarded;
use crate::stores::shared::pages::{Page, Part, Room, is_asked, is_meant_held, is_meant_live};

/// Who looks, and for what.
struct Looking<'a> {
    conn: &'a Connection,
    names: &'a mut Names,
    query: &'a Query,
    view: &'a View,
}

/// A page of events, in the transaction that is open.
pub(super) fn list(conn: &Connection, names: &mut Names, query: &Query, view: &View) -> Step<Listed> {
    let Some(mut page) = Page::new(query) else { return Ok(Listed::default()) };
    let mut looking = Looking { conn, names, query, view };
    for span in spans(conn, &query.filter)? {
        let Some(range) = page.rest(span) else { continue };
        if page.ends_before(span) {
            break;
        }
        let live = looking.live(range, &page.room)?;
        let held = looking.held(range, &page.room)?;
        if page.add(live, held) {
            break;
        }
    }
    Ok(page.end())
}

impl Looking<'_> {
    /// Events that may run and never ran.
    fn live(&mut self, (first, last): (i64, i64), room: &Room) -> Step<Part> {
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
            " FROM redrive_live WHERE seq BETWEEN ?1 AND ?2 ORDER BY seq"
        ))?;
        let mut rows = select.query([first, last])?;
        while let Some(row) = rows.next()? {
            let seq = row.get(0)?;
            let stream = self.stream(seq)?;
            match EventRow::read(row, &stream) {
                Ok(read) => {
                    let known = self.view.ready(&read, &stream);
                    if self.query.state.is_none_or(|state| state == known.state)
                        && is_meant_live(self.query, &read)
                    {
                        part.push(read.event, known);
                    }
                }
                Err(Damage) => part.damaged.push(damaged_row("redrive_live", seq)),
            }
            if part.is_enough(seq, room) {
                break;
            }
        }
        Ok(part)
    }

    /// All others.
    fn held(&mut self, (first, last): (i64, i64), room: &Room) -> Step<Part> {
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
            let held = match is_meant_held(self.query, row, &stream) {
                Ok(true) => Held::read(row, &stream).map(Some),
                Ok(false) => Ok(None),
                Err(Damage) => Err(Damage),
            };
            match held {
                Ok(Some(held)) => {
                    let mut known = kept(conn, &held, &stream, self.view)?;
                    if is_asked(self.query, &held, known.state) {
                        if held.stand == Stand::Discarded
                            && let Ok(Some(receipt)) = Receipt::find(conn, stream.id, &held.row.event.id)
                        {
                            known = discarded(known, &receipt);
                        }
                        part.push(held.row.event, known);
                    }
                }
                Ok(None) => {}
                Err(Damage) => part.damaged.push(damaged_row("redrive_held", seq)),
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

/// Where to look.
const fn select(query: &Query) -> &'static str {
    let is_of_cause = query.filter.cause.is_some();
    match query.state {
        Some(State::Dead) if is_of_cause => concat!(
            "SELECT ",
            held_columns!(),
            " FROM redrive_held INDEXED BY redrive_held_cause \
             WHERE state IN (2, 3) AND cause = ?3 AND seq BETWEEN ?1 AND ?2 ORDER BY seq"
        ),
        Some(State::Dead) => concat!(
            "SELECT ",
            held_columns!(),
            " FROM redrive_held INDEXED BY redrive_held_dead \
             WHERE state IN (2, 3) AND seq BETWEEN ?1 AND ?2 ORDER BY seq"
        ),
        Some(State::Discarded) => concat!(
            "SELECT ",
            held_columns!(),
            " FROM redrive_held INDEXED BY redrive_held_gone \
             WHERE state = 5 AND seq BETWEEN ?1 AND ?2 ORDER BY seq"
        ),
        // As many as there are workers outside, so to sort them is little.
        Some(State::Running) => concat!(
            "SELECT ",
            held_columns!(),
            " FROM redrive_held INDEXED BY redrive_held_lease \
             WHERE state = 6 AND seq BETWEEN ?1 AND ?2 ORDER BY seq"
        ),
        _ => {
            concat!("SELECT ", held_columns!(), " FROM redrive_held WHERE seq BETWEEN ?1 AND ?2 ORDER BY seq")
        }
    }
}
