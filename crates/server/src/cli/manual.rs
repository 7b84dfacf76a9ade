//! `redrive completions` and `redrive man`.

use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use clap::CommandFactory as _;
use clap_complete::{Shell, generate};

use super::Cli;
use super::output::put_bytes;

/// The arguments of `redrive completions`.
#[derive(Debug, clap::Args)]
pub(super) struct Completions {
    /// The shell
    #[arg(value_name = "SHELL", value_parser = ["bash", "zsh", "fish"])]
    shell: String,
}

pub(super) fn completions(args: &Completions) -> Result<ExitCode> {
    let shell = match args.shell.as_str() {
        "bash" => Shell::Bash,
        "zsh" => Shell::Zsh,
        _ => Shell::Fish,
    };
    let mut script = Vec::new();
    generate(shell, &mut Cli::command(), "redrive", &mut script);
    put_bytes(&script)?;
    Ok(ExitCode::SUCCESS)
}

/// The arguments of `redrive man`.
#[derive(Debug, clap::Args)]
pub(super) struct Man {
    /// The command, e.g. `dead redrive`; the whole program if omitted
    #[arg(value_name = "COMMAND")]
    command: Vec<String>,
}

/// Prints a manual page: `redrive man | man -l -`.
pub(super) fn man(args: &Man) -> Result<ExitCode> {
    let mut program = Cli::command();
    program.build();
    let mut command = &program;
    for name in &args.command {
        let found = command.find_subcommand(name);
        command = match found {
            Some(command) => command,
            None => bail!("there is no command `{}`", args.command.join(" ")),
        };
    }
    let mut page = Vec::new();
    clap_mangen::Man::new(command.clone()).render(&mut page).context("cannot write the page")?;
    put_bytes(&page)?;
    Ok(ExitCode::SUCCESS)
}
