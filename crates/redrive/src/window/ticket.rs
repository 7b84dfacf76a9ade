//! The answer to a claim, and the ticket that comes with it.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use redrive_core::Moment;
use redrive_store::window::{self as store, WindowCommit, WindowCommitError};

use super::Window;

/// The answer to a claim.
#[derive(Debug)]
pub enum Claim {
    /// No consumer has processed it within the window: process it, then commit.
    First(Ticket),
    /// It was processed: acknowledge it.
    Seen {
        /// When that was committed.
        since: Moment,
    },
    /// Another consumer is working on it: have it delivered again later, and do not acknowledge it, because that
    /// consumer may fail.
    Busy {
        /// When that claim runs out, if it is not settled before.
        until: Moment,
    },
}

/// The right to process an id, until it runs out.
///
/// **Dropping it does not release it.** A consumer that drops its ticket, by a panic, a cancelled task or an early
/// return, may have had the effect already, so the id stays claimed until the claim runs out. If nothing was executed,
/// say so with [`release`](Self::release).
#[derive(Debug)]
#[must_use = "commit it after the effect, or release it where there was none; dropped, it runs out by itself"]
pub struct Ticket {
    window: Window,
    ticket: store::ClaimTicket,
    is_committed: AtomicBool,
}

impl Ticket {
    pub(super) const fn new(window: Window, ticket: store::ClaimTicket) -> Self {
        Self { window, ticket, is_committed: AtomicBool::new(false) }
    }

    /// When the claim runs out.
    #[must_use]
    pub const fn until(&self) -> Moment {
        self.ticket.until()
    }

    /// Commits: the effect happened. When this returns, the id is seen, and in a file it is on the disk.
    ///
    /// Late is not too late: a claim that ran out is committed all the same, unless another consumer has claimed the
    /// id. The commit is written even if this future is dropped before it returns; and you may call it again after a
    /// [transient](WindowCommitError::is_transient) error.
    ///
    /// # Errors
    /// If another consumer has claimed the id meanwhile, or the commit could not be written: the effect may then
    /// happen again.
    pub async fn commit(&self) -> Result<(), WindowCommitError> {
        if self.is_committed.load(Relaxed) {
            return Ok(());
        }
        self.begin().wait().await?;
        self.is_committed.store(true, Relaxed);
        Ok(())
    }

    pub(super) fn commit_blocking(&self) -> Result<(), WindowCommitError> {
        if self.is_committed.load(Relaxed) {
            return Ok(());
        }
        self.begin().wait_blocking()?;
        self.is_committed.store(true, Relaxed);
        Ok(())
    }

    /// Releases the claim: the effect certainly did not happen, and the next claim is the first. `false` if it ran out
    /// and another consumer has claimed the id.
    pub fn release(self) -> bool {
        self.window.shared.store.release(self.ticket)
    }

    fn begin(&self) -> WindowCommit {
        self.window.shared.store.commit(self.ticket, self.window.now())
    }
}
