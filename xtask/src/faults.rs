//! `cargo xtask faults`: an example's campaign of faults, for longer than anybody wants to wait at each change.

use std::process::{Command, ExitCode};

use anyhow::{Context, ensure};

use crate::process;
use crate::workspace::Workspace;

/// The examples that have one.
const KNOWN: [&str; 1] = ["booking"];

/// Which campaign.
pub(crate) struct Options {
    pub(crate) name: String,
    pub(crate) faults: u64,
    pub(crate) seed: u64,
}

/// Runs it.
pub(crate) fn run(workspace: &Workspace, options: &Options) -> anyhow::Result<ExitCode> {
    let mut command = campaign(options)?;
    eprintln!("faults: {}", process::describe(&command));
    let status = command.current_dir(&workspace.root).status().context("cannot run cargo")?;
    Ok(if status.success() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// By its test, whose build has the store's own crash points.
fn campaign(Options { name, faults, seed }: &Options) -> anyhow::Result<Command> {
    ensure!(KNOWN.contains(&name.as_str()), "no example `{name}` has faults; known: {}", KNOWN.join(", "));
    let mut command = process::cargo();
    command.args(["test", "-p", &format!("example-{name}"), "--test", "faults", "--", "--nocapture"]);
    command.env("BOOKING_FAULTS", faults.to_string()).env("BOOKING_SEED", seed.to_string());
    Ok(command)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(name: &str) -> Options {
        Options { name: name.to_owned(), faults: 7, seed: 3 }
    }

    #[test]
    fn faults_and_seed_reach_the_campaign() {
        let line = process::describe(&campaign(&options("booking")).unwrap());
        assert!(line.contains(r#"BOOKING_FAULTS="7""#) && line.contains(r#"BOOKING_SEED="3""#), "{line}");
    }

    #[test]
    fn a_wrong_name_lists_the_known_ones() {
        let error = campaign(&options("bookings")).unwrap_err().to_string();
        assert_eq!(error, "no example `bookings` has faults; known: booking");
    }
}
