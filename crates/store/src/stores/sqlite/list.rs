//! Listing what there is, a page at a time.
//!
//! A page begins where the one before ended, in the order of seqs. Dead letters, what was discarded and what is
//! leased have indexes; everything else is a walk through the tables themselves, because an index for it would cost
//! every event. So a page ends where enough was looked at, whatever was found by then, and where it has enough bytes.

use std::sync::Arc;

use redrive_core::Event;
use redrive_core::entry::Seq;
use redrive_core::event::State;
use redrive_core::triage::{CauseId, Subject};
use rusqlite::{Connection, params};

use super::faults::{Step, damaged, damaged_row};
use super::find::{discarded, kept};
use super::held::{Held, Stand, held_columns};
use super::letters::{LOOKED_MAX, died, is_letter, is_meant, spans};
use super::names::Names;
use super::numbers::{bits, column, signed, stream_of};
use super::receipt::Receipt;
use super::rows::{Damage, EVENT_COLUMNS, EventRow, Stream, event_columns};
use super::rules::View;
use crate::found::{Found, Listed, PAGE_BYTES, Query, bytes_of};

/// How many events are on a page where nobody says.
const PAGE: usize = 100;
/// How many events a page may have.
const PAGE_MAX: usize = 10_000;

type Listing = (Arc<Event>, Found);

/// What was found in one table between two places.
#[derive(Default)]
struct Part {
    found: Vec<Listing>,
    looked: usize,
    bytes: usize,
    /// The last place that was looked at, where that was not the end.
    stop: Option<i64>,
}

impl Part {
    fn push(&mut self, event: Arc<Event>, known: Found) {
        self.bytes += bytes_of(&event);
        self.found.push((event, known));
    }

    /// Another one was looked at. Whether that is enough.
    fn is_enough(&mut self, seq: i64, room: &Room) -> bool {
        self.looked += 1;
        if self.found.len() >= room.events || self.looked >= room.looks || self.bytes >= room.bytes {
            self.stop = Some(seq);
        }
        self.stop.is_some()
    }
}

/// How much may still be looked at, and found.
struct Room {
    events: usize,
    looks: usize,
    bytes: usize,
}

/// Who looks, and for what.
struct Looking<'a> {
    conn: &'a Connection,
    names: &'a mut Names,
    query: &'a Query,
    view: &'a View,
    damaged: Vec<String>,
}

/// A page of events, in the transaction that is open.
pub(super) fn list(conn: &Connection, names: &mut Names, query: &Query, view: &View) -> Step<Listed> {
    let mut listed = Listed::default();
    if query.state.is_some_and(|state| state.is_ended() && state != State::Discarded) {
        return Ok(listed);
    }
    let limit = if query.limit == 0 { PAGE } else { query.limit.min(PAGE_MAX) };
    let after = query.after.map_or(-1, |seq| column(seq.0));
    let mut looking = Looking { conn, names, query, view, damaged: Vec::new() };
    // One more than asked for, to see whether there is a next page.
    let mut room = Room { events: limit + 1, looks: LOOKED_MAX, bytes: PAGE_BYTES };
    let spans = spans(conn, &query.filter)?;
    for (first, last) in spans.into_iter().filter(|(_, last)| *last > after) {
        if room.looks == 0 {
            listed.next = Some(Seq(bits(first - 1)));
            break;
        }
        let range = (first.max(after + 1), last);
        let live = looking.live(range, &room)?;
        let held = looking.held(range, &room)?;
        room.looks = room.looks.saturating_sub(live.looked + held.looked);
        let stop = [live.stop, held.stop].into_iter().flatten().min();
        let is_sure = |(_, found): &Listing| stop.is_none_or(|stop| column(found.seq.0) <= stop);
        let mut part: Vec<Listing> = live.found.into_iter().chain(held.found).filter(is_sure).collect();
        part.sort_by_key(|(_, found)| found.seq);
        for (event, found) in part {
            // Each of the two has as much as a page may have, so together it may be too much.
            if room.bytes > 0 {
                room.bytes = room.bytes.saturating_sub(bytes_of(&event));
                listed.events.push((event, found));
            }
        }
        room.events = (limit + 1).saturating_sub(listed.events.len());
        if listed.events.len() > limit || room.bytes == 0 {
            listed.events.truncate(limit);
            listed.next = listed.events.last().map(|(_, found)| found.seq);
            break;
        }
        if let Some(stop) = stop {
            listed.next = Some(Seq(bits(stop)));
            break;
        }
    }
    listed.damaged = looking.damaged;
    Ok(listed)
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
                    let subject = Subject {
                        event: &read.event,
                        at: read.published,
                        attempts: 0,
                        cause: None,
                        reason: None,
                        story: None,
                    };
                    if self.query.state.is_none_or(|state| state == known.state)
                        && self.query.filter.matches(subject)
                    {
                        part.push(read.event, known);
                    }
                }
                Err(Damage) => self.damaged.push(damaged_row("redrive_live", seq)),
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
            let at = is_letter(row, EVENT_COLUMNS).and_then(|is_letter| match is_letter {
                true => died(row, EVENT_COLUMNS),
                false => row.get(6).map_err(|_| Damage),
            });
            let is_meant = at.and_then(|at| is_meant(&self.query.filter, row, EVENT_COLUMNS, at, &stream));
            let held = match is_meant {
                Ok(true) => Held::read(row, &stream).map(Some),
                Ok(false) => Ok(None),
                Err(Damage) => Err(Damage),
            };
            match held {
                Ok(Some(held)) => {
                    let mut known = kept(conn, &held, &stream, self.view)?;
                    let is_asked = match self.query.state {
                        Some(state) => state == known.state,
                        None => held.stand != Stand::Discarded,
                    };
                    if is_asked {
                        if held.stand == Stand::Discarded
                            && let Ok(Some(receipt)) = Receipt::find(conn, stream.id, &held.row.event.id)
                        {
                            known = discarded(known, &receipt);
                        }
                        part.push(held.row.event, known);
                    }
                }
                Ok(None) => {}
                Err(Damage) => self.damaged.push(damaged_row("redrive_held", seq)),
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
