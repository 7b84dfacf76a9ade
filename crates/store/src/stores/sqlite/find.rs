//! Finding: what is known of an identity.

use redrive_core::event::State;
use rusqlite::{Connection, OptionalExtension, params};

use super::faults::{Step, damaged};
use super::held::{Held, Stand};
use super::names::{Names, find_stream};
use super::numbers::{column, span, stream_of};
use super::receipt::Receipt;
use super::rows::{Damage, EventRow, Stream, event_columns};
use super::rules::{View, held_by};
use crate::found::Found;
use crate::stores::shared::acts::discarded;

/// What is known of an identity, in the transaction that is open.
pub(super) fn find(
    conn: &Connection,
    names: &mut Names,
    (tenant, queue, id): (&str, &str, &str),
    view: &View,
) -> Step<Option<Found>> {
    let Some(stream) = find_stream(conn, queue, tenant)? else { return Ok(None) };
    match Receipt::find(conn, stream, id)? {
        Some(receipt) => found(conn, names, receipt, view).map(Some),
        None => Ok(None),
    }
}

/// What became of the event that has this receipt.
pub(super) fn found(conn: &Connection, names: &mut Names, receipt: Receipt, view: &View) -> Step<Found> {
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
        // After an edit, another event is in the place of the first.
        return Ok(if row.event.id == receipt.id { view.ready(&row, &stream) } else { receipt.into_found() });
    }
    if let Some(held) = Held::find(conn, seq, &stream)? {
        let held = held.map_err(|Damage| damaged("redrive_held", seq.0))?;
        if held.row.event.id == receipt.id {
            let known = kept(conn, &held, &stream, view)?;
            return Ok(if held.stand == Stand::Discarded { discarded(known, &receipt) } else { known });
        }
    }
    Ok(receipt.into_found())
}

/// An event that is held. When it was discarded, and until when it can be restored, its receipt knows.
pub(super) fn kept(conn: &Connection, held: &Held, stream: &Stream, view: &View) -> rusqlite::Result<Found> {
    Ok(held.found(place(conn, held, stream, view)?))
}

/// Where an event is that is held.
pub(super) fn place(conn: &Connection, held: &Held, stream: &Stream, view: &View) -> rusqlite::Result<State> {
    Ok(match held.stand {
        Stand::Discarded => State::Discarded,
        Stand::DeadHolding | Stand::DeadPassed => State::Dead,
        Stand::Leased => State::Running,
        Stand::Waits | Stand::Blocked | Stand::Withheld => {
            let rule = held.row.key().and_then(|key| view.rules.withholding(stream, key));
            if view.is_quarantined(stream) {
                State::Quarantined
            } else if held.stand == Stand::Blocked && is_parked(conn, held)? {
                State::Parked
            } else if let Some(rule) = rule {
                held_by(rule)
            } else if held.stand == Stand::Waits && held.progress.due <= view.now {
                State::Ready
            } else {
                State::Waiting
            }
        }
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
