//! `cargo xtask sim`: runs the simulation of scheduler and store, optimised.

use std::path::PathBuf;
use std::process::{Command, ExitCode};

use anyhow::Context;
use clap::Args;

use crate::process;
use crate::workspace::Workspace;

/// Which seeds to run, and what to do with those that fail.
#[derive(Args, Default)]
pub(crate) struct Options {
    /// How many seeds to run; 10,000 by default. With --planted, how many seeds each bug may take
    #[arg(long, value_name = "N")]
    seeds: Option<u64>,
    /// The first seed; `random` chooses one and prints it
    #[arg(long, value_name = "SEED", value_parser = start)]
    from: Option<String>,
    /// Start from a random seed and print it: the same as `--from random`
    #[arg(long, conflicts_with = "from")]
    random_start: bool,
    /// Stop at the first failure; otherwise all seeds run, and up to 100 failing seeds are listed
    #[arg(long)]
    stop: bool,
    /// Run this seed alone, and shrink it if it fails
    #[arg(long, conflicts_with_all = ["seeds", "from", "random_start", "stop"])]
    seed: Option<u64>,
    /// Print every step of the seed instead of shrinking it
    #[arg(long, requires = "seed")]
    no_shrink: bool,
    /// How long to shrink a failing seed; 60 by default
    #[arg(long, value_name = "SECONDS", requires = "seed", conflicts_with = "no_shrink")]
    shrink_seconds: Option<u64>,
    /// Run the choices in FILE, as a shrunk seed left them, and print every step
    #[arg(long, value_name = "FILE", conflicts_with_all = ["seeds", "from", "random_start", "stop", "seed"])]
    replay: Option<PathBuf>,
    /// Plant bugs one by one, and exit 1 unless each is found
    #[arg(long, conflicts_with_all = ["from", "random_start", "stop", "seed", "replay"])]
    planted: bool,
    /// Go through every order of messages in a small scope, then once without each guard
    #[arg(long, conflicts_with_all = ["seeds", "from", "random_start", "stop", "seed", "replay", "planted"])]
    exhaustive: bool,
    /// How many steps one after the other the exhaustive search goes through; 8 by default
    #[arg(long, value_name = "N", requires = "exhaustive")]
    depth: Option<u64>,
}

fn start(text: &str) -> Result<String, String> {
    match text == "random" || text.parse::<u64>().is_ok() {
        true => Ok(text.to_owned()),
        false => Err("expected a number or `random`".to_owned()),
    }
}

/// Builds and runs it; its exit code is ours.
pub(crate) fn run(workspace: &Workspace, options: &Options) -> anyhow::Result<ExitCode> {
    let mut command = command(workspace, options)?;
    let status = command.status().context("cannot run cargo")?;
    let code = status.code().and_then(|code| u8::try_from(code).ok());
    Ok(code.map_or(ExitCode::FAILURE, ExitCode::from))
}

fn command(workspace: &Workspace, options: &Options) -> anyhow::Result<Command> {
    let mut command = process::cargo();
    command.current_dir(&workspace.root);
    command.args(["run", "--quiet", "--release", "-p", "redrive-testkit", "--features", "planted"]);
    command.args(["--example", "sim", "--"]);
    let number = |number: Option<u64>| number.map(|number| number.to_string());
    let values = [
        ("--seeds", number(options.seeds)),
        ("--from", options.from.clone()),
        ("--seed", number(options.seed)),
        ("--shrink-seconds", number(options.shrink_seconds)),
        ("--depth", number(options.depth)),
    ];
    for (name, value) in values {
        if let Some(value) = value {
            command.args([name, &value]);
        }
    }
    let flags = [
        ("--random-start", options.random_start),
        ("--stop", options.stop),
        ("--no-shrink", options.no_shrink),
        ("--planted", options.planted),
        ("--exhaustive", options.exhaustive),
    ];
    command.args(flags.into_iter().filter(|(_, is_given)| *is_given).map(|(name, _)| name));
    if options.seed.is_some() && !options.no_shrink {
        command.arg("--keep").arg(workspace.target.join("sim"));
    }
    if let Some(file) = &options.replay {
        // It runs in the workspace's root, and the file is meant from where we are.
        command.arg("--replay").arg(std::path::absolute(file).context("cannot find the current folder")?);
    }
    Ok(command)
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Cli {
        #[command(flatten)]
        options: Options,
    }

    fn parsed(line: &str) -> Result<Options, clap::Error> {
        Cli::try_parse_from(["sim"].into_iter().chain(line.split_whitespace())).map(|cli| cli.options)
    }

    #[test]
    fn options_are_passed_on() {
        let workspace = Workspace { root: ".".into(), target: "target".into(), packages: Vec::new() };
        let cases = [
            ("", "--"),
            ("--seeds 5 --from 7 --stop", "-- --seeds 5 --from 7 --stop"),
            ("--seeds 5 --from random", "-- --seeds 5 --from random"),
            ("--random-start", "-- --random-start"),
            ("--seed 9", "-- --seed 9 --keep target/sim"),
            ("--seed 9 --no-shrink", "-- --seed 9 --no-shrink"),
            ("--seed 9 --shrink-seconds 3", "-- --seed 9 --shrink-seconds 3 --keep target/sim"),
            ("--replay /some/file", "-- --replay /some/file"),
            ("--planted --seeds 3", "-- --seeds 3 --planted"),
        ];
        for (line, expected) in cases {
            let options = parsed(line).unwrap_or_else(|error| panic!("{line}: {error}"));
            let command = process::describe(&command(&workspace, &options).unwrap());
            assert!(command.ends_with(&format!("--example sim {expected}")), "{line}: {command}");
        }
    }

    #[test]
    fn wrong_options_are_refused() {
        let lines = [
            "--seads 5",
            "--seeds",
            "--seeds many",
            "--from",
            "--from here",
            "--seed",
            "--seed 1 --seeds 2",
            "--seed 1 --replay file",
            "--no-shrink",
            "--planted --from 3",
        ];
        for line in lines {
            assert!(parsed(line).is_err(), "{line}");
        }
    }
}
