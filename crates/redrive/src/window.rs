//! The dedupe window: for pipelines that bring their own transport, and want each message to take effect once.
//!
//! A broker, a poller or a webhook delivers again when it is not sure. A [`Window`] is asked before the effect, and
//! told after it:
//!
//! ```
//! use redrive::window::{Claim, Settings, Window};
//! use std::time::Duration;
//!
//! # async fn deliver() -> Result<(), std::io::Error> { Ok(()) }
//! # async fn run() -> Result<(), Box<dyn std::error::Error>> {
//! # let address = "memory:";
//! let settings = Settings {
//!     time: Duration::from_secs(24 * 60 * 60), // longer than the transport may deliver again
//!     count: 10_000_000,                       // more than come in that time
//!     claim: Duration::from_secs(5 * 60),      // longer than an effect takes
//! };
//! let window = Window::open(address, settings).await?; // "sqlite:seen.db"
//! match window.claim("order-17").await? {
//!     Claim::First(ticket) => {
//!         deliver().await?;
//!         ticket.commit().await?; // on the disk, when this returns
//!     }
//!     Claim::Seen { .. } => { /* it was done: acknowledge it */ }
//!     Claim::Busy { .. } => { /* somebody is at it: have it delivered again later */ }
//! }
//! # Ok(())
//! # }
//! # tokio::runtime::Runtime::new().unwrap().block_on(run()).unwrap();
//! ```
//!
//! # What is promised, and where
//!
//! The domain is the window's own file, and never the effect's. What was committed is seen, for its time, also after a
//! crash. Between an effect and its commit the process can die; then the effect happens again. So: at least once,
//! and twice only by a crash, a claim that ran out, an id that was forgotten early, or a damaged row, each of which
//! is counted or named. Nothing is ever lost to the window: an error is never `First`, and never `Seen`. Where
//! effect and marker must be one, let them commit together: see [`Transaction`](crate::Transaction).
//!
//! A guide with the reasons is `docs/window.md`.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use redrive_core::Moment;
use redrive_store::{StoreError, window as store};

use crate::address::Address;
use crate::engine::Timepiece;

mod ticket;

mod once;

mod observe;

pub mod blocking;

pub use once::{Once, OnceError};
pub use redrive_store::window::{ClaimError, CommitError, Figures, Full, Settings, SettingsError};
pub use ticket::{Claim, Ticket};

/// How many claims go by between two looks at the time of day and at what is to be told of.
const LOOK_EVERY: u64 = 256;

/// A window of ids that were dealt with. Clones are the same one.
#[derive(Debug, Clone)]
pub struct Window {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    store: store::Window,
    clock: Timepiece,
    claims: AtomicU64,
    /// Ids forgotten early that were told of.
    told: AtomicU64,
}

impl Window {
    /// Opens a window: `memory:`, or `sqlite:FILE` with what was committed to it before. The file is the window's own,
    /// made if there is none, and has one process at a time.
    ///
    /// # Errors
    /// With what is in the way, and what to do about it.
    pub async fn open(address: &str, settings: Settings) -> Result<Self, StoreError> {
        Self::open_with(address, settings, Timepiece::wall()).await
    }

    /// The same with another clock, for tests.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub async fn open_with(address: &str, settings: Settings, clock: Timepiece) -> Result<Self, StoreError> {
        match Address::parse(address)? {
            Address::Memory => Self::memory(address, settings, clock),
            #[cfg(feature = "sqlite")]
            Address::Sqlite(path) => {
                let now = clock.now();
                // Ten million ids take some seconds to read, and must not hold up the runtime.
                let opening = tokio::task::spawn_blocking(move || store::Window::open(path, settings, now));
                Ok(Self::over(opening.await.map_err(|_| StoreError::Closed)??, clock))
            }
            #[cfg(feature = "postgres")]
            Address::Postgres(_) => Err(crate::address::no_window()),
        }
    }

    /// Asks for an id, before its effect. Costs no write, and does not wait.
    ///
    /// # Errors
    /// Where nothing can be said of it now: leave the message where it is, and ask again later.
    pub async fn claim(&self, id: impl AsRef<[u8]>) -> Result<Claim, ClaimError> {
        self.ask("", id.as_ref())
    }

    /// The same within a scope: a tenant, a topic, a handler. The same id in two scopes is two.
    ///
    /// # Errors
    /// As [`claim`](Self::claim).
    pub async fn claim_in(&self, scope: &str, id: impl AsRef<[u8]>) -> Result<Claim, ClaimError> {
        self.ask(scope, id.as_ref())
    }

    /// How it stands, and what it has seen since it was opened.
    #[must_use]
    pub fn figures(&self) -> Figures {
        let figures = self.shared.store.figures(self.shared.clock.now());
        let before = self.shared.told.fetch_max(figures.evicted_early, Relaxed);
        observe::evicted(before, &figures);
        figures
    }

    /// Rows of the file that could not be read at the opening. Their ids are not known any more: what comes again
    /// of these runs again.
    #[must_use]
    pub fn damaged(&self) -> &[String] {
        self.shared.store.damaged()
    }

    /// How many syncs of the disk all commits since the opening took together.
    #[must_use]
    pub fn syncs(&self) -> u64 {
        self.shared.store.syncs()
    }

    /// Closes it: what is being committed is written, and the file is free for the next process. Every clone is
    /// closed. Dropping the last one does the same, but waits on its thread.
    pub async fn close(&self) {
        self.shared.store.close().await;
    }

    fn memory(address: &str, settings: Settings, clock: Timepiece) -> Result<Self, StoreError> {
        let store = store::Window::memory(settings).map_err(|error| StoreError::Open {
            path: address.into(),
            why: error.to_string(),
            source: Some(Arc::new(error)),
        })?;
        Ok(Self::over(store, clock))
    }

    fn over(store: store::Window, clock: Timepiece) -> Self {
        observe::damaged(store.damaged());
        let shared = Shared { store, clock, claims: AtomicU64::new(0), told: AtomicU64::new(0) };
        Self { shared: Arc::new(shared) }
    }

    fn ask(&self, scope: &str, id: &[u8]) -> Result<Claim, ClaimError> {
        if self.shared.claims.fetch_add(1, Relaxed).is_multiple_of(LOOK_EVERY) {
            self.shared.clock.follow();
            let _ = self.figures();
        }
        let claimed = self.shared.store.claim(store::Id::of(scope, id), self.now())?;
        Ok(match claimed {
            store::Claimed::First(ticket) => Claim::First(Ticket::new(self.clone(), ticket)),
            store::Claimed::Seen { since } => {
                observe::duplicate();
                Claim::Seen { since }
            }
            store::Claimed::Busy { until } => Claim::Busy { until },
        })
    }

    fn now(&self) -> Moment {
        self.shared.clock.now()
    }
}
