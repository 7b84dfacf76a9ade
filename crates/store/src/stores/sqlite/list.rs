//! Listing and counting what lives.
//!
//! Both walk the tables themselves, in the order of seqs, because an index for them would cost every event. A
//! page begins where the one before ended, so paging through a million events reads each once; a count reads
//! them all.

use std::collections::BTreeMap;
use std::sync::Arc;

use redrive_core::entry::{Seq, StreamId};
use redrive_core::event::State;
use redrive_core::{Event, Moment};
use rusqlite::{Connection, params};

use super::faults::{Step, damaged, damaged_row};
use super::find::{living, ready};
use super::held::{Held, held_columns};
use super::names::Names;
use super::numbers::{bits, column, from_moment, span, stream_of};
use super::rows::{Damage, EventRow, Stream, event_columns};
use crate::found::{Count, Found, Listed, Query};

/// How many events are on a page where nobody says.
const PAGE: usize = 100;
/// How many events a page may have.
const PAGE_MAX: usize = 10_000;

type Listing = (Arc<Event>, Found);

/// A page of events, in the transaction that is open.
pub(super) fn list(conn: &Connection, names: &mut Names, query: &Query, now: Moment) -> Step<Listed> {
    let limit = if query.limit == 0 { PAGE } else { query.limit.min(PAGE_MAX) };
    let after = query.after.map_or(-1, |seq| column(seq.0));
    let mut events: Vec<Listing> = Vec::new();
    let mut damage = Vec::new();
    if query.state.is_some_and(State::is_ended) {
        return Ok(Listed::default());
    }
    // One more than asked for, to see whether there is a next page.
    for (first, last) in spans(conn, query)? {
        if last <= after {
            continue;
        }
        let room = limit + 1 - events.len();
        if room == 0 {
            break;
        }
        let range = (first.max(after + 1), last);
        let mut part = Vec::new();
        if query.state.is_none_or(|state| state == State::Ready) {
            list_live(conn, names, range, room, &mut part, &mut damage)?;
        }
        list_held(conn, names, range, room, query.state, now, (&mut part, &mut damage))?;
        part.sort_by_key(|(_, found)| found.seq);
        part.truncate(room);
        events.extend(part);
    }
    let is_more = events.len() > limit;
    events.truncate(limit);
    let next = events.last().map(|(_, found)| found.seq).filter(|_| is_more);
    Ok(Listed { events, next, damaged: damage })
}

/// Where the asked-for events are.
fn spans(conn: &Connection, query: &Query) -> Step<Vec<(i64, i64)>> {
    if query.filter.queue.is_none() && query.filter.tenant.is_none() {
        return Ok(vec![(0, i64::MAX)]);
    }
    let mut select = conn.prepare_cached(
        "SELECT id FROM redrive_stream WHERE (?1 IS NULL OR queue = ?1) AND (?2 IS NULL OR tenant = ?2) \
         ORDER BY id",
    )?;
    let rows = select
        .query_map(params![query.filter.queue, query.filter.tenant], |row| Ok(span(StreamId(row.get(0)?))))?;
    Ok(rows.collect::<rusqlite::Result<_>>()?)
}

fn list_live(
    conn: &Connection,
    names: &mut Names,
    (first, last): (i64, i64),
    room: usize,
    into: &mut Vec<Listing>,
    damage: &mut Vec<String>,
) -> Step<()> {
    let mut select = conn.prepare_cached(concat!(
        "SELECT ",
        event_columns!(),
        " FROM redrive_live WHERE seq BETWEEN ?1 AND ?2 ORDER BY seq"
    ))?;
    let mut rows = select.query([first, last])?;
    for _ in 0..room {
        let Some(row) = rows.next()? else { break };
        let seq = bits(row.get(0)?);
        let stream = stream(conn, names, seq)?;
        match EventRow::read(row, &stream) {
            Ok(read) => into.push((Arc::clone(&read.event), ready(&read))),
            Err(Damage) => damage.push(damaged_row("redrive_live", seq)),
        }
    }
    Ok(())
}

fn list_held(
    conn: &Connection,
    names: &mut Names,
    (first, last): (i64, i64),
    room: usize,
    state: Option<State>,
    now: Moment,
    (into, damage): (&mut Vec<Listing>, &mut Vec<String>),
) -> Step<()> {
    // Dead letters are looked for most, and are few among many that wait: they have an index.
    let mut select = if state == Some(State::Dead) {
        conn.prepare_cached(concat!(
            "SELECT ",
            held_columns!(),
            " FROM redrive_held INDEXED BY redrive_held_dead \
             WHERE state >= 2 AND seq BETWEEN ?1 AND ?2 ORDER BY seq"
        ))?
    } else {
        conn.prepare_cached(concat!(
            "SELECT ",
            held_columns!(),
            " FROM redrive_held WHERE seq BETWEEN ?1 AND ?2 ORDER BY seq"
        ))?
    };
    let mut rows = select.query([first, last])?;
    let mut found = 0;
    while let Some(row) = rows.next()? {
        let seq = bits(row.get(0)?);
        let stream = stream(conn, names, seq)?;
        let Ok(held) = Held::read(row, &stream) else {
            damage.push(damaged_row("redrive_held", seq));
            continue;
        };
        let known = living(conn, &held, now)?;
        if state.is_none_or(|state| state == known.state) {
            into.push((held.row.event, known));
            found += 1;
        }
        if found == room {
            break;
        }
    }
    Ok(())
}

fn stream(conn: &Connection, names: &mut Names, seq: u64) -> Step<Arc<Stream>> {
    let stream = names.of(conn, stream_of(Seq(seq)))?;
    Ok(stream.ok_or_else(|| damaged("redrive_stream", stream_of(Seq(seq)).0))?)
}

/// How many events there are, in the transaction that is open.
pub(super) fn count(conn: &Connection, names: &mut Names, now: Moment) -> Step<Vec<Count>> {
    let mut counts: BTreeMap<(String, State), u64> = BTreeMap::new();
    let mut add = |stream: u32, state: State, events: i64| -> Step<()> {
        if let Some(stream) = names.of(conn, StreamId(stream))? {
            *counts.entry((stream.queue.clone(), state)).or_default() += bits(events);
        }
        Ok(())
    };
    let mut select =
        conn.prepare_cached("SELECT seq >> 40, count(*) FROM redrive_live GROUP BY seq >> 40")?;
    let mut rows = select.query([])?;
    while let Some(row) = rows.next()? {
        add(row.get(0)?, State::Ready, row.get(1)?)?;
    }
    let mut select = conn.prepare_cached(
        "SELECT stream, CASE WHEN state >= 2 THEN 3 \
         WHEN state = 1 AND EXISTS (SELECT 1 FROM redrive_held head WHERE head.key = held.key \
         AND head.state = 2 AND head.stream = held.stream AND head.seq < held.seq) THEN 2 \
         WHEN state = 0 AND due <= ?1 THEN 0 ELSE 1 END AS place, count(*) \
         FROM redrive_held held GROUP BY stream, place",
    )?;
    let mut rows = select.query([from_moment(now)])?;
    while let Some(row) = rows.next()? {
        let state = match row.get::<_, i64>(1)? {
            0 => State::Ready,
            1 => State::Waiting,
            2 => State::Parked,
            _ => State::Dead,
        };
        add(row.get(0)?, state, row.get(2)?)?;
    }
    let counts = counts.into_iter();
    Ok(counts.map(|((queue, state), events)| Count { queue, state, events }).collect())
}
