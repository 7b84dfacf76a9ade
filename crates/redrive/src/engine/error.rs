//! Errors around queues.

use std::error::Error;
use std::time::Duration;

use redrive_core::event::EventError;
use redrive_store::StoreError;

/// Why a queue cannot be set up.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum QueueError {
    /// Its name is invalid.
    #[error(transparent)]
    Name(#[from] EventError),
    /// It would forget an identity while a retry of its event may still come.
    #[error(
        "queue `{queue}` remembers identities for {window:?} after their end, but its policy may still retry \
         for longer: {sum}; widen the window with `.window(…)` or shorten the policy"
    )]
    Window {
        /// The queue.
        queue: String,
        /// How long it remembers identities.
        window: Duration,
        /// How long the policy retries, as a sum.
        sum: String,
    },
    /// It has a handler already.
    #[error("queue `{queue}` already has a handler; a queue has one")]
    Twice {
        /// The queue.
        queue: String,
    },
    /// Handlers run already.
    #[error("queue `{queue}` was set up after the start; set up all queues before `start`")]
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
    /// The store operation failed.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// Why handlers do not run.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// They were started before.
    #[error("the engine is already started")]
    Twice,
    /// The store refused, or failed while handlers ran.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The process cannot wait for signals.
    #[error("cannot wait for signals")]
    Signal(#[source] std::io::Error),
}

/// Why a transaction did not commit.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TransactError {
    /// The work returned an error; everything is rolled back.
    #[error("{0}")]
    Work(#[source] Box<dyn Error + Send + Sync>),
    /// The work panicked; everything is rolled back.
    #[error("the work in a transaction panicked: {0}")]
    Panicked(String),
    /// The work took too long; everything is rolled back.
    #[error("the work in a transaction took too long")]
    TimedOut,
    /// The store operation failed.
    #[error(transparent)]
    Store(#[from] StoreError),
}
