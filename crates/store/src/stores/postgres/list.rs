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
use sqlx::Row;

use super::desk::{Desk, rows};
use super::faults::{Fault, Step, damaged, damaged_row};
use super::find::discarded;
use super::held::{Held, Stand, held_columns, read_held};
use super::rows::{Damage, EVENT_COLUMNS, Stream, live_columns, read_live};
use super::rules::View;
use crate::found::{Found, Listed, PAGE_BYTES, Query, bytes_of};
use crate::stores::shared::cells::Cells;
use crate::stores::shared::letters::{LOOKED_MAX, died, is_letter, is_meant};
use crate::stores::shared::numbers::{bits, column, signed, stream_of};

/// How many events are on a page where nobody says.
const PAGE: usize = 100;
/// How many events a page may have.
const PAGE_MAX: usize = 10_000;
/// How many rows are fetched at once, and how many bytes of payload with them, roughly.
const FETCHED: i64 = 200;

type Listing = (Arc<Event>, Found);

/// What was found in one table between two places.
#[derive(Default)]
struct Part {
    found: Vec<Listing>,
    looked: usize,
    bytes: usize,
    /// The last place that was looked at, where that was not the end.
    stop: Option<i64>,
    damaged: Vec<String>,
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

impl Desk {
    /// A page of events.
    pub(super) async fn list(&mut self, query: &Query) -> Step<Listed> {
        let mut listed = Listed::default();
        if query.state.is_some_and(|state| state.is_ended() && state != State::Discarded) {
            return Ok(listed);
        }
        let view = self.view().await?;
        let limit = if query.limit == 0 { PAGE } else { query.limit.min(PAGE_MAX) };
        let after = query.after.map_or(-1, |seq| column(seq.0));
        // One more than asked for, to see whether there is a next page.
        let mut room = Room { events: limit + 1, looks: LOOKED_MAX, bytes: PAGE_BYTES };
        let spans = self.spans(&query.filter).await?;
        for (first, last) in spans.into_iter().filter(|(_, last)| *last > after) {
            if room.looks == 0 {
                listed.next = Some(Seq(bits(first - 1)));
                break;
            }
            let range = (first.max(after + 1), last);
            let live = self.list_live(range, &room, query, &view).await?;
            let held = self.list_held(range, &room, query, &view).await?;
            room.looks = room.looks.saturating_sub(live.looked + held.looked);
            let stop = [live.stop, held.stop].into_iter().flatten().min();
            let is_sure = |(_, found): &Listing| stop.is_none_or(|stop| column(found.seq.0) <= stop);
            let mut part: Vec<Listing> = live.found.into_iter().chain(held.found).filter(is_sure).collect();
            listed.damaged.extend(live.damaged.into_iter().chain(held.damaged));
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
        Ok(listed)
    }

    /// Events that never ran.
    async fn list_live(
        &mut self,
        (first, last): (i64, i64),
        room: &Room,
        query: &Query,
        view: &View,
    ) -> Step<Part> {
        let mut part = Part::default();
        if matches!(query.state, Some(State::Dead | State::Discarded | State::Running)) {
            return Ok(part);
        }
        let mut from = first;
        loop {
            let select = concat!(
                "SELECT ",
                live_columns!(),
                " FROM redrive.live WHERE seq BETWEEN $1 AND $2 ORDER BY seq LIMIT $3"
            );
            let found = rows!(self, select, from, last, FETCHED)?;
            for row in &found {
                let seq = row.try_get(0)?;
                from = seq + 1;
                let stream = self.stream_of_row(seq).await?;
                match read_live(row, &stream) {
                    Ok(read) => {
                        let subject = Subject {
                            event: &read.event,
                            at: read.published,
                            attempts: 0,
                            cause: None,
                            reason: None,
                            story: None,
                        };
                        if query.filter.matches(subject) {
                            let event = Arc::clone(&read.event);
                            let known = self.ready(read, &stream, view).await?;
                            if query.state.is_none_or(|state| state == known.state) {
                                part.push(event, known);
                            }
                        }
                    }
                    Err(Damage) => part.damaged.push(damaged_row("live", seq)),
                }
                if part.is_enough(seq, room) {
                    return Ok(part);
                }
            }
            if column(found.len() as u64) < FETCHED {
                return Ok(part);
            }
        }
    }

    /// All others.
    async fn list_held(
        &mut self,
        (first, last): (i64, i64),
        room: &Room,
        query: &Query,
        view: &View,
    ) -> Step<Part> {
        let mut part = Part::default();
        let cause = query.filter.cause.filter(|_| query.state == Some(State::Dead));
        let cause = cause.map(|CauseId(cause)| signed(cause));
        let mut from = first;
        loop {
            let found = rows!(self, select(query.state), from, last, FETCHED, cause)?;
            for row in &found {
                let seq = row.try_get(0)?;
                from = seq + 1;
                let stream = self.stream_of_row(seq).await?;
                let at = is_letter(row, EVENT_COLUMNS).and_then(|is_letter| match is_letter {
                    true => died(row, EVENT_COLUMNS),
                    false => row.number(6),
                });
                let is_meant = at.and_then(|at| is_meant(&query.filter, row, EVENT_COLUMNS, at, &stream));
                let held = match is_meant {
                    Ok(true) => read_held(row, &stream).map(Some),
                    Ok(false) => Ok(None),
                    Err(Damage) => Err(Damage),
                };
                match held {
                    Ok(Some(held)) => self.list_one(held, &stream, query, view, &mut part).await?,
                    Ok(None) => {}
                    Err(Damage) => part.damaged.push(damaged_row("held", seq)),
                }
                if part.is_enough(seq, room) {
                    return Ok(part);
                }
            }
            if column(found.len() as u64) < FETCHED {
                return Ok(part);
            }
        }
    }

    async fn list_one(
        &mut self,
        held: Held,
        stream: &Stream,
        query: &Query,
        view: &View,
        part: &mut Part,
    ) -> Step<()> {
        let mut known = self.kept(&held, stream, view).await?;
        let is_asked = match query.state {
            Some(state) => state == known.state,
            None => held.stand != Stand::Discarded,
        };
        if !is_asked {
            return Ok(());
        }
        if held.stand == Stand::Discarded {
            match self.receipt(stream.id, &held.row.event.id).await {
                Ok(Some(receipt)) => known = discarded(known, &receipt),
                Ok(None) | Err(Fault::Refused(_)) => {}
                Err(fault) => return Err(fault),
            }
        }
        part.push(held.row.event, known);
        Ok(())
    }

    async fn stream_of_row(&mut self, seq: i64) -> Step<Arc<Stream>> {
        let id = stream_of(Seq(bits(seq)));
        let stream = self.stream(id).await?;
        Ok(stream.ok_or_else(|| damaged("stream", id.0))?)
    }
}

/// Where to look.
const fn select(state: Option<State>) -> &'static str {
    match state {
        Some(State::Dead) => concat!(
            "SELECT ",
            held_columns!(),
            " FROM redrive.held WHERE state IN (2, 3) AND ($4::bigint IS NULL OR cause = $4) \
             AND seq BETWEEN $1 AND $2 ORDER BY seq LIMIT $3"
        ),
        Some(State::Discarded) => concat!(
            "SELECT ",
            held_columns!(),
            " FROM redrive.held WHERE state = 5 AND $4::bigint IS NULL AND seq BETWEEN $1 AND $2 ORDER BY seq LIMIT $3"
        ),
        Some(State::Running) => concat!(
            "SELECT ",
            held_columns!(),
            " FROM redrive.held WHERE state = 6 AND $4::bigint IS NULL AND seq BETWEEN $1 AND $2 ORDER BY seq LIMIT $3"
        ),
        _ => concat!(
            "SELECT ",
            held_columns!(),
            " FROM redrive.held WHERE $4::bigint IS NULL AND seq BETWEEN $1 AND $2 ORDER BY seq LIMIT $3"
        ),
    }
}
