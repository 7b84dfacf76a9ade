//! `cargo xtask sim`: runs the simulation of scheduler and store, optimised.

use std::process::ExitCode;

use anyhow::Context;

use crate::process;
use crate::workspace::Workspace;

/// Which seeds to run, and whether with planted bugs.
pub(crate) struct Options {
    pub(crate) seeds: Option<u64>,
    pub(crate) from: Option<u64>,
    pub(crate) seed: Option<u64>,
    pub(crate) planted: bool,
}

/// Builds and runs it; its exit code is ours.
pub(crate) fn run(workspace: &Workspace, options: &Options) -> anyhow::Result<ExitCode> {
    let mut command = process::cargo();
    command.current_dir(&workspace.root);
    command.args(["run", "--quiet", "--release", "-p", "redrive-testkit", "--features", "planted"]);
    command.args(["--example", "sim", "--"]);
    let numbers = [("--seeds", options.seeds), ("--from", options.from), ("--seed", options.seed)];
    for (name, number) in numbers {
        if let Some(number) = number {
            command.arg(name).arg(number.to_string());
        }
    }
    if options.planted {
        command.arg("--planted");
    }
    let status = command.status().context("cannot run cargo")?;
    Ok(if status.success() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
