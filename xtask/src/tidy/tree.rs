//! The files of the repository, in memory.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;
use std::{fs, io};

use anyhow::{Context, bail};

use crate::workspace::{Package, Workspace};

/// Every file that git tracks or would, by its path from the root, and cargo's view of the packages.
#[derive(Default)]
pub(super) struct Tree {
    /// `None` for a file that is not text.
    files: BTreeMap<String, Option<String>>,
    pub(super) packages: Vec<Package>,
}

impl Tree {
    /// Reads the work tree, new files included, ignored ones not.
    pub(super) fn read(workspace: &Workspace) -> anyhow::Result<Self> {
        let files = read_files(&workspace.root)?;
        Ok(Self { files, packages: workspace.packages.clone() })
    }

    /// The text of a file, if it is there and is text.
    pub(super) fn text(&self, path: &str) -> Option<&str> {
        self.files.get(path)?.as_deref()
    }

    /// All text files: path and text.
    pub(super) fn texts(&self) -> impl Iterator<Item = (&str, &str)> {
        self.files.iter().filter_map(|(path, text)| Some((path.as_str(), text.as_deref()?)))
    }

    /// The text files with that ending: path and text.
    pub(super) fn texts_ending(&self, ending: &str) -> impl Iterator<Item = (&str, &str)> {
        self.texts().filter(move |(path, _)| path.ends_with(ending))
    }

    /// Whether that is a file.
    pub(super) fn has_file(&self, path: &str) -> bool {
        self.files.contains_key(path)
    }

    /// Whether that is a file, or a folder with a file in it. The root is the empty path.
    pub(super) fn has(&self, path: &str) -> bool {
        let folder = format!("{path}/");
        path.is_empty() || self.has_file(path) || self.files.keys().any(|file| file.starts_with(&folder))
    }
}

fn read_files(root: &Path) -> anyhow::Result<BTreeMap<String, Option<String>>> {
    let output = Command::new("git")
        .args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"])
        .current_dir(root)
        .output()
        .context("cannot run git ls-files")?;
    if !output.status.success() {
        bail!("git ls-files failed: {}", String::from_utf8_lossy(&output.stderr).trim_end());
    }
    let mut files = BTreeMap::new();
    for path in String::from_utf8_lossy(&output.stdout).split_terminator('\0') {
        match fs::read(root.join(path)) {
            Ok(bytes) => files.insert(path.to_owned(), String::from_utf8(bytes).ok()),
            // Deleted and not yet staged.
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            Err(error) => return Err(error).with_context(|| format!("cannot read {path}")),
        };
    }
    Ok(files)
}

/// The folder of a file; empty for the root.
pub(super) fn folder(path: &str) -> &str {
    path.rsplit_once('/').map_or("", |(folder, _)| folder)
}

/// A relative path as seen from a folder, without `.` and `..`; `None` if it leaves the repository.
pub(super) fn join(folder: &str, path: &str) -> Option<String> {
    let mut parts: Vec<&str> = folder.split('/').filter(|part| !part.is_empty()).collect();
    for part in path.split('/') {
        match part {
            "" | "." => {}
            ".." => {
                parts.pop()?;
            }
            part => parts.push(part),
        }
    }
    Some(parts.join("/"))
}

#[cfg(test)]
impl Tree {
    pub(super) fn of(files: &[(&str, &str)]) -> Self {
        let files = files.iter().map(|(path, text)| ((*path).to_owned(), Some((*text).to_owned())));
        Self { files: files.collect(), packages: Vec::new() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_joined_within_the_repository() {
        let cases = [
            ("docs", "names.md", Some("docs/names.md")),
            ("docs/errors", "../names.md", Some("docs/names.md")),
            ("docs", "./errors/", Some("docs/errors")),
            ("", "README.md", Some("README.md")),
            ("docs", "..", Some("")),
            ("docs", "../../elsewhere", None),
        ];
        for (folder, path, expected) in cases {
            assert_eq!(join(folder, path).as_deref(), expected, "{folder} {path}");
        }
    }

    #[test]
    fn new_files_are_read_and_ignored_ones_are_not() {
        let root = std::env::temp_dir().join(format!("redrive-xtask-tree-{}", std::process::id()));
        fs::create_dir_all(root.join("src")).unwrap();
        assert!(Command::new("git").args(["init", "--quiet"]).current_dir(&root).status().unwrap().success());
        for (path, text) in [(".gitignore", "*.log"), ("src/lib.rs", "//! Hi."), ("run.log", "noise")] {
            fs::write(root.join(path), text).unwrap();
        }
        fs::write(root.join("logo.png"), [0xff, 0xfe]).unwrap();
        let tree = Tree { files: read_files(&root).unwrap(), packages: Vec::new() };
        fs::remove_dir_all(&root).unwrap();

        assert_eq!(tree.files.keys().collect::<Vec<_>>(), [".gitignore", "logo.png", "src/lib.rs"]);
        assert_eq!(tree.text("src/lib.rs"), Some("//! Hi."));
        assert_eq!(tree.text("logo.png"), None);
        assert!(tree.has("src") && tree.has("logo.png") && !tree.has("run.log"));
    }
}
