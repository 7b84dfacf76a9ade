//! The window without async: the same API, and a commit blocks its thread. It needs no runtime, and must not be called
//! from async code.
//!
//! ```
//! use redrive::window::blocking::{Claim, Window};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let window = Window::open("memory:", Default::default())?;
//! if let Claim::First(ticket) = window.claim("order-17")? {
//!     // … the effect …
//!     ticket.commit()?;
//! }
//! assert!(matches!(window.claim("order-17")?, Claim::Seen { .. }));
//! # Ok(())
//! # }
//! ```

use redrive_core::Moment;
use redrive_store::StoreError;

use super::once::failed;
use super::{Once, OnceError, WindowClaimError, WindowCommitError, WindowSettings, WindowStats};
use crate::address::Address;
use crate::engine::{EventClock, Failure};

/// A window of processed ids. Clones share it.
#[derive(Debug, Clone)]
pub struct Window {
    inner: super::Window,
}

/// The answer to a claim; see [`window::Claim`](super::Claim).
#[derive(Debug)]
pub enum Claim {
    /// No consumer has processed it within the window: process it, then commit.
    First(Ticket),
    /// It was processed: acknowledge it.
    Seen {
        /// When that was committed.
        since: Moment,
    },
    /// Another consumer is working on it: have it delivered again later.
    Busy {
        /// When that claim runs out, if it is not settled before.
        until: Moment,
    },
}

/// The right to process an id, until it runs out; see [`window::ClaimTicket`](super::Ticket).
#[derive(Debug)]
#[must_use = "commit it after the effect, or release it where there was none; dropped, it runs out by itself"]
pub struct Ticket {
    inner: super::Ticket,
}

impl Window {
    /// As [`window::Window::open`](super::Window::open).
    ///
    /// # Errors
    /// If it cannot be opened, with what to do about it.
    pub fn open(address: &str, settings: WindowSettings) -> Result<Self, StoreError> {
        let clock = EventClock::wall();
        let inner = match Address::parse(address)? {
            Address::Memory => super::Window::memory(address, settings, clock)?,
            #[cfg(feature = "sqlite")]
            Address::Sqlite(path) => {
                super::Window::over(super::store::DedupeWindow::open(path, settings, clock.now())?, clock)
            }
            #[cfg(feature = "postgres")]
            Address::Postgres(_) => return Err(crate::address::no_window()),
        };
        Ok(Self { inner })
    }

    /// Claims an id, before its effect. Costs no write.
    ///
    /// # Errors
    /// As [`window::Window::claim`](super::Window::claim).
    pub fn claim(&self, id: impl AsRef<[u8]>) -> Result<Claim, WindowClaimError> {
        self.claim_in("", id)
    }

    /// The same within a scope.
    ///
    /// # Errors
    /// As [`window::Window::claim`](super::Window::claim).
    pub fn claim_in(&self, scope: &str, id: impl AsRef<[u8]>) -> Result<Claim, WindowClaimError> {
        Ok(match self.inner.ask(scope, id.as_ref())? {
            super::Claim::First(inner) => Claim::First(Ticket { inner }),
            super::Claim::Seen { since } => Claim::Seen { since },
            super::Claim::Busy { until } => Claim::Busy { until },
        })
    }

    /// Runs an effect unless it has happened, and commits it; see [`window::Window::once`](super::Window::once).
    ///
    /// # Errors
    /// If the window cannot decide about the id, or the effect failed.
    pub fn once<T>(
        &self,
        id: impl AsRef<[u8]>,
        effect: impl FnOnce() -> Result<T, Failure>,
    ) -> Result<Once<T>, OnceError> {
        match self.claim(id)? {
            Claim::Seen { since } => Ok(Once::Seen { since }),
            Claim::Busy { until } => Ok(Once::Busy { until }),
            Claim::First(ticket) => match effect() {
                Ok(value) => Ok(Once::marked(value, ticket.commit())),
                Err(failure) => Err(failed(ticket.inner, failure)),
            },
        }
    }

    /// Its present size, and its counters since it was opened.
    #[must_use]
    pub fn figures(&self) -> WindowStats {
        self.inner.figures()
    }

    /// Closes it, and waits until the file is free for the next process. Every clone is closed.
    pub fn close(&self) {
        self.inner.shared.store.close_blocking();
    }

    /// The same window, for async code.
    #[must_use]
    pub const fn inner(&self) -> &super::Window {
        &self.inner
    }
}

impl Ticket {
    /// When the claim runs out.
    #[must_use]
    pub const fn until(&self) -> Moment {
        self.inner.until()
    }

    /// Commits: the effect happened. Blocks until that is on the disk.
    ///
    /// # Errors
    /// As [`window::ClaimTicket::commit`](super::Ticket::commit).
    pub fn commit(&self) -> Result<(), WindowCommitError> {
        self.inner.commit_blocking()
    }

    /// Releases the claim: the effect certainly did not happen.
    pub fn release(self) -> bool {
        self.inner.release()
    }
}
