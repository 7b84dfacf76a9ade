//! Since when the oldest event of each queue is due: three index lookups for each stream, however many events there
//! are.

use std::collections::BTreeMap;

use redrive_core::Moment;
use redrive_core::queue_entry::StreamId;
use rusqlite::{Connection, OptionalExtension, params};

use crate::stores::shared::numbers::{span, to_moment};
use crate::stores::shared::tracked::states;
use crate::stores::sqlite::events::fresh::Stream;
use crate::stores::sqlite::faults::Step;
use crate::stores::sqlite::operate::rules::View;

/// The oldest of each queue, in the open transaction.
pub(in crate::stores::sqlite) fn oldest_due(conn: &Connection, view: &View) -> Step<Vec<(String, Moment)>> {
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

/// When the first event of a stream is due, which may be later.
fn of_stream(conn: &Connection, stream: StreamId) -> rusqlite::Result<Option<Moment>> {
    let (first, last) = span(stream);
    // In the order of their seqs, which is that of their publishing.
    let fresh: Option<i64> = conn
        .prepare_cached(
            "SELECT published FROM redrive_fresh WHERE seq BETWEEN ?1 AND ?2 ORDER BY seq LIMIT 1",
        )?
        .query_row([first, last], |row| row.get(0))
        .optional()?;
    let mut tracked = conn.prepare_cached(concat!(
        "SELECT min(due) FROM redrive_tracked WHERE stream = ?1 AND flow = ?2 AND state = ",
        states!(Waiting)
    ))?;
    let mut tracked = |flow: i64| -> rusqlite::Result<Option<i64>> {
        tracked.query_row(params![stream.0, flow], |row| row.get(0))
    };
    Ok([fresh, tracked(0)?, tracked(1)?].into_iter().flatten().min().map(to_moment))
}
