//! What remembering ids costs: ten million of them in a window and in the two collections that people reach for,
//! and what it costs to have them on the disk.
//!
//! `cargo bench -p redrive-benches --bench window`. Prints tables, then a line for each target, then all figures as
//! JSON. Each side is a process of its own, so that its memory can be told apart, and all take turns in short rounds.

mod subprocess;

mod contenders;

mod checks;

mod commits;

mod opening;

mod report;

use std::process::ExitCode;
use std::time::Instant;

use redrive_benches::conditions::{self, Conditions};
use redrive_benches::program;
use redrive_benches::turn::value;

fn main() -> ExitCode {
    program::run(subprocess::FLAG, |side, _| contenders::serve(side), run)
}

fn run(args: &[String]) -> Result<(), String> {
    let number = |word, otherwise: usize| match value(args, word) {
        Ok(text) => text.parse::<usize>().map_err(|error| format!("{word} {text}: {error}")),
        Err(_) => Ok(otherwise),
    };
    let ids = number("--ids", 10_000_000)?;
    let rounds = number("--rounds", 21)?;
    let folder = value(args, "--folder").unwrap_or(env!("CARGO_TARGET_TMPDIR"));
    std::fs::create_dir_all(folder).map_err(|error| format!("{folder}: {error}"))?;
    let folder = tempfile::tempdir_in(folder).map_err(|error| format!("{folder}: {error}"))?;

    let load = conditions::load();
    let started = Instant::now();
    let checks = checks::measure(ids, rounds)?;
    let commits = commits::measure(folder.path())?;
    let opening = opening::measure(folder.path(), ids)?;
    let conditions = Conditions::here();
    report::report(&report::Run {
        conditions,
        load,
        ids,
        rounds,
        took: started.elapsed(),
        checks,
        commits,
        opening,
    });
    Ok(())
}
