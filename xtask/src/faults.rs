//! `cargo xtask faults`: a campaign of faults, for longer than at each change.

use std::process::{Command, ExitCode};

use anyhow::Context;

use crate::install::Missing;
use crate::workspace::Workspace;
use crate::{install, process};

/// A campaign: its name, its test, and its default number of faults.
struct Campaign {
    name: &'static str,
    test: &'static str,
    faults: u64,
}

/// The campaigns, by their tests: one is built with the store's own crash points, another starts a server.
const KNOWN: [Campaign; 6] = [
    Campaign { name: "booking", test: "-p example-booking --test faults one_booking", faults: 10_000 },
    Campaign { name: "booking-postgres", test: "-p example-booking --test faults the_same", faults: 1_000 },
    Campaign {
        name: "kafka",
        test: "-p redrive-broker --all-features --test kafka every_message",
        faults: 200,
    },
    Campaign { name: "nodes", test: "-p redrive --features postgres --test fleet", faults: 200 },
    Campaign { name: "outage", test: "-p redrive-server --lib an_outage", faults: 1_000 },
    Campaign { name: "postgres", test: "-p redrive --features postgres --test restarts", faults: 100 },
];

/// Which campaign.
pub(crate) struct Options {
    pub(crate) name: String,
    pub(crate) faults: Option<u64>,
    pub(crate) seed: u64,
}

/// Runs it.
pub(crate) fn run(workspace: &Workspace, options: &Options) -> anyhow::Result<ExitCode> {
    let mut command = campaign(options)?;
    install::ensure(Missing::Install)?;
    eprintln!("faults: {}", process::describe(&command));
    let status = command.current_dir(&workspace.root).status().context("cannot run cargo")?;
    Ok(if status.success() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn campaign(Options { name, faults, seed }: &Options) -> anyhow::Result<Command> {
    let known = KNOWN.map(|campaign| campaign.name).join(", ");
    let campaign = KNOWN.iter().find(|campaign| campaign.name == name);
    let campaign = campaign.with_context(|| format!("there is no campaign `{name}`; known: {known}"))?;
    let faults = faults.unwrap_or(campaign.faults);
    let mut command = process::cargo();
    command.arg("test").args(campaign.test.split(' ')).args(["--", "--nocapture"]);
    command.env("REDRIVE_FAULTS", faults.to_string()).env("REDRIVE_SEED", seed.to_string());
    Ok(command)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(name: &str, faults: Option<u64>) -> anyhow::Result<String> {
        let command = campaign(&Options { name: name.to_owned(), faults, seed: 3 })?;
        Ok(process::describe(&command))
    }

    #[test]
    fn faults_and_seed_reach_the_campaign() {
        for (name, faults, count) in [
            ("booking", Some(7), 7),
            ("booking", None, 10_000),
            ("nodes", None, 200),
            ("postgres", None, 100),
            ("nodes", Some(9), 9),
            ("outage", None, 1_000),
        ] {
            let line = line(name, faults).unwrap();
            let faults = format!(r#"REDRIVE_FAULTS="{count}""#);
            assert!(line.contains(&faults) && line.contains(r#"REDRIVE_SEED="3""#), "{line}");
        }
    }

    #[test]
    fn a_wrong_name_lists_the_known_ones() {
        let error = line("bookings", None).unwrap_err().to_string();
        assert_eq!(
            error,
            "there is no campaign `bookings`; known: booking, booking-postgres, kafka, nodes, outage, postgres"
        );
    }
}
