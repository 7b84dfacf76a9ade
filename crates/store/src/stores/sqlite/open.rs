//! Opening: the file, its settings, its tables, and the recovery from an unclean stop.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use rusqlite::config::DbConfig;
use rusqlite::wal::CheckpointMode;
use rusqlite::{Connection, ErrorCode, OpenFlags};

use super::moving;
use super::{FileRole, SqliteSettings};
use crate::error::StoreError;
use lock::Ownership;
use schema::SchemaError;

pub(super) mod settings;

pub(super) mod lock;

pub(super) mod schema;

#[cfg(feature = "planted")]
pub(super) mod test_hooks;

/// How long a call waits for another process that writes.
const BUSY: Duration = Duration::from_secs(5);
/// How many prepared statements a connection keeps: all of ours, and some of the user's.
const STATEMENTS_KEPT: usize = 256;
/// Pages that the writer keeps in memory, in KiB: the upper levels of a tree of dedupe records with some tens of
/// millions in it.
const WRITER_CACHE_KIB: i64 = 32 << 10;
/// The same for each reader.
const READER_CACHE_KIB: i64 = 4 << 10;

/// An opened file.
pub(super) struct Opened {
    pub(super) writer: Connection,
    pub(super) readers: Vec<Connection>,
    pub(super) ownership: Ownership,
}

/// Opens a file, creates it if there is none, and brings it up to date. A moved file is not opened.
pub(super) fn open(path: &Path, settings: &SqliteSettings, readers: usize) -> Result<Opened, StoreError> {
    let opened = open_any(path, settings, readers)?;
    match moving::why_closed(&opened.writer, path).map_err(|error| explain(path, error))? {
        Some(why) => Err(cannot(path, &why, None)),
        None => Ok(opened),
    }
}

/// The same, also for a file that was moved, or is being moved.
pub(super) fn open_any(path: &Path, settings: &SqliteSettings, readers: usize) -> Result<Opened, StoreError> {
    let failed = |error| explain(path, error);
    let mut writer = open_to_write(path)?;
    let mut ownership = Ownership::of(path);
    match (settings.role, ownership.is_tracked()) {
        (FileRole::Guest, _) => {}
        (FileRole::Owner, _) => ownership.take()?,
        (FileRole::Any, _) => match ownership.take_to_open() {
            Ok(()) | Err(StoreError::NotOwner { .. }) => {}
            Err(error) => return Err(error),
        },
    }
    if schema::is_window(&writer).map_err(failed)? {
        return Err(cannot(path, "it is a dedupe window; give the store of events a file of its own", None));
    }
    if !schema::is_current(&writer).map_err(failed)? {
        schema::migrate(&mut writer, path).map_err(|error| match error {
            SchemaError::Sql(error) => explain(path, error),
            SchemaError::Store(error) => error,
        })?;
    }
    if ownership.is_tracked() {
        recover(&writer, path)?;
        // A process that runs handlers takes the file again. Publishing and looking need no ownership, and a process
        // that does only that must not be in the way of the one that runs handlers.
        if settings.role == FileRole::Any {
            ownership.let_go();
        }
    }
    let readers: Result<Vec<_>, _> = (0..readers).map(|_| look(path)).collect();
    Ok(Opened { writer, readers: readers.map_err(failed)?, ownership })
}

/// Opens a file in WAL mode, and creates it if there is none.
pub(super) fn open_to_write(path: &Path) -> Result<Connection, StoreError> {
    check_place(path)?;
    let failed = |error| explain(path, error);
    let writer = connect(path, WRITER_CACHE_KIB).map_err(failed)?;
    if writer.is_readonly("main").map_err(failed)? {
        return Err(cannot(path, "it is read-only; make the file and its folder writable", None));
    }
    let mode: String = writer.query_row("PRAGMA journal_mode = WAL", [], |row| row.get(0)).map_err(failed)?;
    if !mode.eq_ignore_ascii_case("wal") {
        let why = format!("its journal mode stays `{mode}`; put it on a local disk, where `wal` works");
        return Err(cannot(path, &why, None));
    }
    Ok(writer)
}

/// A connection that writes.
fn connect(path: &Path, cache_kib: i64) -> rusqlite::Result<Connection> {
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE
        | OpenFlags::SQLITE_OPEN_CREATE
        | OpenFlags::SQLITE_OPEN_NO_MUTEX
        | OpenFlags::SQLITE_OPEN_EXRESCODE;
    let conn = Connection::open_with_flags(path, flags)?;
    reset(&conn);
    // The writer does this itself, and checks whether it worked. Not at all if the store is poisoned.
    conn.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true)?;
    conn.execute_batch(&format!(
        "PRAGMA synchronous = FULL; PRAGMA wal_autocheckpoint = 0; PRAGMA temp_store = memory; \
         PRAGMA journal_size_limit = 67108864; PRAGMA cache_size = -{cache_kib};"
    ))?;
    Ok(conn)
}

/// A connection that only reads.
pub(super) fn look(path: &Path) -> rusqlite::Result<Connection> {
    let conn = connect(path, READER_CACHE_KIB)?;
    conn.execute_batch("PRAGMA query_only = ON")?;
    Ok(conn)
}

/// Resets the settings of a connection that the user's work can change.
pub(super) fn reset(conn: &Connection) {
    conn.set_prepared_statement_cache_capacity(STATEMENTS_KEPT);
    // It only fails if the connection is closed.
    let _ = conn.busy_timeout(BUSY);
}

/// Writes the log back into the database and syncs it before any call is answered: after an unclean stop, visible data
/// may not be on the disk yet.
fn recover(conn: &Connection, path: &Path) -> Result<(), StoreError> {
    let failed = |error| explain(path, error);
    let clean: bool =
        conn.query_row("SELECT clean FROM redrive_meta", [], |row| row.get(0)).map_err(failed)?;
    match conn.wal_checkpoint_v2(None::<&str>, CheckpointMode::TRUNCATE) {
        Ok(_) => Ok(()),
        // Other processes read it, and it was stopped cleanly: there is nothing to recover.
        Err(error) if clean && error.sqlite_error_code() == Some(ErrorCode::DatabaseBusy) => Ok(()),
        Err(error) => Err(explain(path, error)),
    }
}

fn check_place(path: &Path) -> Result<(), StoreError> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    if let Some(folder) = folder
        && !folder.is_dir()
    {
        let why = format!("there is no folder {}; create it first", folder.display());
        return Err(cannot(path, &why, None));
    }
    if path.is_dir() {
        return Err(cannot(path, "it is a folder; name a file in it", None));
    }
    Ok(())
}

/// An error of opening, with what to do about it.
pub(super) fn explain(path: &Path, error: rusqlite::Error) -> StoreError {
    let why = match error.sqlite_error_code() {
        Some(ErrorCode::NotADatabase) => {
            "it is not a SQLite database; name another file, or move this one away".to_owned()
        }
        Some(ErrorCode::DatabaseCorrupt) => {
            "the database is damaged; move it away and restore a backup with `redrive restore BACKUP FILE`"
                .to_owned()
        }
        Some(ErrorCode::ReadOnly) => "it is read-only; make the file and its folder writable".to_owned(),
        Some(ErrorCode::PermissionDenied | ErrorCode::CannotOpen) => {
            format!("{error}; let this user read and write the file and its folder")
        }
        Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => {
            "another process holds a transaction open; end it and try again".to_owned()
        }
        Some(ErrorCode::DiskFull) => "the disk is full; free some space".to_owned(),
        _ => error.to_string(),
    };
    cannot(path, &why, Some(error))
}

pub(super) fn cannot(path: &Path, why: &str, source: Option<rusqlite::Error>) -> StoreError {
    let source = source.map(|error| Arc::new(error) as crate::error::StoreErrorSource);
    StoreError::Open { path: path.to_owned(), why: why.to_owned(), source }
}
