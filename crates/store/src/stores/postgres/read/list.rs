//! Listing events, a [page](crate::stores::shared::pages) at a time.

use std::sync::Arc;

use redrive_core::event::State;
use redrive_core::queue_entry::Seq;
use redrive_core::triage::CauseId;
use sqlx::Row;

use crate::event_status::{EventPage, EventQuery};
use crate::stores::postgres::events::fresh::{Damage, Stream, fresh_columns, read_fresh};
use crate::stores::postgres::events::tracked::{RowState, TrackedEvent, read_tracked, tracked_columns};
use crate::stores::postgres::faults::{Fault, Step, damaged, damaged_row};
use crate::stores::postgres::operate::rules::View;
use crate::stores::postgres::tx::{OwnTx, rows};
use crate::stores::shared::acts::discarded;
use crate::stores::shared::numbers::{bits, column, signed, stream_of};
use crate::stores::shared::pages::{Page, Part, Room, is_asked, is_meant_fresh, is_meant_tracked};
use crate::stores::shared::tracked::states;

/// How many rows are fetched at once, and how many bytes of payload with them, roughly.
const FETCHED: i64 = 200;

impl OwnTx {
    /// A page of events.
    pub(in crate::stores::postgres) async fn list(&mut self, query: &EventQuery) -> Step<EventPage> {
        let Some(mut page) = Page::new(query) else { return Ok(EventPage::default()) };
        let view = self.view().await?;
        for span in self.spans(&query.filter).await? {
            let Some(range) = page.rest(span) else { continue };
            if page.ends_before(span) {
                break;
            }
            let fresh = self.list_fresh(range, &page.room, query, &view).await?;
            let tracked = self.list_tracked(range, &page.room, query, &view).await?;
            if page.add(fresh, tracked) {
                break;
            }
        }
        Ok(page.end())
    }

    /// Events that never ran.
    async fn list_fresh(
        &mut self,
        (first, last): (i64, i64),
        room: &Room,
        query: &EventQuery,
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
                fresh_columns!(),
                " FROM redrive.fresh WHERE seq BETWEEN $1 AND $2 ORDER BY seq LIMIT $3"
            );
            let found = rows!(self, select, from, last, FETCHED)?;
            for row in &found {
                let seq = row.try_get(0)?;
                from = seq + 1;
                let stream = self.stream_of_row(seq).await?;
                match read_fresh(row, &stream) {
                    Ok(read) if is_meant_fresh(query, &read) => {
                        let event = Arc::clone(&read.event);
                        let known = self.ready(read, &stream, view).await?;
                        if query.state.is_none_or(|state| state == known.state) {
                            part.push(event, known);
                        }
                    }
                    Ok(_) => {}
                    Err(Damage) => part.damaged.push(damaged_row("fresh", seq)),
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
    async fn list_tracked(
        &mut self,
        (first, last): (i64, i64),
        room: &Room,
        query: &EventQuery,
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
                let tracked = match is_meant_tracked(query, row, &stream) {
                    Ok(true) => read_tracked(row, &stream).map(Some),
                    Ok(false) => Ok(None),
                    Err(Damage) => Err(Damage),
                };
                match tracked {
                    Ok(Some(tracked)) => self.list_one(tracked, &stream, query, view, &mut part).await?,
                    Ok(None) => {}
                    Err(Damage) => part.damaged.push(damaged_row("tracked", seq)),
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
        tracked: TrackedEvent,
        stream: &Stream,
        query: &EventQuery,
        view: &View,
        part: &mut Part,
    ) -> Step<()> {
        let mut known = self.kept(&tracked, stream, view).await?;
        if !is_asked(query, &tracked, known.state) {
            return Ok(());
        }
        if tracked.state == RowState::Discarded {
            match self.dedupe(stream.id, &tracked.row.event.id).await {
                Ok(Some(dedupe)) => known = discarded(known, &dedupe),
                Ok(None) | Err(Fault::Refused(_)) => {}
                Err(fault) => return Err(fault),
            }
        }
        part.push(tracked.row.event, known);
        Ok(())
    }

    async fn stream_of_row(&mut self, seq: i64) -> Step<Arc<Stream>> {
        let id = stream_of(Seq(bits(seq)));
        let stream = self.stream(id).await?;
        Ok(stream.ok_or_else(|| damaged("stream", id.0))?)
    }
}

/// Which rows to read.
const fn select(state: Option<State>) -> &'static str {
    match state {
        Some(State::Dead) => concat!(
            "SELECT ",
            tracked_columns!(),
            " FROM redrive.tracked WHERE state IN (",
            states!(DeadHolding, DeadPassed),
            ") AND ($4::bigint IS NULL OR cause = $4) \
             AND seq BETWEEN $1 AND $2 ORDER BY seq LIMIT $3"
        ),
        Some(State::Discarded) => concat!(
            "SELECT ",
            tracked_columns!(),
            " FROM redrive.tracked WHERE state = ",
            states!(Discarded),
            " AND $4::bigint IS NULL AND seq BETWEEN $1 AND $2 ORDER BY seq LIMIT $3"
        ),
        Some(State::Running) => concat!(
            "SELECT ",
            tracked_columns!(),
            " FROM redrive.tracked WHERE state = ",
            states!(Leased),
            " AND $4::bigint IS NULL AND seq BETWEEN $1 AND $2 ORDER BY seq LIMIT $3"
        ),
        _ => concat!(
            "SELECT ",
            tracked_columns!(),
            " FROM redrive.tracked WHERE $4::bigint IS NULL AND seq BETWEEN $1 AND $2 ORDER BY seq LIMIT $3"
        ),
    }
}
