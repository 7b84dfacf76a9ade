//! Runs seeds of the simulation. `cargo xtask sim` calls it, and its help explains every option.
//!
//! - `campaign` runs many seeds on all cores and sums up what happened.
//! - `failing` runs one seed, or the choices of one, and shrinks it if it fails.
//! - `small_scope` goes through every order of messages in a small scope.
//! - `flaws` plants the bugs of `redrive_core::planted` one by one, and looks for each.
//!
//! stdout carries the figures and the failures, stderr the progress. The exit code is 1 if a seed failed or a planted
//! bug was not found, and 2 if the options make no sense.

mod campaign;

mod failing;

mod flaws;

mod options;

mod small_scope;

use std::process::ExitCode;

use options::Task;

fn main() -> ExitCode {
    let task = match options::parse(std::env::args().skip(1)) {
        Ok(task) => task,
        Err(error) => {
            eprintln!("error: {error}");
            return ExitCode::from(2);
        }
    };
    // A panic in a seed is a failure of that seed, and printed as such.
    redrive_testkit::simulation::quiet_panics();
    match task {
        Task::Seeds(campaign) => campaign::run(&campaign),
        Task::Seed { seed, shrink } => failing::seed(seed, shrink.as_ref()),
        Task::Replay(file) => failing::replay(&file),
        Task::Planted { seeds_max } => flaws::find(seeds_max),
        Task::Exhaustive { depth } => small_scope::run(depth),
    }
}
