//! The commands.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::{Parser, Subcommand};
use redrive::Redrive;

use crate::app::Outside;
use crate::config::{Layer, Source};
use crate::reload::Reloading;
use crate::{demo, queues};

mod audit;
mod backup;
mod dead;
mod event;
mod flow;
mod gateway;
mod help;
mod job;
mod ledger;
mod line;
mod moving;
mod nodes;
mod out;
mod reach;
mod secret;
mod serve;
mod token;
mod which;

/// Do it again, and have it take effect once.
#[derive(Debug, Parser)]
#[command(name = "redrive", version, arg_required_else_help = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// See it at work: a server, a service that really fails, and a stream of orders.
    Demo(demo::Args),
    /// Run the server.
    Serve(serve::Args),
    Gateway(gateway::Args),
    /// Copy the store, while it is in use.
    Backup(backup::Args),
    /// Make a store out of a copy.
    Restore(backup::RestoreArgs),
    Move(moving::Args),
    /// Check the configuration without starting anything.
    Check(Configured),
    /// Secrets that sign events on their way to destinations.
    #[command(subcommand)]
    Secret(secret::Verb),
    /// Tokens, by which callers are known.
    #[command(subcommand)]
    Token(token::Verb),
    /// Print the configuration's documented default.
    Config(ConfigArgs),
    Dead(dead::Args),
    Job(job::Args),
    Event(event::Args),
    Key(flow::key::Args),
    Queue(flow::Args),
    Quarantine(flow::quarantine::Args),
    Ledger(ledger::Args),
    Nodes(nodes::Args),
    Audit(audit::Args),
    /// Print completions for a shell.
    Completions(help::Completions),
    /// Print the manual of a command, as `redrive man dead | man -l -`.
    Man(help::Man),
}

/// Where the configuration is.
#[derive(Debug, clap::Args)]
struct Configured {
    /// The configuration file [default: redrive.toml, if there is one]
    #[arg(long, short, env = "REDRIVE_CONFIG", value_name = "FILE")]
    config: Option<PathBuf>,
}

impl Configured {
    /// The file with the environment over it, and these flags.
    fn source(self, flags: impl IntoIterator<Item = Layer>) -> Source {
        let layers = std::iter::once(Layer::environment()).chain(flags).collect();
        Source { file: self.config, layers }
    }
}

#[derive(Debug, clap::Args)]
struct ConfigArgs {
    /// Print every setting with its default.
    #[arg(long, required = true)]
    default: bool,
}

/// Runs the program.
#[must_use]
pub fn main() -> ExitCode {
    match run(Cli::parse()) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("redrive: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(cli: Cli) -> Result<ExitCode> {
    match cli.command {
        Command::Demo(args) => runtime()?.block_on(demo::run(args)),
        Command::Serve(args) => runtime()?.block_on(serve::run(args)),
        Command::Gateway(args) => runtime()?.block_on(gateway::run(args)),
        Command::Backup(args) => runtime()?.block_on(backup::run(args)),
        Command::Restore(args) => backup::restore(&args),
        Command::Move(args) => runtime()?.block_on(moving::run(args)),
        Command::Check(configured) => runtime()?.block_on(check(configured)),
        Command::Secret(verb) => secret::run(verb),
        Command::Token(verb) => token::run(verb),
        Command::Config(ConfigArgs { .. }) => {
            print!("{}", crate::config::DEFAULT);
            Ok(ExitCode::SUCCESS)
        }
        Command::Dead(args) => runtime()?.block_on(dead::run(args)),
        Command::Job(args) => runtime()?.block_on(job::run(args)),
        Command::Event(args) => runtime()?.block_on(event::run(args)),
        Command::Key(args) => runtime()?.block_on(flow::key::run(args)),
        Command::Queue(args) => runtime()?.block_on(flow::run(args)),
        Command::Quarantine(args) => runtime()?.block_on(flow::quarantine::run(args)),
        Command::Ledger(args) => runtime()?.block_on(ledger::run(args)),
        Command::Nodes(args) => runtime()?.block_on(nodes::run(args)),
        Command::Audit(args) => runtime()?.block_on(audit::run(args)),
        Command::Completions(args) => help::completions(&args),
        Command::Man(args) => help::man(&args),
    }
}

fn runtime() -> Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_multi_thread().enable_all().build().context("cannot start the runtime")
}

async fn check(configured: Configured) -> Result<ExitCode> {
    let source = configured.source([]);
    let config = source.load()?;
    // Commands of operators read the same settings, and need not be able to read the key.
    crate::secrets::check_keys(&config.secrets)?;
    crate::ledger::keep(&config.ledger)?;
    // What only the engine knows: whether policies can be, and windows are long enough for them.
    let outside = Outside::new(&config, Reloading::never()).map_err(anyhow::Error::msg)?;
    queues::set_up(&Redrive::open("memory:").await?, &config, &outside.push).await?;
    config.idle_settings().iter().for_each(|warning| eprintln!("redrive: {warning}"));
    let file = source.path().map_or("the defaults".to_owned(), |path| path.display().to_string());
    let (queues, tokens) = (config.queues.len(), config.tokens.len());
    println!("{file}: fine; queues: {queues}, tokens: {tokens}");
    Ok(ExitCode::SUCCESS)
}
