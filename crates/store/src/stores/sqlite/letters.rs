//! Dead letters by filter, a row at a time and without understanding more of it than the filter asks for.
//!
//! They are walked in the order of their seqs, over an index that has them alone, or those of one cause. What a
//! filter says of stream and cause bounds the walk; the rest is looked at.

use std::collections::{BTreeMap, BTreeSet};

use redrive_core::entry::{Seq, StreamId};
use redrive_core::triage::{CauseId, Filter};
use rusqlite::{Connection, OptionalExtension, Row, params};

use super::columns::change_columns;
use super::faults::Step;
use super::names::Names;
use super::numbers::{bits, signed, span, stream_of};
use super::rows::{Damage, Stream};
use super::stories::{is_unsure, read_story};
use crate::found::Matching;

/// How many rows are looked at for one page, or one step of a job: some ten milliseconds.
pub(super) const LOOKED_MAX: usize = 10_000;
/// How many keys are named.
const KEYS_MAX: usize = 20;

/// The columns of a letter: what never changes and is small, and all that changes.
macro_rules! letter_columns {
    () => {
        concat!("seq, id, key, tag, extra IS NOT NULL, ", change_columns!())
    };
}

/// Where the columns that change begin.
pub(super) const LETTER_CHANGES: usize = 5;

// Where they are among those.
const STATE: usize = 1;
const ATTEMPTS: usize = 3;
const STORY: usize = 9;
const REASON: usize = 10;
const DIED: usize = 11;
const CAUSE: usize = 16;
const REDRIVEN: usize = 19;

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

/// Whether a filter means a row whose columns that change begin at `from`; it died, or was published, at `at`.
/// The columns before are seq, id, key and tag.
pub(super) fn is_meant(
    filter: &Filter,
    row: &Row<'_>,
    from: usize,
    at: i64,
    stream: &Stream,
) -> Result<bool, Damage> {
    let text = |n: usize| {
        let text = row.get_ref(n).map_err(|_| Damage)?;
        text.as_str_or_null().map_err(|_| Damage)
    };
    let number = |n: usize| row.get::<_, i64>(from + n).map_err(|_| Damage);
    let is = |wanted: &Option<String>, is: &str| wanted.as_deref().is_none_or(|wanted| wanted == is);
    let key = text(2)?.or(text(3)?);
    let id = text(1)?.ok_or(Damage)?;
    let at = u64::try_from(at).unwrap_or_default();
    let is_coarse = is(&filter.queue, &stream.queue)
        && is(&filter.tenant, &stream.tenant)
        && is(&filter.id, id)
        && filter.key.as_deref().is_none_or(|wanted| key == Some(wanted))
        && filter.since_ns.is_none_or(|since| at >= since)
        && filter.before_ns.is_none_or(|before| at < before);
    if !is_coarse {
        return Ok(false);
    }
    if let Some(CauseId(cause)) = filter.cause
        && row.get::<_, Option<i64>>(from + CAUSE).map_err(|_| Damage)? != Some(signed(cause))
    {
        return Ok(false);
    }
    if let Some(word) = filter.reason.as_deref()
        && (!is_letter(row, from)? || text(from + REASON)? != Some(word))
    {
        return Ok(false);
    }
    let attempts = number(ATTEMPTS)?;
    if filter.attempts_min.is_some_and(|min| attempts < i64::from(min))
        || filter.attempts_max.is_some_and(|max| attempts > i64::from(max))
    {
        return Ok(false);
    }
    filter.text.as_deref().map_or(Ok(true), |wanted| has_text(wanted, id, key, text(from + STORY)?))
}

/// Whether a row is a dead letter's.
pub(super) fn is_letter(row: &Row<'_>, from: usize) -> Result<bool, Damage> {
    row.get::<_, i64>(from + STATE).map(|state| matches!(state, 2 | 3)).map_err(|_| Damage)
}

/// When the event of such a row died.
pub(super) fn died(row: &Row<'_>, from: usize) -> Result<i64, Damage> {
    row.get::<_, Option<i64>>(from + DIED).map(Option::unwrap_or_default).map_err(|_| Damage)
}

fn has_text(wanted: &str, id: &str, key: Option<&str>, story: Option<&str>) -> Result<bool, Damage> {
    let wanted = wanted.to_lowercase();
    let has = |place: &str| place.to_lowercase().contains(&wanted);
    if has(id) || key.is_some_and(has) {
        return Ok(true);
    }
    let Some(story) = story else { return Ok(false) };
    // What JSON writes as it is must be somewhere in the text of the story; only then it is worth reading.
    let is_plain = wanted.bytes().all(|byte| matches!(byte, b' '..=b'~') && byte != b'"' && byte != b'\\');
    if is_plain && !has(story) {
        return Ok(false);
    }
    let story = read_story(Some(story))?;
    let cause =
        story.as_deref().and_then(|story| story.records().rev().find_map(|record| record.cause.as_ref()));
    Ok(cause.is_some_and(|cause| {
        has(&cause.kind) || has(&cause.message) || cause.code.as_deref().is_some_and(has)
    }))
}

/// What a filter means, in the transaction that is open.
pub(super) fn matching(conn: &Connection, names: &mut Names, filter: &Filter) -> Step<Matching> {
    let mut matching = Matching::default();
    let mut streams: BTreeMap<String, u64> = BTreeMap::new();
    let mut keys = BTreeSet::new();
    walk(conn, names, filter, -1, |row, _, stream| {
        let from = LETTER_CHANGES;
        let is_meant = died(row, from).and_then(|died| is_meant(filter, row, from, died, stream));
        // What cannot be read is not counted: nothing will be done to it.
        if !is_meant.unwrap_or(false) {
            return Ok(Walk::On);
        }
        let holds = row.get::<_, i64>(from + STATE)? == 2;
        let is_ordered = row.get_ref(2)? != rusqlite::types::ValueRef::Null;
        let story = row.get_ref(from + STORY)?.as_str_or_null().unwrap_or_default();
        matching.letters += 1;
        matching.keys_blocked += u64::from(holds);
        matching.out_of_order += u64::from(is_ordered && !holds);
        matching.redriven_before += u64::from(row.get::<_, i64>(from + REDRIVEN)? > 0);
        matching.unsure += u64::from(story.is_some_and(is_unsure));
        match streams.get_mut(&stream.queue) {
            Some(letters) => *letters += 1,
            None => drop(streams.insert(stream.queue.clone(), 1)),
        }
        if keys.len() < KEYS_MAX {
            let key: Option<String> = row.get(2)?;
            keys.extend(key.or(row.get(3)?));
        }
        Ok(Walk::On)
    })?;
    matching.queues = streams.into_iter().collect();
    matching.keys = keys.into_iter().collect();
    Ok(matching)
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
