//! Groups by type and by key: counted when somebody asks, of so many letters.
//!
//! Causes, queues and tenants are few, and counted with every death. There may be as many keys as letters, and a
//! type is somewhere in what the event says of itself: to count either with every death and every end of one would
//! cost each of them a row more, also where letters are put back a thousand at once, which reads nothing of them now.
//! So nothing is kept, and a look reads letters: the newest of every stream, of each stream as large a part as its
//! letters are of all. Up to [`LOOKED_MAX`] letters all of them are read and the counts are exact. Where there are
//! more, each group says how many were looked at. Who wants to know it exactly asks for one queue or one tenant.

use std::collections::HashMap;

use redrive_core::entry::StreamId;
use rusqlite::{Connection, params};

use super::super::faults::Step;
use super::super::letters::LOOKED_MAX;
use super::super::names::Names;
use super::super::numbers::{bits, column, span, to_moment};
use crate::operate::{Group, GroupBy, GroupQuery};
use crate::stores::shared::group::{Merged, Tally, page};
use crate::stores::shared::rows::kind_of;

/// How many bytes of payloads may lie in the way of types, which are behind them in a row: some ten milliseconds.
const BYTES_MAX: u64 = 32 << 20;

/// How many letters there are, and may be looked at.
struct Share {
    stream: StreamId,
    queue: String,
    letters: u64,
}

/// Dead letters, put together by what they say themselves, in the transaction that is open.
pub(super) fn groups(conn: &Connection, names: &mut Names, query: &GroupQuery) -> Step<Vec<Group>> {
    let shares = shares(conn, names, query)?;
    let all: u64 = shares.iter().map(|share| share.letters).sum();
    let looks = (LOOKED_MAX as u64).min(all);
    let mut merged: HashMap<String, Merged> = HashMap::new();
    let mut looked = 0;
    for share in &shares {
        // At least one of each, so that none is left out for being small.
        let part = |most: u64| {
            let part = (u128::from(most) * u128::from(share.letters)).div_ceil(u128::from(all));
            u64::try_from(part).unwrap_or(most)
        };
        looked += look(conn, query.by, share, part(looks), part(BYTES_MAX), &mut merged)?;
    }
    let looked = (looked < all).then_some(looked);
    let groups = merged.into_values().map(|merged| Group { looked, ..merged.end() });
    Ok(page(groups.collect(), query.limit))
}

/// The streams that are asked for, with how many letters each has.
fn shares(conn: &Connection, names: &mut Names, query: &GroupQuery) -> Step<Vec<Share>> {
    let mut select = conn
        .prepare_cached("SELECT stream, sum(letters) FROM redrive_group WHERE letters > 0 GROUP BY stream")?;
    let mut rows = select.query([])?;
    let mut shares = Vec::new();
    while let Some(row) = rows.next()? {
        let Some(stream) = names.of(conn, StreamId(row.get(0)?))? else { continue };
        if query.is_of(&stream.queue, &stream.tenant) {
            let (queue, letters) = (stream.queue.clone(), bits(row.get(1)?));
            shares.push(Share { stream: stream.id, queue, letters });
        }
    }
    Ok(shares)
}

/// Counts the newest letters of a stream. How many it looked at.
fn look(
    conn: &Connection,
    by: GroupBy,
    share: &Share,
    most: u64,
    bytes_max: u64,
    merged: &mut HashMap<String, Merged>,
) -> Step<u64> {
    let mut select = conn.prepare_cached(match by {
        GroupBy::Key => {
            "SELECT coalesce(key, tag), state, died, 0 FROM redrive_held INDEXED BY redrive_held_dead \
             WHERE state IN (2, 3) AND seq BETWEEN ?1 AND ?2 ORDER BY seq DESC LIMIT ?3"
        }
        _ => {
            "SELECT extra, state, died, length(payload) FROM redrive_held INDEXED BY redrive_held_dead \
             WHERE state IN (2, 3) AND seq BETWEEN ?1 AND ?2 ORDER BY seq DESC LIMIT ?3"
        }
    })?;
    let (first, last) = span(share.stream);
    let mut rows = select.query(params![first, last, column(most)])?;
    let (mut looked, mut bytes) = (0, 0);
    while bytes <= bytes_max
        && let Some(row) = rows.next()?
    {
        looked += 1;
        bytes += bits(row.get(3)?);
        let title = match by {
            GroupBy::Key => row.get::<_, Option<String>>(0)?,
            // What cannot be read is among those without one: it is still a letter.
            _ => row.get_ref(0)?.as_blob_or_null().ok().flatten().and_then(kind_of),
        };
        let title = title.unwrap_or_default();
        let died = to_moment(row.get::<_, Option<i64>>(2)?.unwrap_or_default());
        let mut tally = Tally::new(String::new(), died);
        (tally.letters, tally.holding) = (1, u64::from(row.get::<_, i64>(1)? == 2));
        let into = match merged.get_mut(&title) {
            Some(into) => into,
            None => merged.entry(title.clone()).or_insert(Merged::new(None, title, &tally)),
        };
        into.add(&tally, &share.queue);
    }
    Ok(looked)
}
