//! `cargo xtask deny`: licences, sources and bans of all dependencies, by the rules in `deny.toml`.
//!
//! Apart from `test`, because its program takes minutes to build. Advisories are left out: they need a
//! database from the network, and they change the verdict on a commit that did not change.

use std::process::{Command, ExitCode};

use anyhow::{Context, bail};

use crate::workspace::Workspace;
use crate::{install, process};

/// Installs cargo-deny if need be and runs it.
pub(crate) fn run(workspace: &Workspace) -> anyhow::Result<ExitCode> {
    if !install::on_path("cargo-deny") {
        eprintln!("deny: cargo-deny is missing; installing it, which takes several minutes");
        let installed = run_cargo(workspace, &["install", "--locked", "cargo-deny"])?;
        if !installed {
            bail!("cargo install cargo-deny failed");
        }
    }
    let clean = run_cargo(workspace, &["deny", "check", "bans", "licenses", "sources"])?;
    Ok(if clean { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn run_cargo(workspace: &Workspace, words: &[&str]) -> anyhow::Result<bool> {
    let mut command: Command = process::cargo();
    let status = command.current_dir(&workspace.root).args(words).status();
    Ok(status.with_context(|| format!("cannot run cargo {}", words[0]))?.success())
}
