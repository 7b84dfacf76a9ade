//! Dead letters by filter, a row at a time and without understanding more of it than the filter asks for.
//!
//! They are walked in the order of their seqs, over an index that has them alone, or those of one cause. What a
//! filter says of stream and cause bounds the walk; the rest is looked at.

use redrive_core::entry::{Seq, StreamId};
use redrive_core::triage::{CauseId, Filter};
use rusqlite::{Connection, OptionalExtension, Row, params};

use super::faults::Step;
use super::names::Names;
use super::numbers::{bits, signed, span, stream_of};
use super::rows::Stream;
use crate::found::Matching;
pub(super) use crate::stores::shared::letters::{LETTER_CHANGES, LOOKED_MAX, died, is_meant};
use crate::stores::shared::letters::{Matched, letter_columns};

/// Whether to look at the next row.
pub(super) enum Walk {
    On,
    Stop,
}

/// Looks at dead letters after a place, in the order of their seqs. Whether it came to the end.
pub(super) fn walk(
    conn: &Connection,
    names: &mut Names,
    filter: &Filter,
    after: i64,
    mut look: impl FnMut(&Row<'_>, Seq, &Stream) -> Step<Walk>,
) -> Step<bool> {
    let mut select = match filter.cause {
        None => conn.prepare_cached(concat!(
            "SELECT ",
            letter_columns!(),
            " FROM redrive_held INDEXED BY redrive_held_dead \
             WHERE state IN (2, 3) AND seq > ?1 AND seq <= ?2 ORDER BY seq"
        ))?,
        Some(_) => conn.prepare_cached(concat!(
            "SELECT ",
            letter_columns!(),
            " FROM redrive_held INDEXED BY redrive_held_cause \
             WHERE state IN (2, 3) AND cause = ?3 AND seq > ?1 AND seq <= ?2 ORDER BY seq"
        ))?,
    };
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

/// The first and the last seqs of the streams that a filter means; where it names an id, that one of each.
pub(super) fn spans(conn: &Connection, filter: &Filter) -> Step<Vec<(i64, i64)>> {
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
            .prepare_cached("SELECT seq FROM redrive_receipt WHERE stream = ?1 AND id = ?2")?
            .query_row(params![stream.0, id], |row| row.get(0))
            .optional()?;
        spans.extend(seq.map(|seq| (seq, seq)));
    }
    Ok(spans)
}

/// What a filter means, in the transaction that is open.
pub(super) fn matching(conn: &Connection, names: &mut Names, filter: &Filter) -> Step<Matching> {
    let mut matched = Matched::default();
    walk(conn, names, filter, -1, |row, _, stream| {
        let _ = matched.look(filter, row, stream);
        Ok(Walk::On)
    })?;
    Ok(matched.end())
}

/// Letters that a filter means, as far as so many rows tell: everybody's commit waits for this.
fn count_some(conn: &Connection, names: &mut Names, filter: &Filter) -> Step<u64> {
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

/// How many dead letters a filter means: counted already, where it says nothing but queue, tenant and cause.
pub(super) fn how_many(conn: &Connection, names: &mut Names, filter: &Filter) -> Step<u64> {
    if !filter.is_coarse() {
        return count_some(conn, names, filter);
    }
    let letters = conn
        .prepare_cached(
            "SELECT coalesce(sum(letters), 0) FROM redrive_group JOIN redrive_stream ON id = stream \
             WHERE (?1 IS NULL OR queue = ?1) AND (?2 IS NULL OR tenant = ?2) AND (?3 IS NULL OR cause = ?3)",
        )?
        .query_row(
            params![filter.queue, filter.tenant, filter.cause.map(|CauseId(cause)| signed(cause))],
            |row| row.get(0),
        )?;
    Ok(bits(letters))
}
