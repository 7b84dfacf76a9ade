//! Opening a store by its address.

use std::sync::Arc;

use redrive_store::{Memory, Store, StoreError};

use super::{Redrive, Timepiece};

/// How to open. Defaults: the time of day, the thread's own dice.
#[derive(Debug, Default)]
pub struct Options {
    clock: Option<Timepiece>,
    seed: Option<u64>,
    #[cfg(feature = "sqlite")]
    disk_least: Option<u64>,
}

impl Options {
    /// The defaults.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Another clock, for tests.
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
        Redrive::over(store, self.clock.unwrap_or_else(Timepiece::wall), self.seed)
    }

    async fn store(&self, address: &str) -> Result<Arc<dyn Store>, StoreError> {
        let cannot = |why: &str| StoreError::Open { path: address.into(), why: why.to_owned(), source: None };
        match address.split_once(':').unwrap_or((address, "")) {
            ("memory", _) => Ok(Arc::new(Memory::new())),
            ("sqlite", "" | "//") => Err(cannot("it names no file; write `sqlite:orders.db`")),
            ("sqlite", ":memory:") => {
                Err(cannot("a database in memory is no store for events; use `memory:`"))
            }
            ("sqlite", path) if path.contains('?') => {
                Err(cannot("an address has no `?…`; settings are in `engine::Options`"))
            }
            #[cfg(feature = "sqlite")]
            ("sqlite", path) => self.sqlite(path.trim_start_matches("//")).await,
            #[cfg(not(feature = "sqlite"))]
            ("sqlite", _) => Err(cannot("this program was built without the feature `sqlite` of redrive")),
            _ => Err(cannot("there is no such store; use `sqlite:FILE` or `memory:`")),
        }
    }

    #[cfg(feature = "sqlite")]
    async fn sqlite(&self, path: &str) -> Result<Arc<dyn Store>, StoreError> {
        use redrive_store::sqlite::{Settings, Sqlite};

        let mut settings = Settings::default();
        settings.disk_least = self.disk_least.unwrap_or(settings.disk_least);
        let path = std::path::PathBuf::from(path);
        // Recovery may take a while, and must not hold up the runtime.
        let opening = tokio::task::spawn_blocking(move || Sqlite::open(path, settings));
        let store = opening.await.map_err(|_| StoreError::Closed)??;
        Ok(Arc::new(store))
    }
}
