//! `cargo xtask crash`: the crash tests, for longer than at each change.

use std::process::{Command, ExitCode};

use anyhow::Context;

use crate::install::Missing;
use crate::workspace::Workspace;
use crate::{install, process};

/// Runs the campaign.
pub(crate) fn run(workspace: &Workspace, rounds: u32, seed: u64) -> anyhow::Result<ExitCode> {
    install::ensure(Missing::Install)?;
    let mut command = campaign(rounds, seed);
    eprintln!("crash: {}", process::describe(&command));
    let status = command.current_dir(&workspace.root).status().context("cannot run cargo")?;
    Ok(if status.success() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn campaign(rounds: u32, seed: u64) -> Command {
    let mut command = process::cargo();
    command.args("test -p redrive --features sqlite --test crash -- --nocapture".split(' '));
    command.env("REDRIVE_CRASH_ROUNDS", rounds.to_string()).env("REDRIVE_CRASH_SEED", seed.to_string());
    command
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounds_and_seed_reach_the_tests() {
        let line = process::describe(&campaign(7, 3));
        assert!(line.contains(r#"REDRIVE_CRASH_ROUNDS="7""#), "{line}");
        assert!(line.contains(r#"REDRIVE_CRASH_SEED="3""#), "{line}");
    }
}
