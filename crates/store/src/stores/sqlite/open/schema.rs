//! The tables, as numbered steps.
//!
//! `redrive_meta` has the number of the last step that was done. Every step is one transaction, with its number in it,
//! so an interrupted step did not happen and is done at the next opening. A file with a number that this program does
//! not know is refused.
//!
//! The tables:
//!
//! | table | a row is | written |
//! |---|---|---|
//! | `redrive_meta` | the one row of this file: schema, incarnation, epoch, whether it was stopped cleanly, how many died | when the owner changes, and with deaths |
//! | `redrive_queue` | a queue as it was declared | when it is declared |
//! | `redrive_stream` | one tenant's part of a queue, and its next number | once a commit with publishes |
//! | `redrive_fresh` | an event that may run and never ran | once, and deleted |
//! | `redrive_tracked` | any other event: it waits, is blocked by the one before, held back, leased, dead or discarded | with every change |
//! | `redrive_dedupe` | an identity, and whether its event was taken away or edited | once, then, and when its event ends late |
//! | `redrive_ending` | how an event ended, if that is not simply "done" | once |
//! | `redrive_inbox` | what a handler has processed | once |
//! | `redrive_clock` | the latest moment, as of the last mark | every half minute, and at a clean end |
//! | `redrive_kept` | bytes that a program built on the store keeps in it | by that program |
//! | `redrive_request` | the idempotency record of a request | when it is claimed, renewed, ended |
//! | `redrive_rule` | an active rule | by commands |
//! | `redrive_job` | a bulk change to dead letters | by commands, by its steps, and once a commit in which some of its dead letters end |
//! | `redrive_tally` | dead letters of one cause in one stream, counted | once a commit in which some of them die or are redriven |
//! | `redrive_audit` | a command, and its operator | once |
//!
//! So an event that succeeds at its first attempt costs one dedupe record, one row in `redrive_fresh`, and that row's
//! deletion. A seq consists of the stream's number and a count within it, so that both tables of events are in the
//! order of streams and grow at one place in each.

use std::path::Path;

use rusqlite::{Connection, OptionalExtension};

use crate::error::StoreError;

/// The number of the last step that this program knows.
#[expect(clippy::cast_possible_truncation, reason = "there are a few steps")]
pub(in crate::stores::sqlite) const KNOWN: u32 = STEPS.len() as u32;

/// The steps. Each sets its own number; a step that was released is never changed.
const STEPS: &[&str] = &[include_str!("schema/1.sql")];

/// Brings the tables up to date.
pub(in crate::stores::sqlite) fn migrate(conn: &mut Connection, path: &Path) -> Result<(), SchemaError> {
    loop {
        // The number is read in the transaction that raises it: two processes may open at once.
        let tx = conn.transaction_with_behavior(rusqlite::TransactionBehavior::Immediate)?;
        let found = number(&tx)?;
        if found > KNOWN {
            return Err(StoreError::Newer { path: path.to_owned(), found, known: KNOWN }.into());
        }
        let Some(step) = STEPS.get(found as usize) else { return Ok(()) };
        tx.execute_batch(step)?;
        tx.execute("UPDATE redrive_meta SET schema = ?1", [found + 1])?;
        tx.commit()?;
    }
}

/// Whether the file is up to date, without writing to it: the usual case, in which no other process is blocked.
pub(in crate::stores::sqlite) fn is_current(conn: &Connection) -> rusqlite::Result<bool> {
    Ok(number(conn)? == KNOWN)
}

/// Whether the file is a window, which needs the file for itself.
pub(in crate::stores::sqlite) fn is_window(conn: &Connection) -> rusqlite::Result<bool> {
    has_table(conn, "redrive_window_meta")
}

pub(in crate::stores::sqlite) fn has_table(conn: &Connection, name: &str) -> rusqlite::Result<bool> {
    let there = "SELECT 1 FROM sqlite_schema WHERE type = 'table' AND name = ?1";
    Ok(conn.query_row(there, [name], |_| Ok(())).optional()?.is_some())
}

pub(in crate::stores::sqlite) fn number(conn: &Connection) -> rusqlite::Result<u32> {
    if !has_table(conn, "redrive_meta")? {
        return Ok(0);
    }
    conn.query_row("SELECT schema FROM redrive_meta", [], |row| row.get(0))
}

/// Why the tables could not be brought up to date.
#[derive(Debug)]
pub(in crate::stores::sqlite) enum SchemaError {
    Sql(rusqlite::Error),
    Store(StoreError),
}

impl From<rusqlite::Error> for SchemaError {
    fn from(error: rusqlite::Error) -> Self {
        Self::Sql(error)
    }
}

impl From<StoreError> for SchemaError {
    fn from(error: StoreError) -> Self {
        Self::Store(error)
    }
}
