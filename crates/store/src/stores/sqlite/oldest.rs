//! Since when the oldest event of each queue could run: three steps into an index for each stream, however many
//! events there are.

use std::collections::BTreeMap;

use redrive_core::Moment;
use redrive_core::entry::StreamId;
use rusqlite::{Connection, OptionalExtension, params};

use super::faults::Step;
use super::numbers::{span, to_moment};
use super::rows::Stream;
use super::rules::View;

/// The oldest of each queue, in the transaction that is open.
pub(super) fn oldest_due(conn: &Connection, view: &View) -> Step<Vec<(String, Moment)>> {
    let mut oldest: BTreeMap<String, Moment> = BTreeMap::new();
    let mut select = conn.prepare_cached("SELECT id, queue, tenant FROM redrive_stream")?;
    let mut rows = select.query([])?;
    while let Some(row) = rows.next()? {
        let stream = Stream { id: StreamId(row.get(0)?), queue: row.get(1)?, tenant: row.get(2)? };
        if view.is_quarantined(&stream) {
            continue;
        }
        let due = of_stream(conn, stream.id)?;
        if let Some(due) = due.filter(|due| *due <= view.now) {
            let entry = oldest.entry(stream.queue).or_insert(due);
            *entry = due.min(*entry);
        }
    }
    Ok(oldest.into_iter().collect())
}

/// When the first of a stream is due, which may be later.
fn of_stream(conn: &Connection, stream: StreamId) -> rusqlite::Result<Option<Moment>> {
    let (first, last) = span(stream);
    // In the order of their seqs, which is that of their publishing.
    let live: Option<i64> = conn
        .prepare_cached(
            "SELECT published FROM redrive_live WHERE seq BETWEEN ?1 AND ?2 ORDER BY seq LIMIT 1",
        )?
        .query_row([first, last], |row| row.get(0))
        .optional()?;
    let mut held = conn
        .prepare_cached("SELECT min(due) FROM redrive_held WHERE stream = ?1 AND flow = ?2 AND state = 0")?;
    let mut held = |flow: i64| -> rusqlite::Result<Option<i64>> {
        held.query_row(params![stream.0, flow], |row| row.get(0))
    };
    Ok([live, held(0)?, held(1)?].into_iter().flatten().min().map(to_moment))
}
