//! How a benchmark is called: by `cargo bench`, by itself as one side, or by a tool that only lists tests.

use std::process::ExitCode;

use crate::turn::value;

/// Runs a benchmark: all of it, or the one side that `flag` names.
pub fn run(
    flag: &str,
    side: impl FnOnce(&str, &[String]) -> Result<(), String>,
    all: impl FnOnce(&[String]) -> Result<(), String>,
) -> ExitCode {
    let args: Vec<String> = std::env::args().collect();
    let says = |word: &str| args.iter().any(|arg| arg == word);
    let outcome = match value(&args, flag) {
        Ok(name) => side(name, &args),
        // `cargo bench` says `--bench`. `cargo test --all-targets` calls the binary too and says nothing: nothing
        // is to be measured.
        Err(_) if !says("--bench") || says("--list") => Ok(()),
        Err(_) => all(&args),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}
