//! `redrive serve`.

use std::process::ExitCode;

use anyhow::{Context, Error, Result, bail};
use tokio::signal::unix::{Signal, SignalKind, signal};

use super::Configured;
use crate::config::Layer;
use crate::serve::Server;
use crate::{observe, reload};

/// What the server can be told.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    config: Configured,
    /// Where to listen, instead of what the configuration says.
    #[arg(long, value_name = "ADDRESS")]
    listen: Option<String>,
    /// Where events are kept, instead of what the configuration says: sqlite:FILE or postgres://…
    #[arg(long, env = "REDRIVE_STORE", hide_env_values = true, value_name = "ADDRESS")]
    store: Option<String>,
}

/// Runs a server until Ctrl-C or SIGTERM. A second signal stops it at once. SIGHUP has it read its configuration
/// again.
pub(super) async fn run(args: Args) -> Result<ExitCode> {
    let mut signals = Signals::new().context("cannot wait for signals")?;
    let mut hangup = signal(SignalKind::hangup()).context("cannot wait for signals")?;
    let listen = args.listen.map(|value| Layer::flag("--listen", ["server", "listen"], value));
    let store = args.store.map(|value| Layer::flag("--store", ["store", "address"], value));
    let source = args.config.source(listen.into_iter().chain(store));
    let config = source.load()?;
    let observing = observe::log::start(&config.observe)?;
    let grace = config.server.grace;
    let (store, queues, tokens) = (config.store.place(), config.queues.len(), config.tokens.len());
    let server = Server::start_from(config, source).await?;
    let listening = format!("listening on http://{}", server.address());
    if observing.is_text() {
        eprintln!("redrive: {listening}, {queues} queues, {tokens} tokens, events in {store}");
    } else {
        tracing::info!(store, queues, tokens, "{listening}");
    }
    loop {
        tokio::select! {
            () = signals.next() => break,
            _ = hangup.recv() => reloaded(&server).await,
            error = server.failed() => bail!("the store failed: {error}"),
        }
    }
    tracing::info!("stopping; attempts under way get {}", humantime::format_duration(grace));
    let stopping = server.stop(grace);
    let stopping = tokio::select! {
        stopping = stopping => stopping?,
        () = signals.next() => {
            tracing::warn!("stopped at once; what was under way is made again after the next start");
            return Ok(ExitCode::from(130));
        }
    };
    if !stopping.all_ended {
        tracing::warn!("some attempts did not end in time, and are made again after the next start");
    }
    observing.end().await;
    Ok(ExitCode::SUCCESS)
}

/// Reads the configuration again, and says what came of it.
async fn reloaded(server: &Server) {
    let app = server.app();
    match reload::reload(app, &app.redrive.desk("server", "SIGHUP")).await {
        Ok(warnings) => {
            tracing::info!("the configuration was read again, and holds");
            warnings.iter().for_each(|warning| tracing::warn!("{warning}"));
        }
        Err(error) => {
            let error = Error::from(error);
            tracing::error!("the configuration was read again, and the old one stays: {error:#}");
        }
    }
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
