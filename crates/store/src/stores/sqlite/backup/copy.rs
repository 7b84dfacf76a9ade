//! A backup of the file, while it is in use.
//!
//! SQLite's own backup copies pages as they are, out of one read transaction: the copy is the file as of one commit,
//! and writers do not wait. Their writes stay in the log until the copy is done.
//!
//! A copy has a new incarnation, so that no settle of the original changes anything in it; and its epoch jumps, so
//! that fencing tokens keep growing for receivers that have seen later ones.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rusqlite::backup::{Backup, StepResult};
use rusqlite::{Connection, OpenFlags};
use tokio::sync::oneshot;

use crate::error::StoreError;
use crate::store::StoreFuture;
use crate::stores::sqlite::open::schema;
use crate::stores::sqlite::open::{cannot, explain, look};
use crate::stores::sqlite::writer::disk::folder_of;

/// How many pages are copied in one step.
const PAGES: i32 = 1024;
/// By how much the epoch jumps: by more owners than a file can have had since.
const EPOCH_LEAP: i64 = 1 << 20;

/// Copies on a thread of its own, because readers are busy with loads.
pub(in crate::stores::sqlite) fn start(from: PathBuf, to: PathBuf) -> StoreFuture<()> {
    let (tell, told) = oneshot::channel();
    let work = move || {
        let _ = tell.send(copy(&from, &to));
    };
    let spawned = std::thread::Builder::new().name("redrive-copy".to_owned()).spawn(work);
    Box::pin(async move {
        spawned.map_err(|error| StoreError::Passing {
            what: format!("cannot start a thread: {error}"),
            source: Some(Arc::new(error)),
        })?;
        told.await.unwrap_or(Err(StoreError::Closed))
    })
}

/// Copies a store to a new file, as of one moment, while other processes write to it. The copy is a store of its own.
/// Blocks until it is done.
///
/// # Errors
/// [`StoreError::Open`] with the file that is in the way, and why.
pub fn copy(from: &Path, to: &Path) -> Result<(), StoreError> {
    if !from.is_file() {
        return Err(cannot(from, "there is no such file", None));
    }
    let source = look(from).map_err(|error| explain(from, error))?;
    source.execute_batch("BEGIN").map_err(|error| explain(from, error))?;
    // The first read determines which commit the copy is of.
    let number = schema::number(&source).map_err(|error| explain(from, error))?;
    if number == 0 {
        return Err(cannot(from, "it is not a store of events", None));
    }
    make(to, |part| {
        let mut conn = fresh(part)?;
        let backup = Backup::new(&source, &mut conn)?;
        loop {
            match backup.step(PAGES)? {
                StepResult::Done => break,
                StepResult::More => {}
                // No other process knows of either: the one is a read transaction, the other was made just now.
                _ => return Err(MakeError::Store(cannot(to, "another process holds it", None))),
            }
        }
        drop(backup);
        conn.query_row("PRAGMA journal_mode = DELETE", [], |_| Ok(()))?;
        new_life(&conn).map_err(MakeError::Sql)
    })
}

/// Gives a file a new incarnation.
pub(in crate::stores::sqlite) fn new_life(conn: &Connection) -> rusqlite::Result<()> {
    let renew = "UPDATE redrive_meta SET incarnation = random(), epoch = epoch + ?1";
    conn.execute(renew, [EPOCH_LEAP]).map(drop)
}

/// A new file, synced to the disk.
pub(in crate::stores::sqlite) fn fresh(path: &Path) -> rusqlite::Result<Connection> {
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_CREATE;
    let conn = Connection::open_with_flags(path, flags | OpenFlags::SQLITE_OPEN_EXRESCODE)?;
    conn.execute_batch("PRAGMA synchronous = FULL")?;
    Ok(conn)
}

/// Makes a file under another name, and renames it once it is complete: an incomplete file never looks like a complete
/// one.
pub(in crate::stores::sqlite) fn make(
    to: &Path,
    write: impl FnOnce(&Path) -> Result<(), MakeError>,
) -> Result<(), StoreError> {
    for path in ["", "-wal", "-shm", "-owner", "-notes"].map(|end| with_ending(to, end)) {
        if path.symlink_metadata().is_ok() {
            let why = "it exists already; nothing is overwritten; name another file, or move it away";
            return Err(cannot(&path, why, None));
        }
    }
    let part = with_ending(to, &format!(".{}.part", std::process::id()));
    let _ = std::fs::remove_file(&part);
    // It has the events of all tenants, so only its maker may read it.
    let begun = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&part);
    let made = begun.map_err(MakeError::Io).and_then(|_| write(&part));
    let made = made.map_err(|error| error.explain(to)).and_then(|()| {
        let named = sync(&part).and_then(|()| std::fs::hard_link(&part, to)).and_then(|()| {
            // The name is in the folder, and the folder is a file as well.
            sync(&folder_of(to))
        });
        named.map_err(|error| MakeError::Io(error).explain(to))
    });
    for end in ["", "-journal", "-wal", "-shm"] {
        let _ = std::fs::remove_file(with_ending(&part, end));
    }
    made
}

/// Why a file could not be made.
pub(in crate::stores::sqlite) enum MakeError {
    Sql(rusqlite::Error),
    Io(io::Error),
    Store(StoreError),
}

impl MakeError {
    fn explain(self, path: &Path) -> StoreError {
        match self {
            Self::Sql(error) => explain(path, error),
            Self::Io(error) => StoreError::Open {
                path: path.to_owned(),
                why: error.to_string(),
                source: Some(Arc::new(error)),
            },
            Self::Store(error) => error,
        }
    }
}

impl From<rusqlite::Error> for MakeError {
    fn from(error: rusqlite::Error) -> Self {
        Self::Sql(error)
    }
}

fn sync(path: &Path) -> io::Result<()> {
    File::open(path)?.sync_all()
}

pub(in crate::stores::sqlite) fn with_ending(path: &Path, end: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(end);
    name.into()
}
