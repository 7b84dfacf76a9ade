//! Opening a store by its address.

use std::sync::Arc;

use redrive_store::{Memory, Store, StoreError};

use super::{EventClock, Redrive};
use crate::address::Address;

/// Options for opening. Defaults: the time of day, the thread's random source.
#[derive(Debug, Default)]
pub struct OpenOptions {
    clock: Option<EventClock>,
    seed: Option<u64>,
    stall_after: Option<std::time::Duration>,
    #[cfg(feature = "sqlite")]
    disk_least: Option<u64>,
    #[cfg(feature = "postgres")]
    postgres: redrive_store::postgres::PostgresSettings,
}

impl OpenOptions {
    /// The defaults.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Another clock, for tests. A time of day gives way to the clock of a store that several processes share.
    #[must_use]
    pub fn clock(mut self, clock: EventClock) -> Self {
        self.clock = Some(clock);
        self
    }

    /// A random source with this seed, for tests: the same waits each time.
    #[must_use]
    pub fn seed(mut self, seed: u64) -> Self {
        self.seed = Some(seed);
        self
    }

    /// How long a shard may have a due event and a free slot and run nothing before the engine takes it again. Only a
    /// bug causes that. Default [30 seconds](redrive_core::scheduler::STALL_AFTER).
    #[must_use]
    pub fn stall_after(mut self, time: std::time::Duration) -> Self {
        self.stall_after = Some(time);
        self
    }

    /// How many free bytes on the disk publishing needs; below, it stops, so that there is room to settle the stored
    /// events. Default 64 MiB.
    #[cfg(feature = "sqlite")]
    #[must_use]
    pub fn disk_least(mut self, bytes: u64) -> Self {
        self.disk_least = Some(bytes);
        self
    }

    /// How a PostgreSQL database is opened: its schema, connections, lease, and the name of this process there.
    #[cfg(feature = "postgres")]
    #[must_use]
    pub fn postgres(mut self, settings: redrive_store::postgres::PostgresSettings) -> Self {
        self.postgres = settings;
        self
    }

    /// Opens the store at an address; see [`Redrive::open`].
    ///
    /// # Errors
    /// If the store cannot be opened.
    pub async fn open(self, address: &str) -> Result<Redrive, StoreError> {
        let store = self.store(address).await?;
        Ok(self.over(store))
    }

    /// The same over a store that is already open.
    #[must_use]
    pub fn over(self, store: Arc<dyn Store>) -> Redrive {
        let clock = self.clock.unwrap_or_else(EventClock::wall).of_store(store.node_lease());
        if let Some(behind) = store.newest().and_then(|newest| clock.go_on_from(newest)) {
            super::observe::clock_is_behind(behind);
        }
        Redrive::over(store, clock, self.seed, self.stall_after)
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
        use redrive_store::sqlite::{Sqlite, SqliteSettings};

        let mut settings = SqliteSettings::default();
        settings.disk_least = self.disk_least.unwrap_or(settings.disk_least);
        // Recovery may take a while, and must not block the runtime.
        let opening = tokio::task::spawn_blocking(move || Sqlite::open(path, settings));
        let store = opening.await.map_err(|_| StoreError::Closed)??;
        Ok(Arc::new(store))
    }
}
