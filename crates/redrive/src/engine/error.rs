//! What can go wrong around a queue.

use std::error::Error;
use std::time::Duration;

use redrive_core::event::EventError;
use redrive_store::StoreError;

/// Why a queue cannot be set up.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum QueueError {
    /// Its name is none.
    #[error(transparent)]
    Name(#[from] EventError),
    /// It would forget an identity while a retry of it may still come.
    #[error(
        "queue `{queue}` remembers identities for {window:?} after their end, but its policy may still retry \
         for longer: {sum}; widen the window with `.window(…)` or shorten the policy"
    )]
    Window {
        /// The queue.
        queue: String,
        /// How long it remembers.
        window: Duration,
        /// How long the policy retries, as a sum.
        sum: String,
    },
    /// It has a handler already.
    #[error("queue `{queue}` has a handler already; a queue has one")]
    Twice {
        /// The queue.
        queue: String,
    },
    /// Handlers run already.
    #[error("queue `{queue}` was set up after the start; set all of them up before")]
    Started {
        /// The queue.
        queue: String,
    },
    /// A setting makes no sense.
    #[error("queue `{queue}`: {what}")]
    Setting {
        /// The queue.
        queue: String,
        /// What is wrong, and what to do.
        what: String,
    },
    /// The store could not.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// Why handlers do not run.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// They do already.
    #[error("it is started already")]
    Twice,
    /// The store could not, or failed while it ran.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// No signal can be waited for.
    #[error("cannot wait for signals")]
    Signal(#[source] std::io::Error),
}

/// Why a transaction did not commit.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TransactError {
    /// The work said no; everything is rolled back.
    #[error("{0}")]
    Work(#[source] Box<dyn Error + Send + Sync>),
    /// The work panicked; everything is rolled back.
    #[error("the work in a transaction panicked: {0}")]
    Panicked(String),
    /// The work took too long; everything is rolled back.
    #[error("the work in a transaction took too long")]
    TimedOut,
    /// The store could not.
    #[error(transparent)]
    Store(#[from] StoreError),
}
