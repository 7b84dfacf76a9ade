//! Who owns the file.
//!
//! One process runs the handlers: the one that holds an exclusive lock of the operating system on a side file.
//! It is not a lease that times out: a lock is gone exactly when its process is, however long that one was
//! stopped in between. The side file has the owner's pid in it, for people; the lock alone decides.
//!
//! Whoever opens the file has the lock for a moment, without a pid, to recover what a death left behind. Two programs
//! that start together must not take that for an owner: who finds the lock taken and nobody named asks again soon.
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
        self.lock()?;
        // The pid is for people, and for those who ask again: a lock without it is as good.
        if let Some(file) = &mut self.held {
            let _ = write_pid(file);
        }
        Ok(())
    }

    /// Takes it for a moment, to open the file.
    pub(super) fn take_to_open(&mut self) -> Result<(), StoreError> {
        self.lock()?;
        if let Some(file) = &self.held {
            let _ = file.set_len(0);
        }
        Ok(())
    }

    fn lock(&mut self) -> Result<(), StoreError> {
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
