//! Counting what there is, by queue and state. It reads every event: an index for it would cost each of them.

use std::collections::{BTreeMap, BTreeSet};

use redrive_core::entry::StreamId;
use redrive_core::event::State;
use rusqlite::{Connection, params};

use super::faults::Step;
use super::names::{Names, find_stream};
use super::numbers::{bits, from_moment, span};
use super::rules::{View, held_by};
use crate::found::Count;

type Counts = BTreeMap<(StreamId, State), u64>;

/// How many events there are, in the transaction that is open.
pub(super) fn count(conn: &Connection, names: &mut Names, view: &View) -> Step<Vec<Count>> {
    let mut counts = Counts::new();
    let mut select =
        conn.prepare_cached("SELECT seq >> 40, count(*) FROM redrive_live GROUP BY seq >> 40")?;
    let mut rows = select.query([])?;
    while let Some(row) = rows.next()? {
        *counts.entry((StreamId(row.get(0)?), State::Ready)).or_default() += bits(row.get(1)?);
    }
    let mut select = conn.prepare_cached(
        "SELECT stream, CASE WHEN state IN (2, 3) THEN 3 WHEN state IN (5, 6) THEN state \
         WHEN state = 1 AND EXISTS (SELECT 1 FROM redrive_held head WHERE head.key = held.key \
         AND head.state = 2 AND head.stream = held.stream AND head.seq < held.seq) THEN 2 \
         WHEN state = 0 AND due <= ?1 THEN 0 ELSE 1 END AS place, count(*) \
         FROM redrive_held held GROUP BY stream, place",
    )?;
    let mut rows = select.query([from_moment(view.now)])?;
    while let Some(row) = rows.next()? {
        let state = match row.get::<_, i64>(1)? {
            0 => State::Ready,
            1 => State::Waiting,
            2 => State::Parked,
            3 => State::Dead,
            5 => State::Discarded,
            _ => State::Running,
        };
        *counts.entry((StreamId(row.get(0)?), state)).or_default() += bits(row.get(2)?);
    }
    withheld(conn, view, &mut counts)?;

    let mut by_queue: BTreeMap<(String, State), u64> = BTreeMap::new();
    for ((id, state), events) in counts.into_iter().filter(|(_, events)| *events > 0) {
        let Some(stream) = names.of(conn, id)? else { continue };
        let is_free = matches!(state, State::Ready | State::Waiting | State::Parked);
        let state = if is_free && view.is_quarantined(&stream) { State::Quarantined } else { state };
        *by_queue.entry((stream.queue.clone(), state)).or_default() += events;
    }
    let counts = by_queue.into_iter();
    Ok(counts.map(|((queue, state), events)| Count { queue, state, events }).collect())
}

/// Events of keys that rules withhold were counted as if they waited.
fn withheld(conn: &Connection, view: &View, counts: &mut Counts) -> Step<()> {
    let rules = view.rules.controls.list.iter().map(|control| &control.rule);
    let mut seen = BTreeSet::new();
    for rule in rules {
        // The first rule over a key is the one that its events tell of.
        let Some(key) = rule.key().filter(|key| seen.insert(*key)) else { continue };
        let (queue, tenant, key) = key;
        let Some(stream) = find_stream(conn, queue, tenant)? else { continue };
        let (first, last) = span(stream);
        let events = conn
            .prepare_cached(
                "SELECT count(*) FROM redrive_held held WHERE key = ?1 AND state IN (1, 4) AND seq BETWEEN ?2 AND ?3 \
                 AND NOT EXISTS (SELECT 1 FROM redrive_held head WHERE head.key = ?1 AND head.state = 2 \
                 AND head.seq BETWEEN ?2 AND held.seq)",
            )?
            .query_row(params![key, first, last], |row| row.get(0).map(bits))?;
        if let Some(waiting) = counts.get_mut(&(stream, State::Waiting)) {
            *waiting = waiting.saturating_sub(events);
        }
        *counts.entry((stream, held_by(rule))).or_default() += events;
    }
    Ok(())
}
