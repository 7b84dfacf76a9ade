//! Who owns the file.
//!
//! One process runs the handlers: the one that holds an exclusive lock of the operating system on a side file.
//! It is not a lease that times out: a lock is gone exactly when its process is, however long that one was
//! stopped in between. The side file has the owner's pid in it, for people; the lock alone decides.
//!
//! The side file stays when the owner goes. To remove it would let two processes lock two files of one name.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use crate::error::StoreError;

/// The ownership of a file, had or not.
#[derive(Debug)]
pub(super) struct Ownership {
    database: PathBuf,
    side: PathBuf,
    held: Option<File>,
}

impl Ownership {
    /// Of this database, not had yet.
    pub(super) fn of(database: &Path) -> Self {
        Self { database: database.to_owned(), side: beside(database, "-owner"), held: None }
    }

    pub(super) const fn is_held(&self) -> bool {
        self.held.is_some()
    }

    /// Takes it, if nobody else has it.
    pub(super) fn take(&mut self) -> Result<(), StoreError> {
        if self.held.is_some() {
            return Ok(());
        }
        let cannot = |error: io::Error| StoreError::Open {
            path: self.side.clone(),
            why: format!("{error}; the folder must be writable for the file that says who owns the database"),
            source: Some(std::sync::Arc::new(error)),
        };
        let mut file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(&self.side)
            .map_err(cannot)?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                return Err(StoreError::NotOwner { path: self.database.clone(), pid: read_pid(&mut file) });
            }
            Err(TryLockError::Error(error)) => return Err(cannot(error)),
        }
        // The pid is for people: a lock without it is as good.
        let _ = write_pid(&mut file);
        self.held = Some(file);
        Ok(())
    }

    /// Gives it up.
    pub(super) fn let_go(&mut self) {
        if let Some(file) = self.held.take() {
            let _ = file.set_len(0);
            let _ = file.unlock();
        }
    }
}

/// The side file of a database with this ending.
pub(super) fn beside(database: &Path, ending: &str) -> PathBuf {
    let mut name = database.as_os_str().to_owned();
    name.push(ending);
    PathBuf::from(name)
}

fn write_pid(file: &mut File) -> io::Result<()> {
    file.set_len(0)?;
    file.seek(SeekFrom::Start(0))?;
    file.write_all(std::process::id().to_string().as_bytes())
}

fn read_pid(file: &mut File) -> Option<u32> {
    let mut text = String::new();
    file.take(32).read_to_string(&mut text).ok()?;
    text.trim().parse().ok()
}
