//! A window of ids that were dealt with, in memory or in a file: for pipelines that bring their own transport.
//!
//! What a window is and what holds of it is in [`redrive_core::window`]. Here it is shared by threads, and may
//! outlive the process. Whoever asks hands in the time, as with every store; `redrive::window` has a clock.
//!
//! ```
//! use redrive_core::Moment;
//! use redrive_store::window::{Claimed, Id, Settings, Window};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let window = Window::memory(Settings::default())?;
//! let now = Moment::from_nanos(0);
//! if let Claimed::First(ticket) = window.claim(Id::of("orders", b"order-17"), now)? {
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

pub use core::{Claimed, Figures, Full, Id, Mark, Settings, SettingsError, Ticket};
pub use error::{ClaimError, CommitError};

/// What the callers and the writer share.
#[derive(Debug)]
pub(crate) struct State {
    pub(crate) window: core::Window,
    /// Until when nobody may claim anything, because the last commit failed, and how.
    pub(crate) stalled: Option<(Moment, StoreError)>,
    is_closed: bool,
}

/// A window of ids.
#[derive(Debug)]
pub struct Window {
    state: Arc<Mutex<State>>,
    damaged: Vec<String>,
    #[cfg(feature = "sqlite")]
    keeper: Option<Keeper>,
}

impl Window {
    /// An empty one that ends with the process.
    ///
    /// # Errors
    /// Where the settings make no sense.
    pub fn memory(settings: Settings) -> Result<Self, SettingsError> {
        let state = Arc::new(Mutex::new(State::new(settings)?));
        Ok(Self {
            state,
            damaged: Vec::new(),
            #[cfg(feature = "sqlite")]
            keeper: None,
        })
    }

    /// One in a file, with what was committed to it before. Blocks for as long as it takes to read that.
    ///
    /// # Errors
    /// [`StoreError::Open`] with what to do about it, and [`StoreError::Newer`] where a newer program wrote it.
    #[cfg(feature = "sqlite")]
    pub fn open(
        path: impl AsRef<std::path::Path>,
        settings: Settings,
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

    /// Asks for an id. Costs no write.
    ///
    /// # Errors
    /// Where nothing can be said now: the file failed, or everything that fits is claims. Never taken for `First`.
    pub fn claim(&self, id: impl Into<Id>, now: Moment) -> Result<Claimed, ClaimError> {
        self.check()?;
        let mut state = self.state();
        state.check(now)?;
        Ok(state.window.claim(id, now)?)
    }

    /// Commits a claim, after the effect. It is judged at once, and written with or without somebody who waits.
    pub fn commit(&self, ticket: Ticket, now: Moment) -> Committing {
        if let Err(error) = self.check() {
            return Committing::Answered(Err(error.into()));
        }
        let mut state = self.state();
        if state.is_closed {
            return Committing::Answered(Err(StoreError::Closed.into()));
        }
        #[cfg(feature = "sqlite")]
        if let Some(keeper) = &self.keeper {
            let prepared = state.window.prepare(ticket, now);
            drop(state);
            return match prepared {
                Ok(pending) => Committing::Written(keeper.commit(pending, now)),
                Err(refused) => Committing::Answered(Err(refused.into())),
            };
        }
        Committing::Answered(state.window.commit(ticket, now).map_err(CommitError::from))
    }

    /// Gives a claim back whose effect certainly did not happen: the next one who asks is the first. Costs no
    /// write. `false` where it ran out and is somebody else's.
    pub fn release(&self, ticket: Ticket) -> bool {
        self.state().window.release(ticket)
    }

    /// How it stands, and what it has seen since it was opened.
    #[must_use]
    pub fn figures(&self, now: Moment) -> Figures {
        self.state().window.figures(now)
    }

    /// Rows of the file that could not be read. Their ids are not known any more: what comes again of these runs
    /// again.
    #[must_use]
    pub fn damaged(&self) -> &[String] {
        &self.damaged
    }

    /// How many commits of the file were shared by all that was committed since it was opened.
    #[must_use]
    pub fn syncs(&self) -> u64 {
        #[cfg(feature = "sqlite")]
        if let Some(keeper) = &self.keeper {
            return keeper.syncs();
        }
        0
    }

    /// Closes it: what is being committed is written, nobody else is let in, and the file is free for the next.
    pub async fn close(&self) {
        self.state().is_closed = true;
        #[cfg(feature = "sqlite")]
        if let Some(keeper) = &self.keeper {
            // The sender is gone where the thread died, and then it has ended as well.
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

    /// Lets a test at the connection.
    #[cfg(all(feature = "sqlite", feature = "planted"))]
    #[doc(hidden)]
    pub async fn meddle(&self, with: impl FnOnce(&mut rusqlite::Connection) + Send + 'static) {
        if let Some(keeper) = &self.keeper {
            let _ = keeper.meddle(with).await;
        }
    }
}

impl State {
    fn new(settings: Settings) -> Result<Self, SettingsError> {
        Ok(Self { window: core::Window::new(settings)?, stalled: None, is_closed: false })
    }

    /// Nothing, while claims can be answered.
    fn check(&self, now: Moment) -> Result<(), StoreError> {
        match &self.stalled {
            _ if self.is_closed => Err(StoreError::Closed),
            Some((until, error)) if now < *until => Err(error.clone()),
            _ => Ok(()),
        }
    }
}

/// A commit that was judged and may still have to be written.
#[derive(Debug)]
#[must_use = "whether it was written is known when it is waited for"]
pub enum Committing {
    /// It needs no writing, or was refused.
    Answered(Result<(), CommitError>),
    /// It is being written.
    Written(oneshot::Receiver<Result<(), StoreError>>),
}

impl Committing {
    /// Waits until it is on the disk.
    ///
    /// # Errors
    /// Where it is not, or nobody knows.
    pub async fn wait(self) -> Result<(), CommitError> {
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
    /// Within a runtime's own thread, which it would hold up.
    pub fn wait_blocking(self) -> Result<(), CommitError> {
        match self {
            Self::Answered(answer) => answer,
            Self::Written(told) => Ok(told.blocking_recv().unwrap_or(Err(StoreError::Closed))?),
        }
    }
}
