//! The commands.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::{Parser, Subcommand};
use redrive::Redrive;

use self::output::say;
use crate::app::AppServices;
use crate::config::{Layer, Setting, Source};
use crate::reload::Reloading;
use crate::{demo, queues};

mod audit;
mod backup;
mod client;
mod connect;
mod dead;
mod event;
mod gateway;
mod job;
mod ledger;
mod manual;
mod move_store;
mod nodes;
mod ordering_key;
mod output;
mod quarantine;
mod queue;
mod secret;
mod selector;
mod serve;
mod token;

/// How long the end of an error is at least that says as much as all of it.
const TELLING: usize = 10;

/// The column at which `redrive config` says where a setting came from.
const COMMENTS_AT: usize = 60;

/// Retry anything; take effect once.
#[derive(Debug, Parser)]
#[command(name = "redrive", version, arg_required_else_help = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run a demo: a server, a failing service, and a stream of orders.
    Demo(demo::Args),
    /// Run the server.
    Serve(serve::Args),
    Gateway(gateway::Args),
    /// Back up the store while it is in use.
    Backup(backup::Args),
    /// Restore a store from a backup.
    Restore(backup::RestoreArgs),
    Move(move_store::Args),
    /// Check the configuration without starting the server.
    Check(ConfigLocation),
    /// Manage the secrets that sign pushed events.
    #[command(subcommand)]
    Secret(secret::SecretCommand),
    /// Manage access tokens.
    #[command(subcommand)]
    Token(token::TokenCommand),
    /// Print the settings in force, each with where it came from.
    Config(ConfigArgs),
    Doctor(connect::doctor::Args),
    Publish(event::publish::Args),
    Tail(event::tail::Args),
    Dead(dead::Args),
    Failing(event::failing::Args),
    Job(job::Args),
    Event(event::Args),
    Key(ordering_key::Args),
    Queue(queue::Args),
    Quarantine(quarantine::Args),
    Ledger(ledger::Args),
    Nodes(nodes::Args),
    Audit(audit::Args),
    /// Print shell completions.
    Completions(manual::Completions),
    /// Print the manual page of a command, e.g. `redrive man dead | man -l -`.
    Man(manual::Man),
}

/// The location of the configuration.
#[derive(Debug, clap::Args)]
struct ConfigLocation {
    /// The configuration file [default: redrive.toml, if it exists]
    #[arg(long, short, env = "REDRIVE_CONFIG", value_name = "FILE")]
    config: Option<PathBuf>,
}

impl ConfigLocation {
    /// The file, overridden by the environment, overridden by these flags.
    fn source(self, flags: impl IntoIterator<Item = Layer>) -> Source {
        let layers = std::iter::once(Layer::environment()).chain(flags).collect();
        Source { file: self.config, layers }
    }
}

#[derive(Debug, clap::Args)]
struct ConfigArgs {
    /// Print the default configuration instead, with comments.
    #[arg(long)]
    default: bool,
    #[command(flatten)]
    location: ConfigLocation,
}

/// Runs the program.
#[must_use]
pub fn main() -> ExitCode {
    match run(Cli::parse()) {
        Ok(code) => code,
        Err(error) => {
            say(told_once(&error));
            ExitCode::FAILURE
        }
    }
}

/// An error with its causes. A cause is left out if what it says, or ends with, was told before.
pub(crate) fn told_once(error: &anyhow::Error) -> String {
    let mut told = String::new();
    for cause in error.chain() {
        let text = cause.to_string();
        let end = text.rsplit(": ").next().filter(|end| end.len() >= TELLING);
        if !told.contains(end.unwrap_or(&text)) {
            if !told.is_empty() {
                told.push_str(": ");
            }
            told.push_str(&text);
        }
    }
    told
}

fn run(cli: Cli) -> Result<ExitCode> {
    match cli.command {
        Command::Demo(args) => runtime()?.block_on(demo::run(args)),
        Command::Serve(args) => runtime()?.block_on(serve::run(args)),
        Command::Gateway(args) => runtime()?.block_on(gateway::run(args)),
        Command::Backup(args) => runtime()?.block_on(backup::run(args)),
        Command::Restore(args) => backup::restore(&args),
        Command::Move(args) => runtime()?.block_on(move_store::run(args)),
        Command::Check(configured) => runtime()?.block_on(check(configured)),
        Command::Secret(verb) => secret::run(verb),
        Command::Token(verb) => token::run(verb),
        Command::Config(args) => config(args),
        Command::Doctor(args) => runtime()?.block_on(connect::doctor::run(args)),
        Command::Publish(args) => runtime()?.block_on(event::publish::run(args)),
        Command::Tail(args) => runtime()?.block_on(event::tail::run(args)),
        Command::Dead(args) => runtime()?.block_on(dead::run(args)),
        Command::Failing(args) => runtime()?.block_on(event::failing::run(args)),
        Command::Job(args) => runtime()?.block_on(job::run(args)),
        Command::Event(args) => runtime()?.block_on(event::run(args)),
        Command::Key(args) => runtime()?.block_on(ordering_key::run(args)),
        Command::Queue(args) => runtime()?.block_on(queue::run(args)),
        Command::Quarantine(args) => runtime()?.block_on(quarantine::run(args)),
        Command::Ledger(args) => runtime()?.block_on(ledger::run(args)),
        Command::Nodes(args) => runtime()?.block_on(nodes::run(args)),
        Command::Audit(args) => runtime()?.block_on(audit::run(args)),
        Command::Completions(args) => manual::completions(&args),
        Command::Man(args) => manual::man(&args),
    }
}

/// Prints the default configuration, or the settings in force.
fn config(ConfigArgs { default, location }: ConfigArgs) -> Result<ExitCode> {
    if default {
        output::put(crate::config::DEFAULT)?;
        return Ok(ExitCode::SUCCESS);
    }
    let settings = location.source([]).settings()?;
    let width =
        settings.iter().map(|setting| setting.name.len() + setting.value.len() + 3).max().unwrap_or_default();
    let width = width.min(COMMENTS_AT);
    let line = |setting: &Setting| {
        let value = format!("{} = {}", setting.name, setting.value);
        format!("{value:width$}  # {}\n", setting.origin)
    };
    output::put(&settings.iter().map(line).collect::<String>())?;
    Ok(ExitCode::SUCCESS)
}

fn runtime() -> Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_multi_thread().enable_all().build().context("cannot start the runtime")
}

async fn check(configured: ConfigLocation) -> Result<ExitCode> {
    let source = configured.source([]);
    let config = source.load()?;
    // Operator commands read the same settings, but need not be able to read the key.
    crate::secrets::check_keys(&config.secrets)?;
    crate::reply_sealing::reply_protection(&config.ledger)?;
    crate::listen::Tls::load(&config.tls)?;
    // Checks that need the engine: policies must be valid, and windows long enough for them.
    let outside = AppServices::new(&config, Reloading::never()).map_err(anyhow::Error::msg)?;
    queues::set_up(&Redrive::open("memory:").await?, &config, &outside).await?;
    config.warnings().iter().for_each(say);
    let file = source.path().map_or("the defaults".to_owned(), |path| path.display().to_string());
    let (queues, tokens) = (config.queues.len(), config.tokens.len());
    println!("{file}: fine; queues: {queues}, tokens: {tokens}");
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cause_is_told_once() {
        let refused = || std::io::Error::new(std::io::ErrorKind::ConnectionRefused, "connection refused");
        let quoting = anyhow::Error::from(refused()).context("cannot reach the database: connection refused");
        let error = quoting.context("cannot open postgres://db/shop");
        assert_eq!(
            told_once(&error),
            "cannot open postgres://db/shop: cannot reach the database: connection refused"
        );
        assert_eq!(
            told_once(&anyhow::Error::from(refused()).context("no way")),
            "no way: connection refused"
        );
        let wrapped = anyhow::anyhow!("error communicating with database: connection refused");
        let wrapped = wrapped.context("it cannot be reached: connection refused");
        assert_eq!(told_once(&wrapped), "it cannot be reached: connection refused");
    }
}
