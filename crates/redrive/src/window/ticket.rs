//! The answer to a claim, and the right that comes with it.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use redrive_core::Moment;
use redrive_store::window::{self as store, CommitError, Committing};

use super::Window;

/// The answer to a claim.
#[derive(Debug)]
pub enum Claim {
    /// Nobody has dealt with it as far as the window goes back: do it, then commit.
    First(Ticket),
    /// It was dealt with: acknowledge it.
    Seen {
        /// When that was committed.
        since: Moment,
    },
    /// Somebody is at it: have it delivered again later, and do not acknowledge it, for they may fail.
    Busy {
        /// When their claim runs out, if it is not settled before.
        until: Moment,
    },
}

/// The right to deal with an id, until it runs out.
///
/// **Dropping it does not give it back.** Whoever drops one, by a panic, a cancelled task or an early return, may have
/// had the effect already, so nobody else gets the id before the claim runs out. Where nothing was executed, say so
/// with [`release`](Self::release).
#[derive(Debug)]
#[must_use = "commit it after the effect, or release it where there was none; dropped, it runs out by itself"]
pub struct Ticket {
    window: Window,
    ticket: store::Ticket,
    is_committed: AtomicBool,
}

impl Ticket {
    pub(super) const fn new(window: Window, ticket: store::Ticket) -> Self {
        Self { window, ticket, is_committed: AtomicBool::new(false) }
    }

    /// When it runs out.
    #[must_use]
    pub const fn until(&self) -> Moment {
        self.ticket.until()
    }

    /// Says that the effect happened. When this returns, the id is seen, and in a file it is on the disk.
    ///
    /// Late is not too late: a claim that ran out and that nobody took is committed all the same. It is written also
    /// where this is dropped before it returns; and it may be called again after an error that
    /// [may pass](CommitError::is_transient).
    ///
    /// # Errors
    /// Where somebody else took the id meanwhile, or it could not be written: the effect may then happen again.
    pub async fn commit(&self) -> Result<(), CommitError> {
        if self.is_committed.load(Relaxed) {
            return Ok(());
        }
        self.begin().wait().await?;
        self.is_committed.store(true, Relaxed);
        Ok(())
    }

    pub(super) fn commit_blocking(&self) -> Result<(), CommitError> {
        if self.is_committed.load(Relaxed) {
            return Ok(());
        }
        self.begin().wait_blocking()?;
        self.is_committed.store(true, Relaxed);
        Ok(())
    }

    /// Says that the effect certainly did not happen: the next one who asks is the first. `false` where it ran out
    /// and is somebody else's.
    pub fn release(self) -> bool {
        self.window.shared.store.release(self.ticket)
    }

    fn begin(&self) -> Committing {
        self.window.shared.store.commit(self.ticket, self.window.now())
    }
}
