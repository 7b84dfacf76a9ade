//! The rivals' programs.
//!
//! Each is a package outside the workspace with a lock file of its own, because no two of them, nor any of
//! them and Redrive, agree on one version of SQLite's C library, which may be linked once. Built here, before
//! anything is measured.

use std::path::{Path, PathBuf};
use std::process::Command;

/// Packages below `benches/rivals/`, and how they are named in tables.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Rival {
    Apalis,
    Effectum,
}

impl Rival {
    pub(crate) const ALL: [Self; 2] = [Self::Apalis, Self::Effectum];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Apalis => "apalis-sqlite 1.0",
            Self::Effectum => "effectum 0.7",
        }
    }

    fn folder(self) -> &'static str {
        match self {
            Self::Apalis => "apalis",
            Self::Effectum => "effectum",
        }
    }

    /// Where its program is, once it is built.
    pub(crate) fn program(self) -> PathBuf {
        target().join("release").join(format!("rival-{}", self.folder()))
    }

    /// Builds its program, which takes minutes the first time.
    pub(crate) fn build(self) -> Result<(), String> {
        eprintln!("bench: building {}", self.name());
        let manifest = Path::new(env!("CARGO_MANIFEST_DIR")).join("rivals").join(self.folder());
        let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        let mut command = Command::new(cargo);
        command.args(["build", "--release", "--quiet", "--target-dir"]).arg(target());
        command.arg("--manifest-path").arg(manifest.join("Cargo.toml"));
        let status = command.status().map_err(|error| format!("cannot run cargo: {error}"))?;
        if status.success() {
            Ok(())
        } else {
            Err(format!("{} does not build; measure without it with --no-rivals", self.name()))
        }
    }
}

/// Beside our own target, and not in it, so that two builds do not wait for each other.
fn target() -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join("rivals")
}
