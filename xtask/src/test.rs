//! `cargo xtask test`: everything that must pass before a change lands.
//!
//! Steps run one after another and none stops the next, so that one run shows all that is wrong. What the
//! tests print goes to stderr, beside cargo's own talk and in order with it; stdout is the summary alone.

mod libtest;
mod steps;
mod summary;

use std::process::{Command, ExitCode};
use std::time::Instant;

use anyhow::{Context, anyhow, ensure};

use crate::install::{self, Missing};
use crate::process;
use crate::workspace::Workspace;
use libtest::Tally;
use steps::Step;
use summary::Outcome;

/// Runs all steps, or with filters the tests they name.
pub(crate) fn run(workspace: &Workspace, no_install: bool, filters: &[String]) -> anyhow::Result<ExitCode> {
    let missing = if no_install { Missing::Refuse } else { Missing::Install };
    install::ensure(missing)?;
    // A service that the tests talk to would be started here, and stopped when its guard drops at the end.
    let steps = match filters {
        [] => steps::all(workspace, no_install),
        filters => vec![steps::tests(workspace, filters)],
    };
    let outcomes: Vec<Outcome> = steps.into_iter().map(perform).collect();

    print!("{}", summary::table(&outcomes));
    println!("{}", outcomes.iter().map(|outcome| outcome.tally).sum::<Tally>());
    let ok = outcomes.iter().all(|outcome| outcome.ok);
    Ok(if ok { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn perform(step: Step) -> Outcome {
    let start = Instant::now();
    let mut tally = Tally::default();
    let mut faults = Vec::new();
    match step.commands {
        // All of them, even after a failure.
        Ok(commands) => {
            faults.extend(commands.into_iter().filter_map(|it| perform_one(step.name, it, &mut tally).err()));
        }
        Err(error) => faults.push(error),
    }
    if faults.is_empty() && step.tests && tally == Tally::default() {
        faults.push(anyhow!("no test ran: no test and no test file has that name, or a `cfg` is mistyped"));
    }
    for fault in &faults {
        eprintln!("== {}: {fault:#}", step.name);
    }
    let ok = faults.is_empty();
    let tally = if ok { tally } else { tally.with_a_failure() };
    let outcome = Outcome { step: step.name, time: start.elapsed(), ok, tally };
    eprintln!("== {}: {} in {}", step.name, outcome.result(), outcome.seconds());
    outcome
}

fn perform_one(step: &str, mut command: Command, tally: &mut Tally) -> anyhow::Result<()> {
    let line = process::describe(&command);
    eprintln!("\n== {step}: {line}");
    let status = process::stream(&mut command, |line| {
        eprintln!("{line}");
        *tally += libtest::tally(line).unwrap_or_default();
    });
    let status = status.with_context(|| format!("cannot run `{line}`"))?;
    ensure!(status.success(), "`{line}` failed: {status}");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> Command {
        let mut shell = Command::new("sh");
        shell.args(["-c", script]);
        shell
    }

    #[test]
    fn a_step_adds_up_its_commands_and_fails_with_any() {
        let good = "echo 'test result: ok. 3 passed; 0 failed; 1 ignored; 0 measured'";
        let bad = "echo 'test result: FAILED. 1 passed; 2 failed; 0 ignored; 0 measured'; exit 1";
        let cases: &[(&[&str], bool, &str)] = &[
            (&[good, good], true, "6 passed, 0 failed, 2 skipped"),
            (&[bad, good], false, "4 passed, 2 failed, 1 skipped"),
            (&[good, "exit 1"], false, "3 passed, 1 failed, 1 skipped"),
            (&["true"], false, "0 passed, 1 failed"),
        ];
        for (scripts, ok, tally) in cases {
            let commands = Ok(scripts.iter().map(|script| shell(script)).collect());
            let outcome = perform(Step { name: "trial", tests: true, commands });
            assert_eq!((outcome.ok, outcome.tally.to_string().as_str()), (*ok, *tally), "{scripts:?}");
        }
    }

    #[test]
    fn a_step_without_tests_needs_only_success() {
        assert!(perform(Step { name: "trial", tests: false, commands: Ok(vec![shell("true")]) }).ok);
        assert!(!perform(Step { name: "trial", tests: false, commands: Err(anyhow!("no such package")) }).ok);
    }
}
