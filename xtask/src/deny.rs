//! `cargo xtask deny`: licences, sources and bans of all dependencies, by the rules in `deny.toml`.
//!
//! Apart from `test`, because its program takes minutes to build. Advisories are left out unless they are asked for:
//! they need a database from the network, and they change the verdict on a commit that did not change.

use std::process::{Command, ExitCode};

use anyhow::{Context, bail};

use crate::workspace::Workspace;
use crate::{install, process};

/// Installs cargo-deny if need be and runs it.
pub(crate) fn run(workspace: &Workspace, advisories: bool, offline: bool) -> anyhow::Result<ExitCode> {
    if !install::on_path("cargo-deny") {
        eprintln!("deny: cargo-deny is missing; installing it, which takes several minutes");
        let installed = run_cargo(workspace, &["install", "--locked", "cargo-deny"])?;
        if !installed {
            bail!("cargo install cargo-deny failed");
        }
    }
    let clean = run_cargo(workspace, &words(advisories, offline))?;
    Ok(if clean { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// What cargo is asked for.
fn words(advisories: bool, offline: bool) -> Vec<&'static str> {
    let mut words = vec!["deny", "check"];
    // An option of `check`, so that the program itself still reads the registry's index.
    words.extend(offline.then_some("--disable-fetch"));
    words.extend(["bans", "licenses", "sources"]);
    words.extend(advisories.then_some("advisories"));
    words
}

fn run_cargo(workspace: &Workspace, words: &[&str]) -> anyhow::Result<bool> {
    let mut command: Command = process::cargo();
    let status = command.current_dir(&workspace.root).args(words).status();
    Ok(status.with_context(|| format!("cannot run cargo {}", words[0]))?.success())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_network_is_asked_only_for_advisories_and_only_if_they_are_wanted() {
        assert_eq!(words(false, false), ["deny", "check", "bans", "licenses", "sources"]);
        assert_eq!(words(true, false).last(), Some(&"advisories"));
        assert!(words(true, true).contains(&"--disable-fetch"));
    }
}
