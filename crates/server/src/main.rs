//! The `redrive` program.

use std::process::ExitCode;

use clap::{Parser, Subcommand};

mod demo;

/// Do it again, and have it take effect once.
#[derive(Debug, Parser)]
#[command(name = "redrive", version, arg_required_else_help = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// See retrying at work: a flaky service on loopback, called under a policy, told as it happens.
    Demo(demo::Args),
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    let outcome = match Cli::parse().command {
        Command::Demo(args) => demo::run(args).await,
    };
    match outcome {
        Ok(code) => code,
        Err(error) => {
            eprintln!("redrive: {error:#}");
            ExitCode::FAILURE
        }
    }
}
