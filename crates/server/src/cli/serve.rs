//! `redrive serve`.

use std::process::ExitCode;

use anyhow::{Context, Error, Result, bail};
use tokio::signal::unix::{Signal, SignalKind, signal};

use super::Configured;
use crate::config::Layer;
use crate::reload;
use crate::serve::Server;

/// What the server can be told.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    config: Configured,
    /// Where to listen, instead of what the configuration says.
    #[arg(long, value_name = "ADDRESS")]
    listen: Option<String>,
    /// Where events are kept, instead of what the configuration says: sqlite:FILE
    #[arg(long, env = "REDRIVE_STORE", value_name = "ADDRESS")]
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
    let server = Server::start_from(source).await?;
    let (grace, store, queues) = {
        let live = server.app().live();
        (live.config.server.grace, live.config.store.address.clone(), live.config.queues.len())
    };
    eprintln!("redrive: listening on http://{}, {queues} queues, events in {store}", server.address());
    reload::warnings(server.app()).iter().for_each(|warning| eprintln!("redrive: {warning}"));
    loop {
        tokio::select! {
            () = signals.next() => break,
            _ = hangup.recv() => reloaded(&server).await,
            error = server.failed() => bail!("the store failed: {error}"),
        }
    }
    eprintln!("redrive: stopping; attempts under way get {}", humantime::format_duration(grace));
    let stopping = server.stop(grace);
    let stopping = tokio::select! {
        stopping = stopping => stopping?,
        () = signals.next() => {
            eprintln!("redrive: stopped at once; what was under way is made again after the next start");
            return Ok(ExitCode::from(130));
        }
    };
    if !stopping.all_ended {
        eprintln!("redrive: some attempts did not end in time, and are made again after the next start");
    }
    Ok(ExitCode::SUCCESS)
}

/// Reads the configuration again, and says what came of it.
async fn reloaded(server: &Server) {
    match reload::reload(server.app()).await {
        Ok(warnings) => {
            eprintln!("redrive: the configuration was read again, and holds");
            warnings.iter().for_each(|warning| eprintln!("redrive: {warning}"));
        }
        Err(error) => {
            eprintln!(
                "redrive: the configuration was read again, and the old one stays: {:#}",
                Error::from(error)
            );
        }
    }
}

/// Ctrl-C and SIGTERM.
struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    fn new() -> std::io::Result<Self> {
        Ok(Self { terminate: signal(SignalKind::terminate())?, interrupt: signal(SignalKind::interrupt())? })
    }

    async fn next(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}
