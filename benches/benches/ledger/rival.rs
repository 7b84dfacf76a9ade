//! The rival's program: a package outside the workspace with its own dependencies. Built before anything is measured.

use std::path::{Path, PathBuf};
use std::process::Command;

/// As it is named in tables.
pub(crate) const NAME: &str = "axum-idempotent 0.6";

/// Where its program is, once it is built.
pub(crate) fn program() -> PathBuf {
    target().join("release/rival-axum-idempotent")
}

/// Builds it, which takes minutes the first time.
pub(crate) fn build() -> Result<(), String> {
    eprintln!("bench: building {NAME}");
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR")).join("rivals/axum-idempotent/Cargo.toml");
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command.args(["build", "--release", "--quiet", "--target-dir"]).arg(target());
    command.arg("--manifest-path").arg(manifest);
    match command.status() {
        Ok(status) if status.success() => Ok(()),
        Ok(_) => Err(format!("{NAME} does not build; measure without it with --no-rivals")),
        Err(error) => Err(format!("cannot run cargo: {error}")),
    }
}

/// Beside our own target, and not in it, so that two builds do not wait for each other.
fn target() -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join("rivals")
}
