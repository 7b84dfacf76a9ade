//! A copy of the file, while it is in use.
//!
//! Pages are copied as they are, by SQLite's own backup, out of one read transaction: the copy is the file as of one
//! commit, and writers wait for nothing. What they write meanwhile stays in the log until the copy is done.
//!
//! A copy is a life of its own. It has another incarnation, so that no settle of the life that it was copied from
//! changes anything in it; and its epoch leaps, so that tokens go on growing for receivers that have seen later ones.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rusqlite::backup::{Backup, StepResult};
use rusqlite::{Connection, OpenFlags};
use tokio::sync::oneshot;

use super::disk::folder_of;
use super::open::{cannot, explain, look};
use super::schema;
use crate::error::StoreError;
use crate::store::Answer;

/// How many pages are copied in one step.
const PAGES: i32 = 1024;
/// How far the epoch leaps: by more owners than a file can have had since.
const EPOCH_LEAP: i64 = 1 << 20;

/// Copies on a thread of its own: readers have other things to do.
pub(super) fn start(from: PathBuf, to: PathBuf) -> Answer<()> {
    let (tell, told) = oneshot::channel();
    let work = move || {
        let _ = tell.send(copy(&from, &to));
    };
    let spawned = std::thread::Builder::new().name("redrive-copy".to_owned()).spawn(work);
    Box::pin(async move {
        spawned.map_err(|error| StoreError::Passing {
            what: format!("no thread could be started: {error}"),
            source: Some(Arc::new(error)),
        })?;
        told.await.unwrap_or(Err(StoreError::Closed))
    })
}

/// Copies a store to a file that is not there yet, as of one moment, whoever writes to it meanwhile. The copy is a
/// store of its own. Blocks for as long as it takes.
///
/// # Errors
/// [`StoreError::Open`] with the file that is in the way, and why.
pub fn copy(from: &Path, to: &Path) -> Result<(), StoreError> {
    if !from.is_file() {
        return Err(cannot(from, "there is no such file", None));
    }
    let source = look(from).map_err(|error| explain(from, error))?;
    source.execute_batch("BEGIN").map_err(|error| explain(from, error))?;
    // Reads, and with that decides which commit the copy is of.
    let number = schema::number(&source).map_err(|error| explain(from, error))?;
    if number == 0 {
        return Err(cannot(from, "it is no store of events", None));
    }
    make(to, |part| {
        let mut conn = fresh(part)?;
        let backup = Backup::new(&source, &mut conn)?;
        loop {
            match backup.step(PAGES)? {
                StepResult::Done => break,
                StepResult::More => {}
                // Nobody else knows of either: the one has a read transaction, the other was made just now.
                _ => return Err(MakeError::Store(cannot(to, "somebody else holds it", None))),
            }
        }
        drop(backup);
        conn.query_row("PRAGMA journal_mode = DELETE", [], |_| Ok(()))?;
        new_life(&conn).map_err(MakeError::Sql)
    })
}

/// Gives a file an incarnation of its own.
pub(super) fn new_life(conn: &Connection) -> rusqlite::Result<()> {
    let renew = "UPDATE redrive_meta SET incarnation = random(), epoch = epoch + ?1";
    conn.execute(renew, [EPOCH_LEAP]).map(drop)
}

/// A file that is made here, and written through to the disk.
pub(super) fn fresh(path: &Path) -> rusqlite::Result<Connection> {
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_CREATE;
    let conn = Connection::open_with_flags(path, flags | OpenFlags::SQLITE_OPEN_EXRESCODE)?;
    conn.execute_batch("PRAGMA synchronous = FULL")?;
    Ok(conn)
}

/// Makes a file under another name, and gives it its own once it is whole: half of one never looks like one.
pub(super) fn make(to: &Path, write: impl FnOnce(&Path) -> Result<(), MakeError>) -> Result<(), StoreError> {
    for path in ["", "-wal", "-shm", "-owner", "-notes"].map(|end| with_ending(to, end)) {
        if path.symlink_metadata().is_ok() {
            let why = "it is there already, and nothing is written over; name another file, or move it away";
            return Err(cannot(&path, why, None));
        }
    }
    let part = with_ending(to, &format!(".{}.part", std::process::id()));
    let _ = std::fs::remove_file(&part);
    // Everybody's events are in it, so it is its maker's alone.
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
pub(super) enum MakeError {
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

pub(super) fn with_ending(path: &Path, end: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(end);
    name.into()
}
