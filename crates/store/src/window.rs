//! A window of processed ids, in memory or in a file: for pipelines that bring their own transport.
//!
//! [`redrive_core::window`] defines the window and its guarantees. Here threads share it, and it may outlive the
//! process. The caller passes the time in, as with every store; `redrive::window` has a clock.
//!
//! ```
//! use redrive_core::Moment;
//! use redrive_store::window::{ClaimResult, ScopedId, WindowSettings, DedupeWindow};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let window = DedupeWindow::memory(WindowSettings::default())?;
//! let now = Moment::from_nanos(0);
//! if let ClaimResult::First(ticket) = window.claim(ScopedId::of("orders", b"order-17"), now)? {
//!     // … the effect …
//!     window.commit(ticket, now).wait().await?;
//! }
//! # Ok(())
//! # }
//! ```

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use redrive_core::Moment;
use redrive_core::window as core;
use tokio::sync::oneshot;

use crate::error::StoreError;
#[cfg(feature = "sqlite")]
use crate::stores::sqlite::window::Keeper;

mod error;

pub use core::{
    ClaimResult, ClaimTicket, IdMark, ScopedId, WindowFull, WindowSettings, WindowSettingsError, WindowStats,
};
pub use error::{WindowClaimError, WindowCommitError};

/// The state that the callers and the writer share.
#[derive(Debug)]
pub(crate) struct State {
    pub(crate) window: core::WindowState,
    /// Until when all claims are refused because the last commit failed, and how it failed.
    pub(crate) stalled: Option<(Moment, StoreError)>,
    is_closed: bool,
}

/// A window of ids.
#[derive(Debug)]
pub struct DedupeWindow {
    state: Arc<Mutex<State>>,
    damaged: Vec<String>,
    #[cfg(feature = "sqlite")]
    keeper: Option<Keeper>,
}

impl DedupeWindow {
    /// An empty window that ends with the process.
    ///
    /// # Errors
    /// If the settings make no sense.
    pub fn memory(settings: WindowSettings) -> Result<Self, WindowSettingsError> {
        let state = Arc::new(Mutex::new(State::new(settings)?));
        Ok(Self {
            state,
            damaged: Vec::new(),
            #[cfg(feature = "sqlite")]
            keeper: None,
        })
    }

    /// A window in a file, with everything committed to it before. Blocks while it reads that.
    ///
    /// # Errors
    /// [`StoreError::Open`] with what to do about it, and [`StoreError::Newer`] if a newer program wrote it.
    #[cfg(feature = "sqlite")]
    pub fn open(
        path: impl AsRef<std::path::Path>,
        settings: WindowSettings,
        now: Moment,
    ) -> Result<Self, StoreError> {
        let path = path.as_ref();
        let state = State::new(settings).map_err(|error| StoreError::Open {
            path: path.to_owned(),
            why: error.to_string(),
            source: Some(Arc::new(error)),
        })?;
        let state = Arc::new(Mutex::new(state));
        let (keeper, damaged) = Keeper::open(path, &state, now)?;
        Ok(Self { state, damaged, keeper: Some(keeper) })
    }

    /// Claims an id. Costs no write.
    ///
    /// # Errors
    /// If the window cannot decide now: the file failed, or claims fill all of it. An error never means `First`.
    pub fn claim(&self, id: impl Into<ScopedId>, now: Moment) -> Result<ClaimResult, WindowClaimError> {
        self.check()?;
        let mut state = self.state();
        state.check(now)?;
        Ok(state.window.claim(id, now)?)
    }

    /// Commits a claim, after the effect. It is decided at once, and written even if the caller does not wait.
    pub fn commit(&self, ticket: ClaimTicket, now: Moment) -> WindowCommit {
        if let Err(error) = self.check() {
            return WindowCommit::Answered(Err(error.into()));
        }
        let mut state = self.state();
        if state.is_closed {
            return WindowCommit::Answered(Err(StoreError::Closed.into()));
        }
        #[cfg(feature = "sqlite")]
        if let Some(keeper) = &self.keeper {
            let prepared = state.window.prepare(ticket, now);
            drop(state);
            return match prepared {
                Ok(pending) => WindowCommit::Written(keeper.commit(pending, now)),
                Err(refused) => WindowCommit::Answered(Err(refused.into())),
            };
        }
        WindowCommit::Answered(state.window.commit(ticket, now).map_err(WindowCommitError::from))
    }

    /// Releases a claim whose effect certainly did not happen: the next caller is the first. Costs no write. `false` if
    /// the claim ran out and another caller has it.
    pub fn release(&self, ticket: ClaimTicket) -> bool {
        self.state().window.release(ticket)
    }

    /// Its present size, and its counters since it was opened.
    #[must_use]
    pub fn figures(&self, now: Moment) -> WindowStats {
        self.state().window.figures(now)
    }

    /// Rows of the file that could not be read. Their ids are lost: redelivered messages with these ids run again.
    #[must_use]
    pub fn damaged(&self) -> &[String] {
        &self.damaged
    }

    /// How many commits of the file all commits of ids since the opening took together.
    #[must_use]
    pub fn syncs(&self) -> u64 {
        #[cfg(feature = "sqlite")]
        if let Some(keeper) = &self.keeper {
            return keeper.syncs();
        }
        0
    }

    /// Closes the window: it finishes the commit under way, refuses new calls, and frees the file.
    pub async fn close(&self) {
        self.state().is_closed = true;
        #[cfg(feature = "sqlite")]
        if let Some(keeper) = &self.keeper {
            // The sender is gone if the thread died, and then it has ended as well.
            let _ = keeper.close().wait_for(|ended| *ended).await;
        }
    }

    /// The same for code without async.
    pub fn close_blocking(&self) {
        self.state().is_closed = true;
        #[cfg(feature = "sqlite")]
        if let Some(keeper) = &self.keeper {
            keeper.close_blocking();
        }
    }

    fn check(&self) -> Result<(), StoreError> {
        #[cfg(feature = "sqlite")]
        if let Some(keeper) = &self.keeper {
            return keeper.check();
        }
        Ok(())
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Gives a test access to the connection.
    #[cfg(all(feature = "sqlite", feature = "planted"))]
    #[doc(hidden)]
    pub async fn meddle(&self, with: impl FnOnce(&mut rusqlite::Connection) + Send + 'static) {
        if let Some(keeper) = &self.keeper {
            let _ = keeper.meddle(with).await;
        }
    }
}

impl State {
    fn new(settings: WindowSettings) -> Result<Self, WindowSettingsError> {
        Ok(Self { window: core::WindowState::new(settings)?, stalled: None, is_closed: false })
    }

    /// Fails while claims cannot be answered.
    fn check(&self, now: Moment) -> Result<(), StoreError> {
        match &self.stalled {
            _ if self.is_closed => Err(StoreError::Closed),
            Some((until, error)) if now < *until => Err(error.clone()),
            _ => Ok(()),
        }
    }
}

/// A commit that was decided and may still have to be written.
#[derive(Debug)]
#[must_use = "whether it was written is known when it is waited for"]
pub enum WindowCommit {
    /// It needs no write, or was refused.
    Answered(Result<(), WindowCommitError>),
    /// It is being written.
    Written(oneshot::Receiver<Result<(), StoreError>>),
}

impl WindowCommit {
    /// Waits until it is on the disk.
    ///
    /// # Errors If it is not, or the outcome is unknown.
    pub async fn wait(self) -> Result<(), WindowCommitError> {
        match self {
            Self::Answered(answer) => answer,
            Self::Written(told) => Ok(told.await.unwrap_or(Err(StoreError::Closed))?),
        }
    }

    /// The same for code without async.
    ///
    /// # Errors
    /// As [`wait`](Self::wait).
    ///
    /// # Panics
    /// Within a runtime's own thread, which it would block.
    pub fn wait_blocking(self) -> Result<(), WindowCommitError> {
        match self {
            Self::Answered(answer) => answer,
            Self::Written(told) => Ok(told.blocking_recv().unwrap_or(Err(StoreError::Closed))?),
        }
    }
}
