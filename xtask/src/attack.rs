//! `cargo xtask attack`: campaigns of hostile clients against the real program, for longer than at each change.
//!
//! A campaign is a module of a test target. It holds the attack and a control: the same attack where the defence is
//! switched off, which must succeed, so that a campaign that cannot fail is noticed. `cargo xtask test` runs the short
//! form of each as ordinary tests.
//!
//! To add one: write `crates/server/tests/attack/NAME.rs`, and a line in [`CAMPAIGNS`].

use std::process::{Command, ExitCode};

use anyhow::{Context, bail};

use crate::install::Missing;
use crate::workspace::Workspace;
use crate::{install, process};

/// A campaign: its name, and the tests that it consists of.
struct Campaign {
    name: &'static str,
    test: &'static str,
}

/// The campaigns, in the order in which they run.
const CAMPAIGNS: &[Campaign] = &[
    Campaign { name: "upgrades", test: "-p redrive-server --test attack upgrades::" },
    Campaign { name: "drip", test: "-p redrive-server --test attack drip::" },
    Campaign { name: "key-burning", test: "-p redrive-server --test attack key_burning::" },
    Campaign { name: "limiter-storm", test: "-p redrive-server --test attack limiter_storm::" },
    Campaign { name: "replay-matrix", test: "-p redrive-server --test attack replay_matrix::" },
    Campaign { name: "rebinding", test: "-p redrive-server --test attack rebinding::" },
    Campaign { name: "tenant-flood", test: "-p redrive-server --test attack tenant_flood::" },
    Campaign { name: "forged-notify", test: "-p redrive-server --test attack forged_notify::" },
    Campaign { name: "rights", test: "-p redrive-server --test api rights::" },
    Campaign { name: "held-connections", test: "-p redrive-server --test api held_connections::" },
    Campaign { name: "revocation", test: "-p redrive-server --test api revocation::" },
    Campaign { name: "hostile-schema", test: "-p redrive-store --all-features --test postgres_hostile" },
];

/// Which campaigns, and how long.
pub(crate) struct Options {
    pub(crate) names: Vec<String>,
    pub(crate) short: bool,
}

/// Runs them one after another; a failing one does not stop the next.
pub(crate) fn run(workspace: &Workspace, options: &Options) -> anyhow::Result<ExitCode> {
    let chosen = chosen(&options.names)?;
    install::ensure(Missing::Install)?;
    let mut failed = Vec::new();
    for campaign in chosen {
        let mut command = command(campaign, options.short);
        eprintln!("attack {}: {}", campaign.name, process::describe(&command));
        let status = command.current_dir(&workspace.root).status().context("cannot run cargo")?;
        let word = if status.success() { "held" } else { "FAILED" };
        println!("{:<16} {word}", campaign.name);
        if !status.success() {
            failed.push(campaign.name);
        }
    }
    Ok(if failed.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The named campaigns; all of them if none is named.
fn chosen(names: &[String]) -> anyhow::Result<Vec<&'static Campaign>> {
    let wrong = names.iter().find(|name| CAMPAIGNS.iter().all(|campaign| campaign.name != **name));
    if let Some(name) = wrong {
        let known: Vec<_> = CAMPAIGNS.iter().map(|campaign| campaign.name).collect();
        bail!("there is no campaign `{name}`; known: {}", known.join(", "));
    }
    let is_chosen = |campaign: &&Campaign| names.is_empty() || names.iter().any(|name| name == campaign.name);
    Ok(CAMPAIGNS.iter().filter(is_chosen).collect())
}

/// The long form attacks the release build; the short one the build that the tests use.
fn command(campaign: &Campaign, short: bool) -> Command {
    let mut command = process::cargo();
    command.arg("test");
    if !short {
        command.arg("--release");
    }
    command.args(campaign.test.split(' ')).args(["--", "--nocapture", "--test-threads=1"]);
    command.env("REDRIVE_ATTACK", if short { "short" } else { "full" });
    command
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_length_reaches_the_campaign() {
        let campaign = &chosen(&["upgrades".to_owned()]).unwrap()[0];
        let full = process::describe(&command(campaign, false));
        assert!(full.contains(r#"REDRIVE_ATTACK="full""#) && full.contains("--release"), "{full}");
        let short = process::describe(&command(campaign, true));
        assert!(short.contains(r#"REDRIVE_ATTACK="short""#) && !short.contains("--release"), "{short}");
    }

    #[test]
    fn all_run_unless_some_are_named_and_a_wrong_name_lists_them() {
        assert_eq!(chosen(&[]).unwrap().len(), CAMPAIGNS.len());
        let error = chosen(&["upgrade".to_owned()]).err().unwrap().to_string();
        assert!(error.starts_with("there is no campaign `upgrade`; known: upgrades"), "{error}");
    }
}
