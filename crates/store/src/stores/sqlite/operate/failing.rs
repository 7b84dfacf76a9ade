//! Retrying events: in groups, and counted.

use std::collections::BTreeMap;

use redrive_core::queue_entry::StreamId;
use rusqlite::{Connection, params};

use crate::operate::{FailingGroup, FailingQuery, Failings, Retrying};
use crate::stores::shared::dead_letter_filter::letter_columns;
use crate::stores::shared::failing::look;
use crate::stores::shared::numbers::{bits, column, to_moment};
use crate::stores::shared::tracked::states;
use crate::stores::sqlite::events::stream_names::StreamNames;
use crate::stores::sqlite::faults::Step;

/// Retrying events by cause, in the open transaction.
pub(in crate::stores::sqlite) fn failing(
    conn: &Connection,
    names: &mut StreamNames,
    query: &FailingQuery,
) -> Step<Vec<FailingGroup>> {
    let mut failings = Failings::of(query);
    let mut streams = conn.prepare_cached("SELECT id FROM redrive_stream ORDER BY id")?;
    let ids: Vec<u32> = streams.query_map([], |row| row.get(0))?.collect::<rusqlite::Result<_>>()?;
    for id in ids {
        let Some(stream) = names.of(conn, StreamId(id))? else { continue };
        if !query.is_of(&stream.queue, &stream.tenant) {
            continue;
        }
        let mut select = conn.prepare_cached(concat!(
            "SELECT ",
            letter_columns!(),
            " FROM redrive_tracked INDEXED BY redrive_tracked_due WHERE stream = ?1 AND flow = 1 AND state = ",
            states!(Waiting),
            " ORDER BY due LIMIT ?2"
        ))?;
        // One more than the sample, to learn whether there are more.
        let mut rows = select.query(params![id, column(failings.room() as u64 + 1)])?;
        while let Some(row) = rows.next()? {
            if !failings.may_look() {
                break;
            }
            look(&mut failings, row, &stream);
        }
    }
    Ok(failings.end())
}

/// How many events of each queue are retrying, in the open transaction. It reads every one of them.
pub(in crate::stores::sqlite) fn retrying(conn: &Connection, names: &mut StreamNames) -> Step<Vec<Retrying>> {
    let mut select = conn.prepare_cached(concat!(
        "SELECT stream, count(*), min(coalesce(started, due)) FROM redrive_tracked WHERE state IN (",
        states!(Waiting, Leased),
        ") AND attempts > 0 GROUP BY stream"
    ))?;
    let mut rows = select.query([])?;
    let mut queues: BTreeMap<String, Retrying> = BTreeMap::new();
    while let Some(row) = rows.next()? {
        let Some(stream) = names.of(conn, StreamId(row.get(0)?))? else { continue };
        let (events, since) = (bits(row.get(1)?), to_moment(row.get(2)?));
        let queue = stream.queue.clone();
        let one = queues.entry(queue.clone()).or_insert(Retrying { queue, events: 0, since });
        one.events += events;
        one.since = one.since.min(since);
    }
    Ok(queues.into_values().collect())
}
