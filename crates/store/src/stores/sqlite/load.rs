//! Loading: the due events of a stream.
//!
//! There is no cursor: a load starts at the front each time and skips events that its owner has already, without
//! reading them. Two publishers commit in any order, and an event behind a cursor is never found again.

use redrive_core::Moment;
use redrive_core::queue_entry::{QueueEntry, Seq, StreamId};
use rusqlite::{Connection, OptionalExtension, Row, params};

use super::events::fresh::{Damage, EventRow, Stream, event_columns};
use super::events::stream_names::StreamNames;
use super::events::tracked::{TrackedEvent, tracked_columns};
use super::faults::{Step, damaged_row};
use super::writer::tx::is_current;
use crate::error::StoreError;
use crate::store::{LoadRequest, LoadedEvents, OverdueDeadLetter};
use crate::stores::shared::numbers::{bits, from_moment, span, to_moment};
use crate::stores::shared::tracked::states;

/// How many overdue dead letters one load reports; the next load reports the rest.
const OVERDUE_MAX: i64 = 1000;

/// Loads, in the open transaction.
pub(super) fn load(
    conn: &Connection,
    names: &mut StreamNames,
    load: &LoadRequest,
    path: &std::path::Path,
) -> Step<LoadedEvents> {
    if !is_current(conn, load.token)? {
        return Err(StoreError::NotOwner { path: path.to_owned(), pid: None }.into());
    }
    let mut loaded = LoadedEvents::default();
    let Some(stream) = names.of(conn, load.stream)? else { return Ok(loaded) };
    if is_pulled(conn, &stream.queue)? {
        // An owner does not get the events of a pulled queue, but its load still unblocks keys whose dead letters are
        // overdue.
        loaded.overdue = overdue(conn, load)?;
        return Ok(loaded);
    }
    let mut damage = Vec::new();

    let (fresh, more_fresh) = fresh(conn, load, &stream, &mut damage)?;
    let (waited, more_waited) = due(conn, load, &stream, false, load.live_max, &mut damage)?;
    loaded.more_live = more_fresh || more_waited || fresh.len() + waited.len() > load.live_max;
    loaded.entries.extend(fresh);
    loaded.entries.extend(waited);
    loaded.entries.sort_by_key(|entry| (entry.progress.due, entry.seq));
    loaded.entries.truncate(load.live_max);

    let (again, more_again) = due(conn, load, &stream, true, load.retry_max, &mut damage)?;
    loaded.entries.extend(again);
    loaded.more_retry = more_again;

    loaded.next_due = next_due(conn, load)?;
    loaded.overdue = overdue(conn, load)?;
    loaded.damaged = damage;
    Ok(loaded)
}

/// Events that may run and never ran.
fn fresh(
    conn: &Connection,
    load: &LoadRequest,
    stream: &Stream,
    damage: &mut Vec<String>,
) -> Step<(Vec<QueueEntry>, bool)> {
    let (first, last) = span(stream.id);
    let mut select = conn.prepare_cached(concat!(
        "SELECT ",
        event_columns!(),
        " FROM redrive_fresh WHERE seq BETWEEN ?1 AND ?2 ORDER BY seq"
    ))?;
    let rows = select.query(params![first, last])?;
    let read = |row: &Row<'_>| EventRow::read(row, stream).map(|read| read.entry(stream.id));
    take(rows, load, load.live_max, ("redrive_fresh", damage), read)
}

/// Events that waited for their time: fresh or retried ones.
fn due(
    conn: &Connection,
    load: &LoadRequest,
    stream: &Stream,
    has_run: bool,
    max: usize,
    damage: &mut Vec<String>,
) -> Step<(Vec<QueueEntry>, bool)> {
    let mut select = conn.prepare_cached(concat!(
        "SELECT ",
        tracked_columns!(),
        " FROM redrive_tracked WHERE state = ",
        states!(Waiting),
        " AND stream = ?1 AND flow = ?2 AND due <= ?3 ORDER BY due, seq"
    ))?;
    let rows = select.query(params![stream.id.0, has_run, from_moment(load.until)])?;
    take(rows, load, max, ("redrive_tracked", damage), |row| {
        TrackedEvent::read(row, stream).map(TrackedEvent::entry)
    })
}

/// The first `max` that the owner does not have, and whether there are more.
fn take(
    mut rows: rusqlite::Rows<'_>,
    load: &LoadRequest,
    max: usize,
    (table, damage): (&str, &mut Vec<String>),
    read: impl Fn(&Row<'_>) -> Result<QueueEntry, Damage>,
) -> Step<(Vec<QueueEntry>, bool)> {
    let (mut entries, mut bytes) = (Vec::new(), 0);
    while let Some(row) = rows.next()? {
        let seq = bits(row.get(0)?);
        if load.except.binary_search(&Seq(seq)).is_ok() {
            continue;
        }
        if entries.len() == max || bytes > load.bytes_max {
            return Ok((entries, true));
        }
        match read(row) {
            Ok(entry) => {
                bytes += entry.event.payload.len();
                entries.push(entry);
            }
            Err(Damage) => damage.push(damaged_row(table, seq)),
        }
    }
    Ok((entries, false))
}

/// The next time at which something happens: an event is due, or the block of a dead letter ends.
fn next_due(conn: &Connection, load: &LoadRequest) -> Step<Option<Moment>> {
    let mut next: Option<Moment> = None;
    let mut earlier = |at: i64| next = Some(next.map_or(to_moment(at), |next| next.min(to_moment(at))));
    for has_run in [false, true] {
        let mut select = conn.prepare_cached(concat!(
            "SELECT seq, due FROM redrive_tracked WHERE state = ",
            states!(Waiting),
            " AND stream = ?1 AND flow = ?2 AND due > ?3 \
             ORDER BY due, seq"
        ))?;
        let mut rows = select.query(params![load.stream.0, has_run, from_moment(load.until)])?;
        while let Some(row) = rows.next()? {
            if load.except.binary_search(&Seq(bits(row.get(0)?))).is_err() {
                earlier(row.get(1)?);
                break;
            }
        }
    }
    let freed: Option<i64> = conn
        .prepare_cached(concat!(
            "SELECT min(park_until) FROM redrive_tracked WHERE state = ",
            states!(DeadHolding),
            " AND stream = ?1 AND park_until > ?2"
        ))?
        .query_row(params![load.stream.0, from_moment(load.until)], |row| row.get(0))?;
    if let Some(freed) = freed {
        earlier(freed);
    }
    Ok(next)
}

fn overdue(conn: &Connection, load: &LoadRequest) -> Step<Vec<OverdueDeadLetter>> {
    let StreamId(stream) = load.stream;
    let mut select = conn.prepare_cached(concat!(
        "SELECT seq, rev FROM redrive_tracked WHERE state = ",
        states!(DeadHolding),
        " AND stream = ?1 AND park_until <= ?2 \
         ORDER BY park_until LIMIT ?3"
    ))?;
    let rows = select.query_map(params![stream, from_moment(load.until), OVERDUE_MAX], |row| {
        Ok(OverdueDeadLetter { seq: Seq(bits(row.get(0)?)), rev: row.get(1)? })
    })?;
    Ok(rows.collect::<rusqlite::Result<_>>()?)
}

fn is_pulled(conn: &Connection, queue: &str) -> rusqlite::Result<bool> {
    let mut select = conn.prepare_cached("SELECT pull FROM redrive_queue WHERE name = ?1")?;
    Ok(select.query_row([queue], |row| row.get(0)).optional()?.unwrap_or(false))
}
