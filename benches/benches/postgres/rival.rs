//! The rival's program: a package outside the workspace with a lock file of its own, built before anything is measured.

use std::path::{Path, PathBuf};
use std::process::Command;

/// As it is named in tables.
pub(crate) const NAME: &str = "graphile_worker 0.14";

const FOLDER: &str = "graphile";

/// Where its program is, once it is built.
pub(crate) fn program() -> PathBuf {
    target().join("release").join(format!("rival-{FOLDER}"))
}

/// Builds its program, which takes minutes the first time.
pub(crate) fn build() -> Result<(), String> {
    eprintln!("bench: building {NAME}");
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR")).join("rivals").join(FOLDER);
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command.args(["build", "--release", "--quiet", "--target-dir"]).arg(target());
    command.arg("--manifest-path").arg(manifest.join("Cargo.toml"));
    let status = command.status().map_err(|error| format!("cannot run cargo: {error}"))?;
    if status.success() {
        Ok(())
    } else {
        Err(format!("{NAME} does not build; measure without it with --no-rivals"))
    }
}

/// Beside our own target, and not in it, so that two builds do not wait for each other.
fn target() -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join("rivals")
}
