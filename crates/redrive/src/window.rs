//! The dedupe window: for pipelines that bring their own transport, and need each message to take effect once.
//!
//! A broker, a poller or a webhook delivers again when it is not sure. Ask a [`Window`] before the effect, and commit
//! after it:
//!
//! ```
//! use redrive::window::{Claim, WindowSettings, Window};
//! use std::time::Duration;
//!
//! # async fn deliver() -> Result<(), std::io::Error> { Ok(()) }
//! # async fn run() -> Result<(), Box<dyn std::error::Error>> {
//! # let address = "memory:";
//! let settings = WindowSettings {
//!     time: Duration::from_secs(24 * 60 * 60), // longer than the transport may deliver again
//!     count: 10_000_000,                       // more than arrive in that time
//!     claim: Duration::from_secs(5 * 60),      // longer than an effect takes
//! };
//! let window = Window::open(address, settings).await?; // "sqlite:seen.db"
//! match window.claim("order-17").await? {
//!     Claim::First(ticket) => {
//!         deliver().await?;
//!         ticket.commit().await?; // on the disk, when this returns
//!     }
//!     Claim::Seen { .. } => { /* it was done: acknowledge it */ }
//!     Claim::Busy { .. } => { /* another consumer is working on it: have it delivered again later */ }
//! }
//! # Ok(())
//! # }
//! # tokio::runtime::Runtime::new().unwrap().block_on(run()).unwrap();
//! ```
//!
//! # Guarantees, and where they hold
//!
//! The domain is the window's own file, and never the effect's. A committed id is seen, for its time, also after a
//! crash. The process can die between an effect and its commit; then the effect happens again. So: at least once, and
//! twice only after a crash, an expired claim, an id that was evicted early, or a damaged row, each of which is
//! counted or reported. The window never loses a message: an error is never `First`, and never `Seen`. If effect and
//! marker must be atomic, let them commit together: see [`Transaction`](crate::Transaction).
//!
//! A guide with the reasons is `docs/guides/dedupe-window.md`.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use redrive_core::Moment;
use redrive_store::{StoreError, window as store};

use crate::address::Address;
use crate::engine::EventClock;

mod ticket;

mod once;

mod observe;

pub mod blocking;

pub use once::{Once, OnceError};
pub use redrive_store::window::{
    WindowClaimError, WindowCommitError, WindowFull, WindowSettings, WindowSettingsError, WindowStats,
};
pub use ticket::{Claim, Ticket};

/// How many claims pass between two checks of the clock and of evictions to report.
const LOOK_EVERY: u64 = 256;

/// A window of processed ids. Clones share it.
#[derive(Debug, Clone)]
pub struct Window {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    store: store::DedupeWindow,
    clock: EventClock,
    claims: AtomicU64,
    /// Early evictions that were reported.
    told: AtomicU64,
}

impl Window {
    /// Opens a window: `memory:`, or `sqlite:FILE` with everything committed to it before. The file belongs to the
    /// window alone, is created if necessary, and serves one process at a time.
    ///
    /// # Errors
    /// If it cannot be opened, with what to do about it.
    pub async fn open(address: &str, settings: WindowSettings) -> Result<Self, StoreError> {
        Self::open_with(address, settings, EventClock::wall()).await
    }

    /// The same with another clock, for tests.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub async fn open_with(
        address: &str,
        settings: WindowSettings,
        clock: EventClock,
    ) -> Result<Self, StoreError> {
        match Address::parse(address)? {
            Address::Memory => Self::memory(address, settings, clock),
            #[cfg(feature = "sqlite")]
            Address::Sqlite(path) => {
                let now = clock.now();
                // Ten million ids take some seconds to read, and must not block the runtime.
                let opening =
                    tokio::task::spawn_blocking(move || store::DedupeWindow::open(path, settings, now));
                Ok(Self::over(opening.await.map_err(|_| StoreError::Closed)??, clock))
            }
            #[cfg(feature = "postgres")]
            Address::Postgres(_) => Err(crate::address::no_window()),
        }
    }

    /// Claims an id, before its effect. Costs no write, and does not wait.
    ///
    /// # Errors
    /// If the window cannot decide now: leave the message where it is, and ask again later.
    pub async fn claim(&self, id: impl AsRef<[u8]>) -> Result<Claim, WindowClaimError> {
        self.ask("", id.as_ref())
    }

    /// The same within a scope: a tenant, a topic, a handler. The same id in two scopes is two ids.
    ///
    /// # Errors
    /// As [`claim`](Self::claim).
    pub async fn claim_in(&self, scope: &str, id: impl AsRef<[u8]>) -> Result<Claim, WindowClaimError> {
        self.ask(scope, id.as_ref())
    }

    /// Its present size, and its counters since it was opened.
    #[must_use]
    pub fn figures(&self) -> WindowStats {
        let figures = self.shared.store.figures(self.shared.clock.now());
        let before = self.shared.told.fetch_max(figures.evicted_early, Relaxed);
        observe::evicted(before, &figures);
        figures
    }

    /// Rows of the file that could not be read when it was opened. Their ids are lost: redelivered messages with these
    /// ids run again.
    #[must_use]
    pub fn damaged(&self) -> &[String] {
        self.shared.store.damaged()
    }

    /// How many disk syncs all commits since the opening took together.
    #[must_use]
    pub fn syncs(&self) -> u64 {
        self.shared.store.syncs()
    }

    /// Closes it: pending commits are written, and the file is free for the next process. Every clone is closed.
    /// Dropping the last clone does the same, but blocks its thread.
    pub async fn close(&self) {
        self.shared.store.close().await;
    }

    fn memory(address: &str, settings: WindowSettings, clock: EventClock) -> Result<Self, StoreError> {
        let store = store::DedupeWindow::memory(settings).map_err(|error| StoreError::Open {
            path: address.into(),
            why: error.to_string(),
            source: Some(Arc::new(error)),
        })?;
        Ok(Self::over(store, clock))
    }

    fn over(store: store::DedupeWindow, clock: EventClock) -> Self {
        observe::damaged(store.damaged());
        let shared = Shared { store, clock, claims: AtomicU64::new(0), told: AtomicU64::new(0) };
        Self { shared: Arc::new(shared) }
    }

    fn ask(&self, scope: &str, id: &[u8]) -> Result<Claim, WindowClaimError> {
        if self.shared.claims.fetch_add(1, Relaxed).is_multiple_of(LOOK_EVERY) {
            self.shared.clock.follow();
            let _ = self.figures();
        }
        let claimed = self.shared.store.claim(store::ScopedId::of(scope, id), self.now())?;
        Ok(match claimed {
            store::ClaimResult::First(ticket) => Claim::First(Ticket::new(self.clone(), ticket)),
            store::ClaimResult::Seen { since } => {
                observe::duplicate();
                Claim::Seen { since }
            }
            store::ClaimResult::Busy { until } => Claim::Busy { until },
        })
    }

    fn now(&self) -> Moment {
        self.shared.clock.now()
    }
}
