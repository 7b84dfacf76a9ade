//! The ownership of the file.
//!
//! One process runs the handlers: the one that holds an exclusive lock of the operating system on a side file. It is
//! not a lease that times out: a lock is gone exactly when its process is, however long that was suspended in between.
//! The side file has the owner's pid in it, for operators; the lock alone decides.
//!
//! Every process that opens the file has the lock for a moment, without a pid, to recover from a death. A program that
//! starts at the same time must not take that for an owner: if it finds the lock taken and no pid, it asks again soon.
//!
//! The side file stays when the owner goes. Removing it would let two processes lock two files of one name.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use crate::error::StoreError;

/// The ownership of a file, held or not.
#[derive(Debug)]
pub(in crate::stores::sqlite) struct Ownership {
    database: PathBuf,
    side: PathBuf,
    tracked: Option<File>,
}

impl Ownership {
    /// Of this database, not held yet.
    pub(in crate::stores::sqlite) fn of(database: &Path) -> Self {
        Self { database: database.to_owned(), side: beside(database, "-owner"), tracked: None }
    }

    pub(in crate::stores::sqlite) const fn is_tracked(&self) -> bool {
        self.tracked.is_some()
    }

    /// Takes it, if it is free.
    pub(in crate::stores::sqlite) fn take(&mut self) -> Result<(), StoreError> {
        if self.tracked.is_some() {
            return Ok(());
        }
        self.lock()?;
        // The pid is for operators, and for processes that ask again: a lock without it is as good.
        if let Some(file) = &mut self.tracked {
            let _ = write_pid(file);
        }
        Ok(())
    }

    /// Takes it for a moment, to open the file.
    pub(in crate::stores::sqlite) fn take_to_open(&mut self) -> Result<(), StoreError> {
        self.lock()?;
        if let Some(file) = &self.tracked {
            let _ = file.set_len(0);
        }
        Ok(())
    }

    fn lock(&mut self) -> Result<(), StoreError> {
        if self.tracked.is_some() {
            return Ok(());
        }
        let cannot = |error: io::Error| StoreError::Open {
            path: self.side.clone(),
            why: format!(
                "{error}; the folder must be writable for the file that names the owner of the store"
            ),
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
        self.tracked = Some(file);
        Ok(())
    }

    /// Releases it.
    pub(in crate::stores::sqlite) fn let_go(&mut self) {
        if let Some(file) = self.tracked.take() {
            let _ = file.set_len(0);
            let _ = file.unlock();
        }
    }
}

/// The side file of a database with this suffix.
pub(in crate::stores::sqlite) fn beside(database: &Path, ending: &str) -> PathBuf {
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
