//! The life of a server: from its configuration to its stop.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use redrive::engine::{Options, Stopping};
use redrive::{Redrive, StoreError};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet};

use crate::app::{App, Outside};
use crate::config::{Config, Source};
use crate::reload::Reloading;
use crate::{api, listen, notify, observe, queues, reload};

/// A server that runs.
#[derive(Debug)]
pub struct Server {
    app: Arc<App>,
    address: SocketAddr,
    stop: watch::Sender<bool>,
    listening: JoinHandle<()>,
    /// What goes on in the background; ends with the server.
    chores: JoinSet<()>,
}

/// How often what was measured is put in order.
const UPKEEP: Duration = Duration::from_secs(5);

impl Server {
    /// Opens the store, sets the queues up, starts the engine and listens.
    ///
    /// # Errors
    /// With what is in the way.
    pub async fn start(config: Config) -> Result<Self> {
        Self::start_with(config, Reloading::never()).await
    }

    /// The same with a configuration that can be read again.
    ///
    /// # Errors
    /// With what is in the way.
    pub async fn start_from(config: Config, source: Source) -> Result<Self> {
        Self::start_with(config, Reloading::from(source)).await
    }

    async fn start_with(config: Config, reloading: Reloading) -> Result<Self> {
        observe::metrics::install();
        observe::metrics::begin(config.queues.keys());
        // First, so that an address that is taken is told before anything is touched.
        let listen = config.server.listen;
        let listener =
            TcpListener::bind(listen).await.with_context(|| format!("cannot listen on {listen}"))?;
        let address = listener.local_addr().context("the address that is listened on")?;
        let redrive = open(&config).await?;
        let outside = Outside::new(&config, reloading).map_err(anyhow::Error::msg)?;
        queues::set_up(&redrive, &config, &outside.push).await?;
        outside.secrets.load(&redrive, &config.secrets).await.context("cannot read the secrets")?;
        crate::ledger::keep(&config.ledger).context("cannot read the keys that seal answers")?;
        notify::set_up(&redrive, &config).await?;
        redrive
            .start()
            .await
            .with_context(|| format!("cannot run the queues of {}", config.store.place()))?;
        let settings = config.server.clone();
        let chores = chores(&redrive, &config);
        let app = App::new(redrive, config, outside);
        for warning in reload::warnings(&app) {
            tracing::warn!("{warning}");
        }
        let router = api::router(app.clone());
        let (stop, stopped) = watch::channel(false);
        let listening =
            tokio::spawn(async move { listen::serve(listener, router, &settings, stopped).await });
        Ok(Self { app, address, stop, listening, chores })
    }

    /// Where it listens.
    #[must_use]
    pub const fn address(&self) -> SocketAddr {
        self.address
    }

    /// What its requests share.
    #[must_use]
    pub const fn app(&self) -> &Arc<App> {
        &self.app
    }

    /// Waits until the engine stops by itself, which it does only when the store failed.
    pub async fn failed(&self) -> StoreError {
        self.app.redrive.failed().await
    }

    /// Stops: no new connections, requests and attempts under way get `grace`, then the store is closed.
    ///
    /// # Errors
    /// Where the store could not be closed cleanly. Nothing is lost then either.
    pub async fn stop(mut self, grace: Duration) -> Result<Stopping> {
        self.app.stopping.send_replace(true);
        self.stop.send_replace(true);
        self.app.lines.close();
        self.chores.abort_all();
        // The store is open until both are done: a request that is under way is answered, and not refused.
        let requests = tokio::time::timeout(grace.max(Duration::from_secs(1)), self.listening);
        let (stopping, _) = tokio::join!(self.app.redrive.drain(grace), requests);
        self.app.redrive.shutdown(Duration::ZERO).await?;
        Ok(stopping)
    }
}

/// Begins what goes on in the background.
fn chores(redrive: &Redrive, config: &Config) -> JoinSet<()> {
    let mut chores = JoinSet::new();
    chores.spawn(async {
        let mut tick = tokio::time::interval(UPKEEP);
        loop {
            tick.tick().await;
            observe::metrics::keep_small();
        }
    });
    if config.notify.url.is_some() {
        chores.spawn(notify::watch(redrive.clone(), config.notify.every));
    }
    chores
}

/// Opens the store of a configuration.
///
/// # Errors
/// With what is in the way.
pub async fn open(config: &Config) -> Result<Redrive> {
    let address = &config.store.address;
    let options = Options::new().disk_least(config.store.disk_least).postgres(config.store.database());
    options.open(address).await.with_context(|| format!("cannot open {}", config.store.place()))
}
