//! A folder that becomes a `.tar.gz` with a checksum beside it.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Context;

use super::said;

/// The file of checksums, as `sha256sum -c` reads it.
pub(super) const SUMS: &str = "SHA256SUMS";

/// What goes into an archive: a folder of its name.
pub(super) struct Archive {
    out: PathBuf,
    name: String,
    /// The time of every file, in seconds since 1970.
    time: u64,
}

impl Archive {
    /// An empty one. What an earlier run left is removed.
    pub(super) fn new(out: &Path, name: &str, time: u64) -> anyhow::Result<Self> {
        let archive = Self { out: out.to_owned(), name: name.to_owned(), time };
        let _ = fs::remove_dir_all(archive.folder_itself());
        fs::create_dir_all(archive.folder_itself())
            .with_context(|| format!("cannot make {}", archive.folder_itself().display()))?;
        Ok(archive)
    }

    /// Adds a file that everyone may run.
    pub(super) fn program(&mut self, name: &str, from: &Path) -> anyhow::Result<()> {
        self.add(name, &read(from)?, 0o755)
    }

    /// Adds a file as it is.
    pub(super) fn file(&mut self, name: &str, from: &Path) -> anyhow::Result<()> {
        self.add(name, &read(from)?, 0o644)
    }

    /// Adds a text.
    pub(super) fn text(&mut self, name: &str, text: &str) -> anyhow::Result<()> {
        self.add(name, text.as_bytes(), 0o644)
    }

    /// Adds a folder with all that is in it.
    pub(super) fn folder(&mut self, name: &str, from: &Path) -> anyhow::Result<()> {
        for entry in fs::read_dir(from).with_context(|| format!("cannot read {}", from.display()))? {
            let path = entry?.path();
            let inner = format!("{name}/{}", path.file_name().unwrap_or_default().to_string_lossy());
            if path.is_dir() {
                self.folder(&inner, &path)?;
            } else {
                self.file(&inner, &path)?;
            }
        }
        Ok(())
    }

    /// Makes the archive and its checksum, and returns the archive.
    pub(super) fn pack(self) -> anyhow::Result<PathBuf> {
        let file = format!("{}.tar.gz", self.name);
        let tar = self.out.join(format!("{}.tar", self.name));
        let mut pack = Command::new("tar");
        pack.args(["--sort=name", "--owner=0", "--group=0", "--numeric-owner", "--format=ustar"]);
        pack.arg(format!("--mtime=@{}", self.time))
            .arg("-cf")
            .arg(&tar)
            .arg("-C")
            .arg(&self.out)
            .arg(&self.name);
        said(&mut pack)?;
        // `-n` leaves out the time of the packing.
        said(Command::new("gzip").args(["-n", "-9", "-f"]).arg(&tar))?;
        let sum = said(Command::new("sha256sum").current_dir(&self.out).arg(&file))?;
        fs::write(self.out.join(SUMS), sum).context("cannot write the checksum")?;
        fs::remove_dir_all(self.folder_itself()).context("cannot remove what was packed")?;
        Ok(self.out.join(file))
    }

    fn folder_itself(&self) -> PathBuf {
        self.out.join(&self.name)
    }

    fn add(&mut self, name: &str, bytes: &[u8], mode: u32) -> anyhow::Result<()> {
        let to = self.folder_itself().join(name);
        let put = || -> std::io::Result<()> {
            if let Some(folder) = to.parent() {
                fs::create_dir_all(folder)?;
                fs::set_permissions(folder, fs::Permissions::from_mode(0o755))?;
            }
            fs::write(&to, bytes)?;
            fs::set_permissions(&to, fs::Permissions::from_mode(mode))
        };
        put().with_context(|| format!("cannot write {}", to.display()))
    }
}

fn read(from: &Path) -> anyhow::Result<Vec<u8>> {
    fs::read(from).with_context(|| format!("cannot read {}", from.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A folder for one test, without leftovers.
    fn folder(name: &str) -> PathBuf {
        let folder = std::env::temp_dir().join(format!("redrive-dist-{}-{name}", std::process::id()));
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir_all(folder.join("from/pages/deep")).unwrap();
        fs::write(folder.join("from/program"), "#!/bin/sh\necho it runs\n").unwrap();
        fs::write(folder.join("from/pages/deep/page.md"), "# A page").unwrap();
        folder
    }

    fn pack(folder: &Path, out: &str) -> PathBuf {
        let mut archive = Archive::new(&folder.join(out), "redrive-1.2.3-here", 1_700_000_000).unwrap();
        archive.program("redrive", &folder.join("from/program")).unwrap();
        archive.text("redrive.toml", "[store]\n").unwrap();
        archive.folder("docs", &folder.join("from/pages")).unwrap();
        archive.pack().unwrap()
    }

    #[test]
    fn an_archive_has_all_files_and_a_checksum_that_fits() {
        let folder = folder("fits");
        let packed = pack(&folder, "out");
        let out = folder.join("out");
        said(Command::new("sha256sum").current_dir(&out).args(["--check", "--strict", SUMS])).unwrap();
        let listed = said(Command::new("tar").arg("-tzf").arg(&packed)).unwrap();
        let files: Vec<_> = listed.lines().filter(|line| !line.ends_with('/')).collect();
        let expected = ["docs/deep/page.md", "redrive", "redrive.toml"];
        assert_eq!(files, expected.map(|file| format!("redrive-1.2.3-here/{file}")));
        said(Command::new("tar").arg("-xzf").arg(&packed).arg("-C").arg(&folder)).unwrap();
        let ran = said(&mut Command::new(folder.join("redrive-1.2.3-here/redrive"))).unwrap();
        assert_eq!(ran, "it runs\n");
        let left: Vec<_> = fs::read_dir(&out).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(left.len(), 2, "{left:?}");
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn a_changed_archive_does_not_fit_its_checksum() {
        let folder = folder("changed");
        let packed = pack(&folder, "out");
        let mut bytes = fs::read(&packed).unwrap();
        *bytes.last_mut().unwrap() ^= 1;
        fs::write(&packed, bytes).unwrap();
        let checked = said(Command::new("sha256sum").current_dir(folder.join("out")).args(["--check", SUMS]));
        assert!(checked.is_err());
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn the_same_files_give_the_same_bytes() {
        let folder = folder("same");
        let (one, two) = (pack(&folder, "one"), pack(&folder, "two"));
        assert_eq!(fs::read(one).unwrap(), fs::read(two).unwrap());
        fs::remove_dir_all(folder).unwrap();
    }
}
