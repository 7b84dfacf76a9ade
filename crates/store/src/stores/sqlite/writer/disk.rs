//! The free space on the disk of the file.
//!
//! A full disk stops settles as well as publishes, and then nothing gets better by itself. So publishing stops
//! earlier, at a watermark, and the rest is for settling. A check costs about a microsecond, and is done once in
//! [`ASK_EVERY`].

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::error::StoreError;

/// How old an answer may be. At a few hundred megabytes a second a disk loses some tens in that time, about
/// half of the default watermark.
const ASK_EVERY: Duration = Duration::from_millis(100);

/// The free space on the disk of a file.
#[derive(Debug)]
pub(in crate::stores::sqlite) struct Disk {
    folder: PathBuf,
    least: u64,
    asked: Option<(Instant, u64)>,
}

impl Disk {
    pub(in crate::stores::sqlite) fn new(file: &Path, least: u64) -> Self {
        Self { folder: folder_of(file), least, asked: None }
    }

    /// Whether there is room for more events. If the system does not report it, there is.
    pub(in crate::stores::sqlite) fn check(&mut self) -> Result<(), StoreError> {
        if self.least == 0 {
            return Ok(());
        }
        let free = match self.asked {
            Some((at, free)) if at.elapsed() < ASK_EVERY => free,
            _ => {
                let free = free(&self.folder).unwrap_or(u64::MAX);
                self.asked = Some((Instant::now(), free));
                free
            }
        };
        if free < self.least { Err(StoreError::DiskLow { free, least: self.least }) } else { Ok(()) }
    }
}

/// The folder that a file is in.
pub(in crate::stores::sqlite) fn folder_of(file: &Path) -> PathBuf {
    match file.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder.to_owned(),
        _ => PathBuf::from("."),
    }
}

/// How many bytes are free there, if the system reports it.
pub(in crate::stores::sqlite) fn free(folder: &Path) -> Option<u64> {
    let there = rustix::fs::statvfs(folder).ok()?;
    Some(there.f_bavail.saturating_mul(there.f_frsize))
}
