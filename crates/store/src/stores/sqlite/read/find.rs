//! Finding: the status of an event.

use redrive_core::event::State;
use redrive_core::queue_entry::StreamId;
use rusqlite::{Connection, OptionalExtension, params};

use crate::event_status::{EventStatus, NAMED_MAX, Named};
use crate::stores::shared::acts::discarded;
use crate::stores::shared::numbers::{column, span, stream_of};
use crate::stores::shared::tracked::states;
use crate::stores::sqlite::events::dedupe::DedupeRecord;
use crate::stores::sqlite::events::fresh::{Damage, EventRow, Stream, event_columns};
use crate::stores::sqlite::events::stream_names::{StreamNames, find_stream};
use crate::stores::sqlite::events::tracked::{RowState, TrackedEvent};
use crate::stores::sqlite::faults::{Step, damaged};
use crate::stores::sqlite::operate::rules::{View, state_under};

/// The status of an event, in the open transaction.
pub(in crate::stores::sqlite) fn find(
    conn: &Connection,
    names: &mut StreamNames,
    (tenant, queue, id): (&str, &str, &str),
    view: &View,
) -> Step<Option<EventStatus>> {
    let Some(stream) = find_stream(conn, queue, tenant)? else { return Ok(None) };
    match DedupeRecord::find(conn, stream, id)? {
        Some(dedupe) => found(conn, names, dedupe, view).map(Some),
        None => Ok(None),
    }
}

/// The status of all events with this id, in the open transaction. Their key begins with it.
pub(in crate::stores::sqlite) fn find_by_id(
    conn: &Connection,
    names: &mut StreamNames,
    id: &str,
    view: &View,
) -> Step<Vec<Named>> {
    let mut select =
        conn.prepare_cached("SELECT stream FROM redrive_dedupe WHERE id = ?1 ORDER BY stream LIMIT ?2")?;
    let streams = select.query_map(params![id, column(NAMED_MAX as u64)], |row| row.get(0).map(StreamId))?;
    let streams: Vec<StreamId> = streams.collect::<rusqlite::Result<_>>()?;
    let mut all = Vec::new();
    for id_of in streams {
        let (Some(stream), Some(dedupe)) = (names.of(conn, id_of)?, DedupeRecord::find(conn, id_of, id)?)
        else {
            continue;
        };
        let found = found(conn, names, dedupe, view)?;
        all.push(Named { tenant: stream.tenant.clone(), queue: stream.queue.clone(), found });
    }
    Ok(all)
}

/// The names of all declared queues, in the open transaction.
pub(in crate::stores::sqlite) fn queue_names(conn: &Connection) -> Step<Vec<String>> {
    let mut select = conn.prepare_cached("SELECT name FROM redrive_queue ORDER BY name")?;
    Ok(select.query_map([], |row| row.get(0))?.collect::<rusqlite::Result<_>>()?)
}

/// The status of the event of this dedupe record.
pub(in crate::stores::sqlite) fn found(
    conn: &Connection,
    names: &mut StreamNames,
    dedupe: DedupeRecord,
    view: &View,
) -> Step<EventStatus> {
    let seq = dedupe.seq;
    let Some(stream) = names.of(conn, stream_of(seq))? else {
        return Err(damaged("redrive_stream", seq.0).into());
    };
    let fresh = conn
        .prepare_cached(concat!("SELECT ", event_columns!(), " FROM redrive_fresh WHERE seq = ?1"))?
        .query_row([column(seq.0)], |row| Ok(EventRow::read(row, &stream)))
        .optional()?;
    if let Some(fresh) = fresh {
        let row = fresh.map_err(|Damage| damaged("redrive_fresh", seq.0))?;
        // After an edit, the replacement has the seq of the original.
        return Ok(if row.event.id == dedupe.id { view.ready(&row, &stream) } else { dedupe.into_found() });
    }
    if let Some(tracked) = TrackedEvent::find(conn, seq, &stream)? {
        let tracked = tracked.map_err(|Damage| damaged("redrive_tracked", seq.0))?;
        if tracked.row.event.id == dedupe.id {
            let known = kept(conn, &tracked, &stream, view)?;
            return Ok(if tracked.state == RowState::Discarded { discarded(known, &dedupe) } else { known });
        }
    }
    Ok(dedupe.into_found())
}

/// A tracked event. Its dedupe record has the time of a discard, and until when it can be restored.
pub(in crate::stores::sqlite) fn kept(
    conn: &Connection,
    tracked: &TrackedEvent,
    stream: &Stream,
    view: &View,
) -> rusqlite::Result<EventStatus> {
    Ok(tracked.found(place(conn, tracked, stream, view)?))
}

/// The state of a tracked event as a reader sees it.
pub(in crate::stores::sqlite) fn place(
    conn: &Connection,
    tracked: &TrackedEvent,
    stream: &Stream,
    view: &View,
) -> rusqlite::Result<State> {
    Ok(match tracked.state {
        RowState::Discarded => State::Discarded,
        RowState::DeadHolding | RowState::DeadPassed => State::Dead,
        RowState::Leased => State::Running,
        RowState::Waiting | RowState::Blocked | RowState::Withheld => {
            let rule = tracked.row.key().and_then(|key| view.rules.withholding(stream, key));
            if view.is_quarantined(stream) {
                State::Quarantined
            } else if tracked.state == RowState::Blocked && is_parked(conn, tracked)? {
                State::Parked
            } else if let Some(rule) = rule {
                state_under(rule)
            } else if tracked.state == RowState::Waiting && tracked.progress.due <= view.now {
                State::Ready
            } else {
                State::Waiting
            }
        }
    })
}

/// Whether the head of its key is dead.
fn is_parked(conn: &Connection, tracked: &TrackedEvent) -> rusqlite::Result<bool> {
    let Some(key) = tracked.row.key() else { return Ok(false) };
    let (first, _) = span(stream_of(tracked.row.seq));
    conn.prepare_cached(concat!(
        "SELECT EXISTS (SELECT 1 FROM redrive_tracked WHERE key = ?1 AND state = ",
        states!(DeadHolding),
        " AND seq >= ?2 AND seq < ?3)"
    ))?
    .query_row(params![key, first, column(tracked.row.seq.0)], |row| row.get(0))
}
