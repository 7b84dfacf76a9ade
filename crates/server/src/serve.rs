//! The life of a server: from its configuration to its stop.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use redrive::engine::{OpenOptions, StopReport};
use redrive::{Redrive, StoreError};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet};

use crate::app::{App, AppServices};
use crate::config::{Config, Source};
use crate::reload::Reloading;
use crate::secrets::Secrets;
use crate::{api, audit, listen, notify, observe, queues, reload};

/// A server that runs.
#[derive(Debug)]
pub struct Server {
    app: Arc<App>,
    address: SocketAddr,
    stop: watch::Sender<bool>,
    listening: JoinHandle<()>,
    /// Background tasks; they end with the server.
    chores: JoinSet<()>,
}

/// How often metrics are compacted.
const UPKEEP: Duration = Duration::from_secs(5);

impl Server {
    /// Opens the store, sets the queues up, starts the engine and listens.
    ///
    /// # Errors
    /// With the reason.
    pub async fn start(config: Config) -> Result<Self> {
        Self::start_with(config, Reloading::never()).await
    }

    /// The same with a configuration that can be reloaded.
    ///
    /// # Errors
    /// With the reason.
    pub async fn start_from(config: Config, source: Source) -> Result<Self> {
        Self::start_with(config, Reloading::from(source)).await
    }

    async fn start_with(config: Config, reloading: Reloading) -> Result<Self> {
        observe::metrics::install();
        observe::metrics::begin(config.queues.keys());
        // First, so that a taken address is reported before anything is touched.
        let listen = config.server.listen;
        let listener =
            TcpListener::bind(listen).await.with_context(|| format!("cannot listen on {listen}"))?;
        let address = listener.local_addr().context("the listening address")?;
        let tls = listen::Tls::load(&config.tls)?;
        let redrive = open(&config).await?;
        let outside = AppServices::new(&config, reloading).map_err(anyhow::Error::msg)?;
        queues::set_up(&redrive, &config, &outside).await?;
        if config.store.is_shared() {
            outside.secrets.share();
        }
        outside.secrets.load(&redrive, &config.secrets).await.context("cannot read the secrets")?;
        crate::reply_sealing::reply_protection(&config.ledger)
            .context("cannot read the keys that seal replies")?;
        notify::set_up(&redrive, &config).await?;
        redrive
            .start()
            .await
            .with_context(|| format!("cannot run the queues of {}", config.store.place()))?;
        let settings = config.server.clone();
        let node = config.store.node_name();
        let mut chores = chores(&redrive, &config, &outside.secrets);
        let app = App::new(redrive, config, outside);
        let writing = app.clone();
        chores.spawn(async move { writing.failed_sign_ins.write(&writing.redrive).await });
        chores.spawn(audit::sealing::seal(app.clone(), node));
        for warning in reload::warnings(&app) {
            tracing::warn!("{warning}");
        }
        let router = api::router(app.clone());
        let (stop, stopped) = watch::channel(false);
        let listening =
            tokio::spawn(async move { listen::serve(listener, router, &settings, tls, stopped).await });
        Ok(Self { app, address, stop, listening, chores })
    }

    /// The listening address.
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

    /// Stops: no new connections; requests and attempts in progress get `grace`; then the store is closed.
    ///
    /// # Errors
    /// Where the store could not be closed cleanly. Nothing is lost then either.
    pub async fn stop(mut self, grace: Duration) -> Result<StopReport> {
        self.app.stopping.send_replace(true);
        self.stop.send_replace(true);
        self.app.lines.close();
        self.chores.abort_all();
        // The store stays open until both are done: a request in progress is answered, not refused.
        let requests = tokio::time::timeout(grace.max(Duration::from_secs(1)), self.listening);
        let (stopping, _) = tokio::join!(self.app.redrive.drain(grace), requests);
        self.app.redrive.shutdown(Duration::ZERO).await?;
        Ok(stopping)
    }
}

/// Starts the background tasks.
fn chores(redrive: &Redrive, config: &Config, secrets: &Arc<Secrets>) -> JoinSet<()> {
    let mut chores = JoinSet::new();
    chores.spawn(async {
        let mut tick = tokio::time::interval(UPKEEP);
        loop {
            tick.tick().await;
            observe::metrics::keep_small();
        }
    });
    if config.store.is_shared() {
        let (secrets, redrive) = (secrets.clone(), redrive.clone());
        chores.spawn(async move { secrets.watch(&redrive).await });
    }
    if config.notify.url.is_some() {
        chores.spawn(notify::watch(redrive.clone(), config.notify.clone()));
    }
    chores
}

/// Opens the store of a configuration.
///
/// # Errors
/// With the reason.
pub async fn open(config: &Config) -> Result<Redrive> {
    let address = &config.store.address;
    let options = OpenOptions::new().disk_least(config.store.disk_least).postgres(config.store.database());
    options.open(address).await.with_context(|| format!("cannot open {}", config.store.place()))
}
