//! Loading: what is due in a stream.
//!
//! There is no cursor: a load begins at the front each time and skips what its owner has already, without
//! reading it. Two publishers commit in any order, and what a cursor has passed is never found again.

use redrive_core::Moment;
use redrive_core::entry::{Entry, Seq, StreamId};
use rusqlite::{Connection, OptionalExtension, Row, params};

use super::desk::is_current;
use super::faults::{Step, damaged_row};
use super::held::{Held, held_columns};
use super::names::Names;
use super::numbers::{bits, from_moment, span, to_moment};
use super::rows::{Damage, EventRow, Stream, event_columns};
use crate::error::StoreError;
use crate::store::{Load, Loaded, Overdue};

/// How many dead letters whose time is over are told at once; the next load tells the rest.
const OVERDUE_MAX: i64 = 1000;

/// Loads, in the transaction that is open.
pub(super) fn load(
    conn: &Connection,
    names: &mut Names,
    load: &Load,
    path: &std::path::Path,
) -> Step<Loaded> {
    if !is_current(conn, load.grant)? {
        return Err(StoreError::NotOwner { path: path.to_owned(), pid: None }.into());
    }
    let mut loaded = Loaded::default();
    let Some(stream) = names.of(conn, load.stream)? else { return Ok(loaded) };
    if is_pulled(conn, &stream.queue)? {
        // Its events are not for an owner, but its dead letters are: whoever loads lets their keys go on.
        loaded.overdue = overdue(conn, load)?;
        return Ok(loaded);
    }
    let mut damage = Vec::new();

    let (fresh, more_fresh) = live(conn, load, &stream, &mut damage)?;
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
fn live(
    conn: &Connection,
    load: &Load,
    stream: &Stream,
    damage: &mut Vec<String>,
) -> Step<(Vec<Entry>, bool)> {
    let (first, last) = span(stream.id);
    let mut select = conn.prepare_cached(concat!(
        "SELECT ",
        event_columns!(),
        " FROM redrive_live WHERE seq BETWEEN ?1 AND ?2 ORDER BY seq"
    ))?;
    let rows = select.query(params![first, last])?;
    let read = |row: &Row<'_>| EventRow::read(row, stream).map(|read| read.entry(stream.id));
    take(rows, load, load.live_max, ("redrive_live", damage), read)
}

/// Events that waited for their time: those that never ran, or the others.
fn due(
    conn: &Connection,
    load: &Load,
    stream: &Stream,
    has_run: bool,
    max: usize,
    damage: &mut Vec<String>,
) -> Step<(Vec<Entry>, bool)> {
    let mut select = conn.prepare_cached(concat!(
        "SELECT ",
        held_columns!(),
        " FROM redrive_held WHERE state = 0 AND stream = ?1 AND flow = ?2 AND due <= ?3 ORDER BY due, seq"
    ))?;
    let rows = select.query(params![stream.id.0, has_run, from_moment(load.until)])?;
    take(rows, load, max, ("redrive_held", damage), |row| Held::read(row, stream).map(Held::entry))
}

/// The first `max` that the owner does not have, and whether there are more.
fn take(
    mut rows: rusqlite::Rows<'_>,
    load: &Load,
    max: usize,
    (table, damage): (&str, &mut Vec<String>),
    read: impl Fn(&Row<'_>) -> Result<Entry, Damage>,
) -> Step<(Vec<Entry>, bool)> {
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

/// When something happens next: an event is due, or a dead letter has held up others for long enough.
fn next_due(conn: &Connection, load: &Load) -> Step<Option<Moment>> {
    let mut next: Option<Moment> = None;
    let mut earlier = |at: i64| next = Some(next.map_or(to_moment(at), |next| next.min(to_moment(at))));
    for has_run in [false, true] {
        let mut select = conn.prepare_cached(
            "SELECT seq, due FROM redrive_held WHERE state = 0 AND stream = ?1 AND flow = ?2 AND due > ?3 \
             ORDER BY due, seq",
        )?;
        let mut rows = select.query(params![load.stream.0, has_run, from_moment(load.until)])?;
        while let Some(row) = rows.next()? {
            if load.except.binary_search(&Seq(bits(row.get(0)?))).is_err() {
                earlier(row.get(1)?);
                break;
            }
        }
    }
    let freed: Option<i64> = conn
        .prepare_cached(
            "SELECT min(park_until) FROM redrive_held WHERE state = 2 AND stream = ?1 AND park_until > ?2",
        )?
        .query_row(params![load.stream.0, from_moment(load.until)], |row| row.get(0))?;
    if let Some(freed) = freed {
        earlier(freed);
    }
    Ok(next)
}

fn overdue(conn: &Connection, load: &Load) -> Step<Vec<Overdue>> {
    let StreamId(stream) = load.stream;
    let mut select = conn.prepare_cached(
        "SELECT seq, rev FROM redrive_held WHERE state = 2 AND stream = ?1 AND park_until <= ?2 \
         ORDER BY park_until LIMIT ?3",
    )?;
    let rows = select.query_map(params![stream, from_moment(load.until), OVERDUE_MAX], |row| {
        Ok(Overdue { seq: Seq(bits(row.get(0)?)), rev: row.get(1)? })
    })?;
    Ok(rows.collect::<rusqlite::Result<_>>()?)
}

fn is_pulled(conn: &Connection, queue: &str) -> rusqlite::Result<bool> {
    let mut select = conn.prepare_cached("SELECT pull FROM redrive_queue WHERE name = ?1")?;
    Ok(select.query_row([queue], |row| row.get(0)).optional()?.unwrap_or(false))
}
