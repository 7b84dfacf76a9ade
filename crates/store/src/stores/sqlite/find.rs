//! Finding: what is known of an identity.

use redrive_core::Moment;
use redrive_core::event::State;
use rusqlite::{Connection, OptionalExtension, params};

use super::faults::{Step, damaged};
use super::held::{Held, Stand};
use super::names::{Names, find_stream};
use super::numbers::{column, span, stream_of};
use super::receipt::Receipt;
use super::rows::{Damage, EventRow, event_columns};
use crate::found::Found;

/// What is known of an identity, in the transaction that is open.
pub(super) fn find(
    conn: &Connection,
    names: &mut Names,
    (tenant, queue, id): (&str, &str, &str),
    now: Moment,
) -> Step<Option<Found>> {
    let Some(stream) = find_stream(conn, queue, tenant)? else { return Ok(None) };
    match Receipt::find(conn, stream, id)? {
        Some(receipt) => found(conn, names, receipt, now).map(Some),
        None => Ok(None),
    }
}

/// What became of the event that has this receipt.
pub(super) fn found(conn: &Connection, names: &mut Names, receipt: Receipt, now: Moment) -> Step<Found> {
    let seq = receipt.seq;
    let Some(stream) = names.of(conn, stream_of(seq))? else {
        return Err(damaged("redrive_stream", seq.0).into());
    };
    let live = conn
        .prepare_cached(concat!("SELECT ", event_columns!(), " FROM redrive_live WHERE seq = ?1"))?
        .query_row([column(seq.0)], |row| Ok(EventRow::read(row, &stream)))
        .optional()?;
    if let Some(live) = live {
        let row = live.map_err(|Damage| damaged("redrive_live", seq.0))?;
        return Ok(ready(&row));
    }
    if let Some(held) = Held::find(conn, seq, &stream)? {
        let held = held.map_err(|Damage| damaged("redrive_held", seq.0))?;
        return Ok(living(conn, &held, now)?);
    }
    Ok(ended(receipt))
}

/// An event that may run and never ran.
pub(super) fn ready(row: &EventRow) -> Found {
    Found {
        due: Some(row.event.when.moment(row.published)),
        ..Found::new(row.seq, State::Ready, row.published)
    }
}

/// An event that is held.
pub(super) fn living(conn: &Connection, held: &Held, now: Moment) -> rusqlite::Result<Found> {
    let progress = &held.progress;
    let state = match held.stand {
        Stand::DeadHolding | Stand::DeadPassed => State::Dead,
        Stand::Blocked if is_parked(conn, held)? => State::Parked,
        Stand::Waits if progress.due <= now => State::Ready,
        Stand::Blocked | Stand::Waits => State::Waiting,
    };
    Ok(Found {
        rev: held.rev,
        due: (!held.stand.is_dead()).then_some(progress.due),
        ended: held.died,
        attempts: progress.attempts,
        reason: held.reason,
        story: progress.story.clone(),
        holds: held.stand == Stand::DeadHolding,
        ..Found::new(held.row.seq, state, held.row.published)
    })
}

/// Whether the head of its key is dead.
fn is_parked(conn: &Connection, held: &Held) -> rusqlite::Result<bool> {
    let Some(key) = held.row.key() else { return Ok(false) };
    let (first, _) = span(stream_of(held.row.seq));
    conn.prepare_cached(
        "SELECT EXISTS (SELECT 1 FROM redrive_held WHERE key = ?1 AND state = 2 AND seq >= ?2 AND seq < ?3)",
    )?
    .query_row(params![key, first, column(held.row.seq.0)], |row| row.get(0))
}

fn ended(receipt: Receipt) -> Found {
    let Receipt { seq, published, end, .. } = receipt;
    // What left nothing behind was done at the first attempt.
    let plain = Found { attempts: 1, ..Found::new(seq, State::Done, published) };
    match end {
        None => plain,
        Some(end) => Found {
            state: end.state,
            ended: Some(end.at),
            attempts: end.attempts,
            story: end.story,
            result: end.result,
            ..plain
        },
    }
}
