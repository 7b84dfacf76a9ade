//! What becomes of an engine with millions of events in its file: memory, opening, lateness, lists, redrives.
//!
//! `cargo bench -p redrive-benches --bench scale`. Prints tables, then a line for each target, then all figures as
//! JSON. Every part is a process of its own, so that its memory is its own and every file is opened afresh; with
//! `--part` this program is that process.

mod due;

mod fill;

mod letters;

mod life;

mod memory;

mod pages;

mod part;

mod print;

mod probe;

mod putback;

mod reopen;

mod run;

use std::process::ExitCode;

use redrive_benches::turn::value;

/// Everything here fails for one reason: something that should work does not.
pub(crate) type Fallible<T> = Result<T, Box<dyn std::error::Error + Send + Sync>>;

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().collect();
    let outcome = match value(&args, part::FLAG) {
        Ok(name) => part::be(name, &args).map_err(|error| format!("{name}: {error}")),
        // `cargo bench` says `--bench`. `cargo test --all-targets` calls the binary too and says nothing: nothing
        // is to be measured.
        Err(_) if !args.iter().any(|arg| arg == "--bench") || args.iter().any(|arg| arg == "--list") => {
            Ok(())
        }
        Err(_) => run::all(&args),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}
