//! Opening a store by its address.

use std::sync::Arc;

use redrive_store::{Memory, Store, StoreError};

use super::{Redrive, Timepiece};
use crate::address::Address;

/// How to open. Defaults: the time of day, the thread's own dice.
#[derive(Debug, Default)]
pub struct Options {
    clock: Option<Timepiece>,
    seed: Option<u64>,
    #[cfg(feature = "sqlite")]
    disk_least: Option<u64>,
    #[cfg(feature = "postgres")]
    postgres: redrive_store::postgres::Settings,
}

impl Options {
    /// The defaults.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Another clock, for tests. A time of day gives way to the clock of a store that several processes share.
    #[must_use]
    pub fn clock(mut self, clock: Timepiece) -> Self {
        self.clock = Some(clock);
        self
    }

    /// Dice from this seed, for tests: the same waits each time.
    #[must_use]
    pub fn seed(mut self, seed: u64) -> Self {
        self.seed = Some(seed);
        self
    }

    /// Below how many free bytes on the disk publishing stops, so that there is room to settle what is there.
    /// Default 64 MiB.
    #[cfg(feature = "sqlite")]
    #[must_use]
    pub fn disk_least(mut self, bytes: u64) -> Self {
        self.disk_least = Some(bytes);
        self
    }

    /// How a PostgreSQL database is opened: its schema, connections, lease, and what this process is called there.
    #[cfg(feature = "postgres")]
    #[must_use]
    pub fn postgres(mut self, settings: redrive_store::postgres::Settings) -> Self {
        self.postgres = settings;
        self
    }

    /// Opens the store at an address; see [`Redrive::open`].
    ///
    /// # Errors
    /// With what is in the way.
    pub async fn open(self, address: &str) -> Result<Redrive, StoreError> {
        let store = self.store(address).await?;
        Ok(self.over(store))
    }

    /// The same over a store that is open.
    #[must_use]
    pub fn over(self, store: Arc<dyn Store>) -> Redrive {
        let clock = self.clock.unwrap_or_else(Timepiece::wall).of_store(store.tenure());
        Redrive::over(store, clock, self.seed)
    }

    async fn store(&self, address: &str) -> Result<Arc<dyn Store>, StoreError> {
        match Address::parse(address)? {
            Address::Memory => Ok(Arc::new(Memory::new())),
            #[cfg(feature = "sqlite")]
            Address::Sqlite(path) => self.sqlite(path).await,
            #[cfg(feature = "postgres")]
            Address::Postgres(url) => {
                let store = redrive_store::Postgres::open(&url, self.postgres.clone()).await?;
                Ok(Arc::new(store))
            }
        }
    }

    #[cfg(feature = "sqlite")]
    async fn sqlite(&self, path: std::path::PathBuf) -> Result<Arc<dyn Store>, StoreError> {
        use redrive_store::sqlite::{Settings, Sqlite};

        let mut settings = Settings::default();
        settings.disk_least = self.disk_least.unwrap_or(settings.disk_least);
        // Recovery may take a while, and must not hold up the runtime.
        let opening = tokio::task::spawn_blocking(move || Sqlite::open(path, settings));
        let store = opening.await.map_err(|_| StoreError::Closed)??;
        Ok(Arc::new(store))
    }
}
