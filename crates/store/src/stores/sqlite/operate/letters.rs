//! Dead letters by filter, row by row, parsing only what the filter needs.
//!
//! A walk follows the order of their seqs, over an index of dead letters, or of those of one cause. The filter's
//! stream and cause bound the walk; the rest is checked row by row.

use std::sync::Arc;

use redrive_core::queue_entry::{Seq, StreamId};
use redrive_core::triage::{CauseId, Filter};
use rusqlite::{CachedStatement, Connection, OptionalExtension, Row, params};

use crate::event_status::FilterMatches;
pub(in crate::stores::sqlite) use crate::stores::shared::dead_letter_filter::{
    LETTER_CHANGES, LOOKED_MAX, died, is_meant,
};
use crate::stores::shared::dead_letter_filter::{Matched, letter_columns};
use crate::stores::shared::numbers::{bits, signed, span, stream_of};
use crate::stores::shared::tracked::states;
use crate::stores::sqlite::events::fresh::Stream;
use crate::stores::sqlite::events::stream_names::StreamNames;
use crate::stores::sqlite::faults::Step;

/// Whether to read the next row.
pub(in crate::stores::sqlite) enum Walk {
    On,
    Stop,
}

/// Walks through dead letters after a position, in the order of their seqs. Returns whether it reached the end.
pub(in crate::stores::sqlite) fn walk(
    conn: &Connection,
    names: &mut StreamNames,
    filter: &Filter,
    after: i64,
    look: impl FnMut(&Row<'_>, Seq, &Arc<Stream>) -> Step<Walk>,
) -> Step<bool> {
    let select = match filter.cause {
        None => conn.prepare_cached(concat!(
            "SELECT ",
            letter_columns!(),
            " FROM redrive_tracked INDEXED BY redrive_tracked_dead \
             WHERE state IN (",
            states!(DeadHolding, DeadPassed),
            ") AND seq > ?1 AND seq <= ?2 ORDER BY seq"
        ))?,
        Some(_) => conn.prepare_cached(concat!(
            "SELECT ",
            letter_columns!(),
            " FROM redrive_tracked INDEXED BY redrive_tracked_cause \
             WHERE state IN (",
            states!(DeadHolding, DeadPassed),
            ") AND cause = ?3 AND seq > ?1 AND seq <= ?2 ORDER BY seq"
        ))?,
    };
    walk_by(select, conn, names, filter, after, look)
}

/// The same over all tracked events: retrying events have no index in the order of their seqs.
pub(in crate::stores::sqlite) fn walk_all(
    conn: &Connection,
    names: &mut StreamNames,
    filter: &Filter,
    after: i64,
    look: impl FnMut(&Row<'_>, Seq, &Arc<Stream>) -> Step<Walk>,
) -> Step<bool> {
    let select = conn.prepare_cached(concat!(
        "SELECT ",
        letter_columns!(),
        " FROM redrive_tracked WHERE seq > ?1 AND seq <= ?2 ORDER BY seq"
    ))?;
    walk_by(select, conn, names, &Filter { cause: None, ..filter.clone() }, after, look)
}

fn walk_by(
    mut select: CachedStatement<'_>,
    conn: &Connection,
    names: &mut StreamNames,
    filter: &Filter,
    after: i64,
    mut look: impl FnMut(&Row<'_>, Seq, &Arc<Stream>) -> Step<Walk>,
) -> Step<bool> {
    for (first, last) in spans(conn, filter)? {
        let from = after.max(first - 1);
        if last <= from {
            continue;
        }
        let mut rows = match filter.cause {
            None => select.query(params![from, last])?,
            Some(CauseId(cause)) => select.query(params![from, last, signed(cause)])?,
        };
        while let Some(row) = rows.next()? {
            let seq = Seq(bits(row.get(0)?));
            let Some(stream) = names.of(conn, stream_of(seq))? else { continue };
            if let Walk::Stop = look(row, seq, &stream)? {
                return Ok(false);
            }
        }
    }
    Ok(true)
}

/// The first and the last seqs of the streams that a filter matches; if it names an id, the seq of that event in each.
pub(in crate::stores::sqlite) fn spans(conn: &Connection, filter: &Filter) -> Step<Vec<(i64, i64)>> {
    if filter.queue.is_none() && filter.tenant.is_none() && filter.id.is_none() {
        return Ok(vec![(0, i64::MAX)]);
    }
    let mut select = conn.prepare_cached(
        "SELECT id FROM redrive_stream WHERE (?1 IS NULL OR queue = ?1) AND (?2 IS NULL OR tenant = ?2) \
         ORDER BY id",
    )?;
    let streams = select.query_map(params![filter.queue, filter.tenant], |row| row.get(0).map(StreamId))?;
    let mut spans = Vec::new();
    for stream in streams {
        let stream = stream?;
        let Some(id) = &filter.id else {
            spans.push(span(stream));
            continue;
        };
        let seq: Option<i64> = conn
            .prepare_cached("SELECT seq FROM redrive_dedupe WHERE stream = ?1 AND id = ?2")?
            .query_row(params![stream.0, id], |row| row.get(0))
            .optional()?;
        spans.extend(seq.map(|seq| (seq, seq)));
    }
    Ok(spans)
}

/// The dead letters that a filter matches, in the open transaction.
pub(in crate::stores::sqlite) fn matching(
    conn: &Connection,
    names: &mut StreamNames,
    filter: &Filter,
) -> Step<FilterMatches> {
    let mut matched = Matched::default();
    walk(conn, names, filter, -1, |row, _, stream| {
        let _ = matched.look(filter, row, stream);
        Ok(Walk::On)
    })?;
    Ok(matched.end())
}

/// Dead letters that a filter matches, among a bounded number of rows: every commit waits for this.
fn count_some(conn: &Connection, names: &mut StreamNames, filter: &Filter) -> Step<u64> {
    let (mut looked, mut meant) = (0, 0);
    walk(conn, names, filter, -1, |row, _, stream| {
        if looked == LOOKED_MAX {
            return Ok(Walk::Stop);
        }
        looked += 1;
        let is_it =
            died(row, LETTER_CHANGES).and_then(|at| is_meant(filter, row, LETTER_CHANGES, at, stream));
        meant += u64::from(is_it.unwrap_or(false));
        Ok(Walk::On)
    })?;
    Ok(meant)
}

/// How many dead letters a filter matches: from the counts, if it has only queue, tenant and cause.
pub(in crate::stores::sqlite) fn how_many(
    conn: &Connection,
    names: &mut StreamNames,
    filter: &Filter,
) -> Step<u64> {
    if !filter.is_coarse() {
        return count_some(conn, names, filter);
    }
    let letters = conn
        .prepare_cached(
            "SELECT coalesce(sum(letters), 0) FROM redrive_tally JOIN redrive_stream ON id = stream \
             WHERE (?1 IS NULL OR queue = ?1) AND (?2 IS NULL OR tenant = ?2) AND (?3 IS NULL OR cause = ?3)",
        )?
        .query_row(
            params![filter.queue, filter.tenant, filter.cause.map(|CauseId(cause)| signed(cause))],
            |row| row.get(0),
        )?;
    Ok(bits(letters))
}
