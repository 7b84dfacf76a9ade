//! What becomes of an engine with millions of events in its file: memory, opening, lateness, lists, redrives.
//!
//! `cargo bench -p redrive-benches --bench scale`. Prints tables, then a line for each target, then all figures as
//! JSON. Every part is a process of its own, so that its memory is its own and every file is opened afresh; with
//! `--part` this program is that process.

mod lateness;

mod fill;

mod dead_letters;

mod life_cycles;

mod memory;

mod operator_lists;

mod subprocess;

mod report;

mod sync_probe;

mod redrive_all;

mod reopen;

mod run;

use std::process::ExitCode;

use redrive_benches::program;

/// Everything here fails for one reason: something that should work does not.
pub(crate) type Fallible<T> = Result<T, Box<dyn std::error::Error + Send + Sync>>;

fn main() -> ExitCode {
    let part =
        |name: &str, args: &[String]| subprocess::be(name, args).map_err(|error| format!("{name}: {error}"));
    program::run(subprocess::FLAG, part, run::all)
}
