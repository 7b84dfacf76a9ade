//! A small disk that fills up quickly.
//!
//! A full disk cannot be simulated, because a library below ours decides what is written when. This module
//! mounts a small file system in memory, which needs the right to mount. Without it a test can only report
//! that.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::Command;

/// A file system of its own, a few megabytes large, until it is dropped.
#[derive(Debug)]
pub struct SmallDisk {
    folder: PathBuf,
}

impl SmallDisk {
    /// Mounts one on an existing folder.
    ///
    /// # Errors
    /// Why it could not be mounted, most often for want of rights.
    pub fn mount(folder: &Path, kib: u32) -> io::Result<Self> {
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", &format!("size={kib}k"), "redrive-test"]).arg(folder);
        let output = mount.output()?;
        if !output.status.success() {
            let why = String::from_utf8_lossy(&output.stderr).trim().to_owned();
            return Err(io::Error::other(format!("mount: {why}")));
        }
        Ok(Self { folder: folder.to_owned() })
    }

    /// The folder it is mounted on.
    #[must_use]
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Fills it to the last byte with a file that [`free`](Self::free) removes, then frees `kib` of it.
    ///
    /// # Errors
    /// If writing fails for another reason than a full disk.
    pub fn fill_but(&self, kib: u32) -> io::Result<()> {
        let mut file = fs::OpenOptions::new().create(true).append(true).open(self.ballast())?;
        loop {
            match file.write(&[0; 4096]) {
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::StorageFull => break,
                Err(error) => return Err(error),
            }
        }
        let full = file.metadata()?.len();
        file.set_len(full.saturating_sub(u64::from(kib) * 1024))
    }

    /// Frees everything that was filled.
    ///
    /// # Errors
    /// If the file cannot be removed.
    pub fn free(&self) -> io::Result<()> {
        fs::remove_file(self.ballast())
    }

    fn ballast(&self) -> PathBuf {
        self.folder.join("ballast")
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        // Lazily: a process that still has a file open keeps it until it closes the file.
        let _ = Command::new("umount").arg("--lazy").arg(&self.folder).status();
    }
}
