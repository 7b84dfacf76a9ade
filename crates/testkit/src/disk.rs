//! A disk that is soon full.
//!
//! Full disks cannot be pretended: a library below ours decides what is written when. So this mounts a small
//! file system in memory, which takes the rights to mount. Where they are missing a test can only say so.

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
    /// Mounts one on a folder that is there.
    ///
    /// # Errors
    /// With why it could not be mounted, most often for want of rights.
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

    /// Where it is.
    #[must_use]
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Fills it up to the last byte with a file that [`free`](Self::free) removes, then gives `kib` of it back.
    ///
    /// # Errors
    /// Where writing fails for another reason than that it is full.
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

    /// Gives back everything that was filled.
    ///
    /// # Errors
    /// Where the file cannot be removed.
    pub fn free(&self) -> io::Result<()> {
        fs::remove_file(self.ballast())
    }

    fn ballast(&self) -> PathBuf {
        self.folder.join("ballast")
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        // Lazily: whoever still has a file open in there keeps it until it is closed.
        let _ = Command::new("umount").arg("--lazy").arg(&self.folder).status();
    }
}
