//! Counting events, by queue and state. It reads every event: an index for it would cost each of them.

use std::collections::{BTreeMap, BTreeSet};

use redrive_core::event::State;
use redrive_core::queue_entry::StreamId;
use rusqlite::{Connection, params};

use crate::event_status::EventCount;
use crate::stores::shared::numbers::{bits, from_moment, span};
use crate::stores::shared::tracked::states;
use crate::stores::sqlite::events::stream_names::{StreamNames, find_stream};
use crate::stores::sqlite::faults::Step;
use crate::stores::sqlite::operate::rules::{View, state_under};

type Counts = BTreeMap<(StreamId, State), u64>;

/// How many events there are, in the open transaction.
pub(in crate::stores::sqlite) fn count(
    conn: &Connection,
    names: &mut StreamNames,
    view: &View,
) -> Step<Vec<EventCount>> {
    let mut counts = Counts::new();
    let mut select =
        conn.prepare_cached("SELECT seq >> 40, count(*) FROM redrive_fresh GROUP BY seq >> 40")?;
    let mut rows = select.query([])?;
    while let Some(row) = rows.next()? {
        *counts.entry((StreamId(row.get(0)?), State::Ready)).or_default() += bits(row.get(1)?);
    }
    let mut select = conn.prepare_cached(concat!(
        "SELECT stream, CASE WHEN state IN (",
        states!(DeadHolding, DeadPassed),
        ") THEN 3 WHEN state IN (",
        states!(Discarded, Leased),
        ") THEN state \
         WHEN state = ",
        states!(Blocked),
        " AND EXISTS (SELECT 1 FROM redrive_tracked head WHERE head.key = tracked.key \
         AND head.state = ",
        states!(DeadHolding),
        " AND head.stream = tracked.stream AND head.seq < tracked.seq) THEN 2 \
         WHEN state = ",
        states!(Waiting),
        " AND due <= ?1 THEN 0 ELSE 1 END AS place, count(*) \
         FROM redrive_tracked tracked GROUP BY stream, place"
    ))?;
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
    Ok(counts.map(|((queue, state), events)| EventCount { queue, state, events }).collect())
}

/// Events of keys that rules withhold were counted as if they waited.
fn withheld(conn: &Connection, view: &View, counts: &mut Counts) -> Step<()> {
    let rules = view.rules.controls.list.iter().map(|control| &control.rule);
    let mut seen = BTreeSet::new();
    for rule in rules {
        // The first rule over a key determines the state of its events.
        let Some(key) = rule.key().filter(|key| seen.insert(*key)) else { continue };
        let (queue, tenant, key) = key;
        let Some(stream) = find_stream(conn, queue, tenant)? else { continue };
        let (first, last) = span(stream);
        let events = conn
            .prepare_cached(concat!(
                "SELECT count(*) FROM redrive_tracked tracked WHERE key = ?1 AND state IN (",
                states!(Blocked, Withheld),
                ") AND seq BETWEEN ?2 AND ?3 \
                 AND NOT EXISTS (SELECT 1 FROM redrive_tracked head WHERE head.key = ?1 AND head.state = ",
                states!(DeadHolding),
                " \
                 AND head.seq BETWEEN ?2 AND tracked.seq)"
            ))?
            .query_row(params![key, first, last], |row| row.get(0).map(bits))?;
        if let Some(waiting) = counts.get_mut(&(stream, State::Waiting)) {
            *waiting = waiting.saturating_sub(events);
        }
        *counts.entry((stream, state_under(rule))).or_default() += events;
    }
    Ok(())
}
