//! `redrive serve`.

use std::io::IsTerminal as _;
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, Error, Result, bail};
use tokio::signal::unix::{Signal, SignalKind, signal};

use super::ConfigLocation;
use super::connect::in_use;
use super::output::{say, several};
use crate::config::{Config, Layer, Source};
use crate::serve::Server;
use crate::{observe, reload};

/// The arguments of `redrive serve`.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    config: ConfigLocation,
    /// The address to listen on, instead of the configured one.
    #[arg(long, value_name = "ADDRESS")]
    listen: Option<String>,
    /// The store, instead of the configured one: sqlite:FILE or postgres://…
    #[arg(long, env = "REDRIVE_STORE", hide_env_values = true, value_name = "ADDRESS")]
    store: Option<String>,
}

/// Runs a server until Ctrl-C or SIGTERM. A second signal stops it at once. SIGHUP reloads the configuration; if it comes
/// because the server's terminal was closed, it stops the server.
pub(super) async fn run(args: Args) -> Result<ExitCode> {
    let terminal = Terminal::new();
    let mut signals = Signals::new().context("cannot wait for signals")?;
    let mut hangup = signal(SignalKind::hangup()).context("cannot wait for signals")?;
    let listen = args.listen.map(|value| Layer::flag("--listen", ["server", "listen"], value));
    let store = args.store.map(|value| Layer::flag("--store", ["store", "address"], value));
    let source = args.config.source(listen.into_iter().chain(store));
    let config = source.load()?;
    if let Some(what_next) = nothing_to_serve(&source, &config) {
        bail!("{what_next}");
    }
    let observing = observe::log::start(&config.observe)?;
    let grace = config.server.grace;
    let (store, queues, tokens) = (config.store.place(), config.queues.len(), config.tokens.len());
    let (listen, settings) = (config.server.listen, config.store.clone());
    let server = match Server::start_from(config, source).await {
        Err(error) if is_in_use(&error) => {
            bail!("cannot listen on {listen}: {}", in_use(listen, &settings).await)
        }
        server => server?,
    };
    let listening = format!("listening on http://{}", server.address());
    if observing.is_text() {
        let (queues, tokens) = (several(queues as u64, "queue"), several(tokens as u64, "token"));
        say(format!("{listening}, {queues}, {tokens}, events in {store}"));
    } else {
        tracing::info!(store, queues, tokens, "{listening}");
    }
    loop {
        tokio::select! {
            () = signals.next() => break,
            _ = hangup.recv() => {
                if terminal.is_closed() {
                    tracing::info!("the terminal was closed");
                    break;
                }
                reloaded(&server).await;
            }
            error = server.failed() => bail!("the store failed: {error}"),
        }
    }
    tracing::info!("stopping; attempts in progress get {}", humantime::format_duration(grace));
    let stopping = server.stop(grace);
    let stopping = tokio::select! {
        stopping = stopping => stopping?,
        () = signals.next() => {
            tracing::warn!("stopped at once; attempts in progress run again after the next start");
            return Ok(ExitCode::from(130));
        }
    };
    if !stopping.all_ended {
        tracing::warn!("some attempts did not finish in time; they run again after the next start");
    }
    observing.end().await;
    Ok(ExitCode::SUCCESS)
}

/// Whether another process has the address.
fn is_in_use(error: &Error) -> bool {
    let io = error.downcast_ref::<std::io::Error>();
    io.is_some_and(|error| error.kind() == std::io::ErrorKind::AddrInUse)
}

/// What to write, where neither a configuration nor a store is there: a server without queues could do nothing, and
/// would leave an empty store behind.
fn nothing_to_serve(source: &Source, config: &Config) -> Option<&'static str> {
    let has_store = match config.store.address.split_once(':') {
        Some(("sqlite", file)) => Path::new(file.trim_start_matches("//")).exists(),
        Some(("memory", _)) => false,
        _ => true,
    };
    let is_empty = source.path().is_none() && config.queues.is_empty() && !has_store;
    is_empty.then_some(
        "there is no redrive.toml here, so there is no queue to serve; nothing was created. Write redrive.toml with, for \
         example, the one line [queues.orders.pull], then run `redrive serve` again. `redrive config --default` prints \
         every setting, and `redrive demo` needs no configuration",
    )
}

/// Reloads the configuration and logs the result.
async fn reloaded(server: &Server) {
    let app = server.app();
    match reload::reload(app, &app.redrive.desk("server", "SIGHUP")).await {
        Ok(warnings) => {
            tracing::info!("configuration reloaded");
            warnings.iter().for_each(|warning| tracing::warn!("{warning}"));
        }
        Err(error) => {
            let error = Error::from(error);
            tracing::error!("configuration not reloaded, the old one stays in force: {error:#}");
        }
    }
}

/// The terminal that a server was started in, if it was.
struct Terminal(bool);

impl Terminal {
    fn new() -> Self {
        Self(is_on_terminal())
    }

    /// Whether it was there at the start and is gone.
    fn is_closed(&self) -> bool {
        self.0 && !is_on_terminal()
    }
}

/// Whether one of the standard streams is a terminal. One that was closed is none any more.
fn is_on_terminal() -> bool {
    std::io::stdin().is_terminal() || std::io::stdout().is_terminal() || std::io::stderr().is_terminal()
}

/// Ctrl-C and SIGTERM.
pub(super) struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    pub(super) fn new() -> std::io::Result<Self> {
        Ok(Self { terminate: signal(SignalKind::terminate())?, interrupt: signal(SignalKind::interrupt())? })
    }

    pub(super) async fn next(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}
