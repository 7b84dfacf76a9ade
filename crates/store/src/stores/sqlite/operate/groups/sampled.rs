//! Groups by type and by key: counted on request, over a bounded number of dead letters.
//!
//! Causes, queues and tenants are few, and counted with every death. There may be as many keys as dead letters, and a
//! type is somewhere in the event's headers: counting either with every death and every redrive would cost each of
//! them another row, also when a job redrives a thousand dead letters at once without reading them. So there are no
//! counts, and a query samples the newest dead letters of every stream, in proportion to the stream's share of all
//! dead letters. Up to [`LOOKED_MAX`] dead letters it reads all of them and the counts are exact. Beyond, each group
//! has the size of the sample. For exact counts, query one queue or one tenant.

use std::collections::HashMap;

use redrive_core::queue_entry::StreamId;
use rusqlite::{Connection, params};

use crate::operate::{Group, GroupBy, GroupQuery};
use crate::stores::shared::group::{Merged, Tally, page};
use crate::stores::shared::numbers::{bits, column, span, to_moment};
use crate::stores::shared::rows::kind_of;
use crate::stores::shared::tracked::states;
use crate::stores::sqlite::events::stream_names::StreamNames;
use crate::stores::sqlite::faults::Step;
use crate::stores::sqlite::operate::letters::LOOKED_MAX;

/// How many bytes of payloads may be skipped to reach types, which are behind them in a row: some ten milliseconds.
const BYTES_MAX: u64 = 32 << 20;

/// The dead letters of a stream, and how many of them may be read.
struct Share {
    stream: StreamId,
    queue: String,
    letters: u64,
}

/// Dead letters grouped by their own properties, in the open transaction.
pub(in crate::stores::sqlite) fn groups(
    conn: &Connection,
    names: &mut StreamNames,
    query: &GroupQuery,
) -> Step<Vec<Group>> {
    let shares = shares(conn, names, query)?;
    let all: u64 = shares.iter().map(|share| share.letters).sum();
    let looks = (LOOKED_MAX as u64).min(all);
    let mut merged: HashMap<String, Merged> = HashMap::new();
    let mut looked = 0;
    for share in &shares {
        // At least one of each, so that no small stream is left out.
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

/// The streams of the query, with how many dead letters each has.
fn shares(conn: &Connection, names: &mut StreamNames, query: &GroupQuery) -> Step<Vec<Share>> {
    let mut select = conn
        .prepare_cached("SELECT stream, sum(letters) FROM redrive_tally WHERE letters > 0 GROUP BY stream")?;
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

/// Counts the newest dead letters of a stream. Returns how many it read.
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
            concat!("SELECT coalesce(key, tag), state, died, 0 FROM redrive_tracked INDEXED BY redrive_tracked_dead \
             WHERE state IN (", states!(DeadHolding, DeadPassed), ") AND seq BETWEEN ?1 AND ?2 ORDER BY seq DESC LIMIT ?3")
        }
        _ => {
            concat!("SELECT extra, state, died, length(payload) FROM redrive_tracked INDEXED BY redrive_tracked_dead \
             WHERE state IN (", states!(DeadHolding, DeadPassed), ") AND seq BETWEEN ?1 AND ?2 ORDER BY seq DESC LIMIT ?3")
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
            // An unreadable value counts as none: the event is still a dead letter.
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
