//! Restoring a store from a backup.
//!
//! The backup is checked first, all of it: the file itself by SQLite, every event, dedupe record, end and request by
//! its checksum, and that every event has its dedupe record. Then it gets a new incarnation; see
//! [`copy`](mod@super::copy).
//!
//! Only a file from [`copy`](fn@super::copy::copy) is accepted. The file of a store in use, or of one that crashed, is
//! incomplete: the last writes are in the log beside it.

use std::fs::{File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::path::Path;
use std::sync::Arc;

use redrive_core::queue_entry::{Seq, StreamId};
use rusqlite::{Connection, ErrorCode};

use super::copy::{MakeError, fresh, make, new_life, with_ending};
use crate::error::StoreError;
use crate::stores::shared::numbers::{bits, stream_of};
use crate::stores::sqlite::events::dedupe::{DedupeRecord, End};
use crate::stores::sqlite::events::fresh::{EventRow, event_columns};
use crate::stores::sqlite::events::stream_names::StreamNames;
use crate::stores::sqlite::events::tracked::{TrackedEvent, tracked_columns};
use crate::stores::sqlite::faults::damaged_row;
use crate::stores::sqlite::ledger;
use crate::stores::sqlite::open::cannot;
use crate::stores::sqlite::open::schema;

/// The offset of the file format versions in a database file, and their value in WAL mode.
const VERSIONS: usize = 18;
const WITH_LOG: u8 = 2;
/// How many faults are listed.
const NAMED: usize = 20;

/// The result of a restore.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Restored {
    /// Events that have not ended, including dead letters.
    pub events: u64,
    /// Remembered identities.
    pub identities: u64,
    /// Damaged rows: the first twenty, and how many there are. They do not run.
    pub damaged: (Vec<String>, u64),
}

/// Makes a store out of a backup, at a path without a file. With `even_damaged` also if rows of it are damaged: they
/// are left alone, and reported when they would run. Blocks until it is done.
///
/// # Errors
/// [`StoreError::Open`] if something is in the way or `from` is not a backup, and [`StoreError::Damaged`] if rows are
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

/// Fills the new file.
fn fill(from: &Path, part: &Path, even_damaged: bool) -> Result<Restored, MakeError> {
    take_over(from, part)?;
    let conn = fresh(part)?;
    let found = schema::number(&conn)?;
    if found == 0 {
        return Err(MakeError::Store(cannot(from, "it is not a store of events", None)));
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
    /// Attributes an error in the new file to the backup that it was made from.
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

/// Copies the bytes of a backup into an existing file, which stays as private as it is.
fn take_over(from: &Path, part: &Path) -> Result<(), MakeError> {
    let is_no_copy = || {
        let why = "it is not a backup but the file of a store, whose latest writes may be in the log beside it; make a backup with `redrive backup`, and restore that";
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
    // One by one, because either side may fail, and the error must say which.
    loop {
        match copy.read(&mut bytes) {
            Ok(0) => break,
            Ok(read) => to.write_all(&bytes[..read]).map_err(MakeError::Io)?,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(unread(error)),
        }
    }
    // Of the copied part, so that it cannot change in between. A file that is too short is no database, and is refused
    // later.
    let mut head = [0; VERSIONS + 2];
    let is_read = File::open(part).and_then(|mut part| part.read_exact(&mut head)).is_ok();
    let says_log = head.starts_with(b"SQLite format 3\0") && head[VERSIONS..].contains(&WITH_LOG);
    if is_read && says_log { Err(is_no_copy()) } else { Ok(()) }
}

/// Whether SQLite finds the file intact.
fn check_whole(conn: &Connection, from: &Path) -> Result<(), MakeError> {
    let said: String = conn.query_row("PRAGMA integrity_check(1)", [], |row| row.get(0))?;
    if said == "ok" {
        return Ok(());
    }
    Err(MakeError::Store(cannot(from, &format!("the database is damaged ({said}); use an older copy"), None)))
}

/// Checks every row that has a checksum.
fn check_rows(conn: &Connection) -> Result<Restored, MakeError> {
    let (mut restored, mut names) = (Restored::default(), StreamNames::default());
    let (mut named, mut faults) = (Vec::new(), 0);
    let mut damaged = |row: String| {
        if named.len() < NAMED {
            named.push(row);
        }
        faults += 1;
    };
    let tables = [
        ("redrive_fresh", concat!("SELECT ", event_columns!(), " FROM redrive_fresh")),
        ("redrive_tracked", concat!("SELECT ", tracked_columns!(), " FROM redrive_tracked")),
    ];
    for (table, select) in tables {
        let mut select = conn.prepare(select)?;
        let mut rows = select.query([])?;
        while let Some(row) = rows.next()? {
            let seq: i64 = row.get(0)?;
            let stream = names.of(conn, stream_of(Seq(bits(seq))))?;
            let is_whole = stream.is_some_and(|stream| match table {
                "redrive_fresh" => EventRow::read(row, &stream).is_ok(),
                _ => TrackedEvent::read(row, &stream).is_ok(),
            });
            restored.events += 1;
            if !is_whole {
                damaged(damaged_row(table, seq));
            }
        }
    }
    let mut select = conn.prepare(
        "SELECT fingerprint, seq, published, until, state, ended, attempts, history, result, became, crc, stream, id \
         FROM redrive_dedupe",
    )?;
    let mut rows = select.query([])?;
    while let Some(row) = rows.next()? {
        let (stream, id): (u32, String) = (row.get(11)?, row.get(12)?);
        restored.identities += 1;
        if DedupeRecord::read(row, StreamId(stream), &id).is_err() {
            damaged(damaged_row("redrive_dedupe", format!("{stream} {id}")));
        }
    }
    End::check_all(conn, |seq| damaged(damaged_row("redrive_ending", seq)))?;
    ledger::check_all(conn, |row| damaged(damaged_row("redrive_request", row)))?;
    for table in ["redrive_fresh", "redrive_tracked"] {
        let mut alone = conn.prepare(&format!(
            "SELECT seq FROM {table} event WHERE NOT EXISTS (SELECT 1 FROM redrive_dedupe dedupe \
             WHERE dedupe.stream = event.seq >> 40 AND dedupe.id = event.id)"
        ))?;
        let mut rows = alone.query([])?;
        while let Some(row) = rows.next()? {
            damaged(format!("{} (it has no dedupe record)", damaged_row(table, row.get::<_, i64>(0)?)));
        }
    }
    restored.damaged = (named, faults);
    Ok(restored)
}
