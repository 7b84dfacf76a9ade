//! The `redrive` program.

use std::process::ExitCode;

fn main() -> ExitCode {
    redrive_server::cli::main()
}
