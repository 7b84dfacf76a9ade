//! Listing what there is, a [page](crate::stores::shared::pages) at a time.

use std::sync::Arc;

use redrive_core::entry::Seq;
use redrive_core::event::State;
use redrive_core::triage::CauseId;
use sqlx::Row;

use super::desk::{Desk, rows};
use super::faults::{Fault, Step, damaged, damaged_row};
use super::held::{Held, Stand, held_columns, read_held};
use super::rows::{Damage, Stream, live_columns, read_live};
use super::rules::View;
use crate::found::{Listed, Query};
use crate::stores::shared::acts::discarded;
use crate::stores::shared::numbers::{bits, column, signed, stream_of};
use crate::stores::shared::pages::{Page, Part, Room, is_asked, is_meant_held, is_meant_live};

/// How many rows are fetched at once, and how many bytes of payload with them, roughly.
const FETCHED: i64 = 200;

impl Desk {
    /// A page of events.
    pub(super) async fn list(&mut self, query: &Query) -> Step<Listed> {
        let Some(mut page) = Page::new(query) else { return Ok(Listed::default()) };
        let view = self.view().await?;
        for span in self.spans(&query.filter).await? {
            let Some(range) = page.rest(span) else { continue };
            if page.ends_before(span) {
                break;
            }
            let live = self.list_live(range, &page.room, query, &view).await?;
            let held = self.list_held(range, &page.room, query, &view).await?;
            if page.add(live, held) {
                break;
            }
        }
        Ok(page.end())
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
                    Ok(read) if is_meant_live(query, &read) => {
                        let event = Arc::clone(&read.event);
                        let known = self.ready(read, &stream, view).await?;
                        if query.state.is_none_or(|state| state == known.state) {
                            part.push(event, known);
                        }
                    }
                    Ok(_) => {}
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
                let held = match is_meant_held(query, row, &stream) {
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
        if !is_asked(query, &held, known.state) {
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
