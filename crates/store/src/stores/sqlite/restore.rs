//! From a copy back to a store.
//!
//! What is restored is checked first, all of it: the file itself by SQLite, every event, receipt, end and request by
//! its checksum, and that every event has its receipt. Then it begins a new life; see [`copy`](mod@super::copy).
//!
//! Only what [`copy`](fn@super::copy::copy) made is taken. The file of a store in use, or of one that crashed, is not
//! all of it: what was written last is in the log beside it.

use std::fs::{File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::path::Path;
use std::sync::Arc;

use redrive_core::entry::{Seq, StreamId};
use rusqlite::{Connection, ErrorCode};

use super::copy::{MakeError, fresh, make, new_life, with_ending};
use super::faults::damaged_row;
use super::held::{Held, held_columns};
use super::names::Names;
use super::numbers::{bits, stream_of};
use super::open::cannot;
use super::receipt::{End, Receipt};
use super::record;
use super::rows::{EventRow, event_columns};
use super::schema;
use crate::error::StoreError;

/// Where a database says how it is written, and what it says there while it has a log.
const VERSIONS: usize = 18;
const WITH_LOG: u8 = 2;
/// How many faults are named.
const NAMED: usize = 20;

/// What was restored.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Restored {
    /// Events that have not ended, dead letters among them.
    pub events: u64,
    /// Identities that are remembered.
    pub receipts: u64,
    /// Rows that cannot be what was written: the first twenty, and how many there are. They are not run.
    pub damaged: (Vec<String>, u64),
}

/// Makes a store out of a copy, at a place where there is none. With `even_damaged` also where rows of it are
/// damaged: they are then left alone, and told of by whoever runs them. Blocks for as long as it takes.
///
/// # Errors
/// [`StoreError::Open`] where something is in the way or `from` is no copy, and [`StoreError::Damaged`] where rows are
/// damaged.
pub fn restore(from: &Path, to: &Path, even_damaged: bool) -> Result<Restored, StoreError> {
    if !from.is_file() {
        return Err(cannot(from, "there is no such file", None));
    }
    let mut restored = Restored::default();
    make(to, |part| {
        restored = fill(from, part, even_damaged).map_err(|error| error.of_copy(from))?;
        Ok(())
    })?;
    Ok(restored)
}

/// Fills the file that is made.
fn fill(from: &Path, part: &Path, even_damaged: bool) -> Result<Restored, MakeError> {
    take_over(from, part)?;
    let conn = fresh(part)?;
    let found = schema::number(&conn)?;
    if found == 0 {
        return Err(MakeError::Store(cannot(from, "it is no store of events", None)));
    }
    if found > schema::KNOWN {
        let newer = StoreError::Newer { path: from.to_owned(), found, known: schema::KNOWN };
        return Err(MakeError::Store(newer));
    }
    conn.query_row("PRAGMA journal_mode = DELETE", [], |_| Ok(()))?;
    check_whole(&conn, from)?;
    let restored = check_rows(&conn)?;
    if let (Some(row), false) = (restored.damaged.0.first(), even_damaged) {
        let row = format!("{row} (one of {})", restored.damaged.1);
        return Err(MakeError::Store(StoreError::Damaged { row }));
    }
    new_life(&conn)?;
    Ok(restored)
}

impl MakeError {
    /// What shows in the file that is made, and is a fault of the one that it is made of.
    fn of_copy(self, from: &Path) -> Self {
        let Self::Sql(error) = self else { return self };
        let why = match error.sqlite_error_code() {
            Some(ErrorCode::NotADatabase) => "it is not a SQLite database",
            Some(ErrorCode::DatabaseCorrupt) => "the database is damaged; use an older copy",
            _ => return Self::Sql(error),
        };
        Self::Store(cannot(from, why, Some(error)))
    }
}

/// Takes the bytes of a copy over, into a file that is there already and stays as private as it is.
fn take_over(from: &Path, part: &Path) -> Result<(), MakeError> {
    let is_no_copy = || {
        let why = "it is not a copy but the file of a store, and what was written last may be beside it; make a copy \
                   with `redrive backup`, and restore that";
        MakeError::Store(cannot(from, why, None))
    };
    let has_log = ["-wal", "-journal"]
        .iter()
        .any(|end| with_ending(from, end).metadata().is_ok_and(|log| log.len() > 0));
    if has_log {
        return Err(is_no_copy());
    }
    let mut to = OpenOptions::new().write(true).truncate(true).open(part).map_err(MakeError::Io)?;
    let unread = |error: io::Error| {
        let (path, why) = (from.to_owned(), format!("it cannot be read ({error})"));
        MakeError::Store(StoreError::Open { path, why, source: Some(Arc::new(error)) })
    };
    let mut copy = File::open(from).map_err(unread)?;
    let mut bytes = vec![0; 1 << 20];
    // One by one, because either side may fail, and whoever reads it must know which.
    loop {
        match copy.read(&mut bytes) {
            Ok(0) => break,
            Ok(read) => to.write_all(&bytes[..read]).map_err(MakeError::Io)?,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(unread(error)),
        }
    }
    // Of what was taken over, so that nobody changes it in between. What is too short is no database, and found so.
    let mut head = [0; VERSIONS + 2];
    let is_read = File::open(part).and_then(|mut part| part.read_exact(&mut head)).is_ok();
    let says_log = head.starts_with(b"SQLite format 3\0") && head[VERSIONS..].contains(&WITH_LOG);
    if is_read && says_log { Err(is_no_copy()) } else { Ok(()) }
}

/// Whether the file is one that SQLite wrote.
fn check_whole(conn: &Connection, from: &Path) -> Result<(), MakeError> {
    let said: String = conn.query_row("PRAGMA integrity_check(1)", [], |row| row.get(0))?;
    if said == "ok" {
        return Ok(());
    }
    Err(MakeError::Store(cannot(from, &format!("the database is damaged ({said}); use an older copy"), None)))
}

/// Looks at every row that has a checksum.
fn check_rows(conn: &Connection) -> Result<Restored, MakeError> {
    let (mut restored, mut names) = (Restored::default(), Names::default());
    let (mut named, mut faults) = (Vec::new(), 0);
    let mut damaged = |row: String| {
        if named.len() < NAMED {
            named.push(row);
        }
        faults += 1;
    };
    let tables = [
        ("redrive_live", concat!("SELECT ", event_columns!(), " FROM redrive_live")),
        ("redrive_held", concat!("SELECT ", held_columns!(), " FROM redrive_held")),
    ];
    for (table, select) in tables {
        let mut select = conn.prepare(select)?;
        let mut rows = select.query([])?;
        while let Some(row) = rows.next()? {
            let seq: i64 = row.get(0)?;
            let stream = names.of(conn, stream_of(Seq(bits(seq))))?;
            let is_whole = stream.is_some_and(|stream| match table {
                "redrive_live" => EventRow::read(row, &stream).is_ok(),
                _ => Held::read(row, &stream).is_ok(),
            });
            restored.events += 1;
            if !is_whole {
                damaged(damaged_row(table, seq));
            }
        }
    }
    let mut select = conn.prepare(
        "SELECT fingerprint, seq, published, until, state, ended, attempts, story, result, became, crc, stream, id \
         FROM redrive_receipt",
    )?;
    let mut rows = select.query([])?;
    while let Some(row) = rows.next()? {
        let (stream, id): (u32, String) = (row.get(11)?, row.get(12)?);
        restored.receipts += 1;
        if Receipt::read(row, StreamId(stream), &id).is_err() {
            damaged(damaged_row("redrive_receipt", format!("{stream} {id}")));
        }
    }
    End::check_all(conn, |seq| damaged(damaged_row("redrive_end", seq)))?;
    record::check_all(conn, |row| damaged(damaged_row("redrive_request", row)))?;
    for table in ["redrive_live", "redrive_held"] {
        let mut alone = conn.prepare(&format!(
            "SELECT seq FROM {table} event WHERE NOT EXISTS (SELECT 1 FROM redrive_receipt receipt \
             WHERE receipt.stream = event.seq >> 40 AND receipt.id = event.id)"
        ))?;
        let mut rows = alone.query([])?;
        while let Some(row) = rows.next()? {
            damaged(format!("{} (it has no receipt)", damaged_row(table, row.get::<_, i64>(0)?)));
        }
    }
    restored.damaged = (named, faults);
    Ok(restored)
}
