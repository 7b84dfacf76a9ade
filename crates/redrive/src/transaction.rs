//! The transaction loop over the caller's own pool or file: a body that runs again, as a whole, until it commits.
//!
//! | call | for |
//! |---|---|
//! | `postgres::transact` (feature `postgres`) | `sqlx`; serialisation failures and deadlocks |
//! | `sqlite::transact` (feature `sqlite`) | `rusqlite`; `BEGIN IMMEDIATE`, busy files |
//! | [`Redrive::transact`](crate::Redrive::transact) | the engine's own store |
//!
//! Three rules, decided in [`redrive_core::ladder::transaction`]:
//!
//! - **The whole body runs again**, reads included, after a jittered wait and within a bound.
//! - **A cut COMMIT is [`TransactionError::Unknown`]**, unless the body begins by writing its own number:
//!   `transact_once` does, and a repetition then finds the number of the first.
//! - **Effects outside the database do not belong into the body.** A call through Redrive's HTTP client and a plain
//!   `publish` are refused inside it, and name the outbox. Other clients, spawned tasks and files escape the check.

use std::error::Error;

pub use redrive_core::ladder::transaction::{BodyEnd, BodyNext, TransactionRun, TransactionSettings};
pub use redrive_retry::effects;

#[cfg(feature = "postgres")]
pub mod postgres;
#[cfg(feature = "sqlite")]
pub mod sqlite;

/// Why a transaction is not committed, or is not known to be.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TransactionError {
    /// The body returned an error of its own, or the database refused a statement for good. Nothing is committed.
    #[error("{0}")]
    Body(#[source] Box<dyn Error + Send + Sync>),
    /// The bound is reached. Nothing is committed.
    #[error(
        "gave up after {runs} conflicts with concurrent transactions, nothing is committed; raise the bound, or \
             let fewer transactions write the same rows"
    )]
    GaveUp {
        /// How often the body ran.
        runs: u32,
        /// The last conflict.
        #[source]
        source: Box<dyn Error + Send + Sync>,
    },
    /// The answer to COMMIT was lost.
    #[error(
        "the answer to COMMIT was lost, and it is unknown whether the transaction is committed; use \
             `transact_once`, whose body begins with its own number"
    )]
    Unknown {
        /// How often the body ran.
        runs: u32,
        /// The failure.
        #[source]
        source: Box<dyn Error + Send + Sync>,
    },
}

/// A transaction that is committed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BodyCommitted<T> {
    /// What the body returned.
    pub value: T,
    /// How often it ran.
    pub runs: u32,
}

/// A transaction that is committed under a number of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CommittedOnce<T> {
    /// It is committed by this call.
    Now(BodyCommitted<T>),
    /// It was committed before: by another call, or by a COMMIT of this one whose answer was lost. What its body
    /// returned then is not kept.
    Before,
}

type BoxError = Box<dyn Error + Send + Sync>;

/// How a run ended, for the loops of both databases.
#[cfg(any(feature = "sqlite", feature = "postgres"))]
enum Ran<T> {
    Committed(T),
    Before,
    Failed(BoxError),
    CommitFailed(BoxError, redrive_core::Fault),
}

/// What both loops do with the end of a run: `Ok(None)` means to go on after the wait.
#[cfg(any(feature = "sqlite", feature = "postgres"))]
fn after<T>(
    run: &mut TransactionRun<'_>,
    ran: Ran<T>,
    fault: impl FnOnce(&(dyn Error + 'static)) -> Option<redrive_core::Fault>,
) -> Result<Result<CommittedOnce<T>, std::time::Duration>, TransactionError> {
    let (end, source) = match ran {
        Ran::Committed(value) => {
            return Ok(Ok(CommittedOnce::Now(BodyCommitted { value, runs: run.runs() })));
        }
        Ran::Before => return Ok(Ok(CommittedOnce::Before)),
        Ran::Failed(error) => (BodyEnd::Failed(fault(&*error)), error),
        Ran::CommitFailed(error, fault) => (BodyEnd::CommitFailed(fault), error),
    };
    let runs = run.runs();
    match run.ended(end, &mut redrive_retry::ThreadRandom) {
        BodyNext::Again(wait) => Ok(Err(wait)),
        BodyNext::GaveUp => Err(TransactionError::GaveUp { runs, source }),
        BodyNext::Unknown => Err(TransactionError::Unknown { runs, source }),
        BodyNext::Failed | BodyNext::Done => Err(TransactionError::Body(source)),
    }
}

/// The error of a type somewhere in a chain of causes.
#[cfg(any(feature = "sqlite", feature = "postgres"))]
fn find<'e, E: Error + 'static>(error: &'e (dyn Error + 'static)) -> Option<&'e E> {
    /// How deep errors may be nested.
    const DEPTH: usize = 32;
    type Shared = std::sync::Arc<dyn Error + Send + Sync>;
    let mut next = Some(error);
    for _ in 0..DEPTH {
        let error = next?;
        if let Some(found) = error.downcast_ref::<E>() {
            return Some(found);
        }
        // A shared error is looked into: its `source` is that of the error it shares.
        next = match error.downcast_ref::<Shared>() {
            Some(shared) => Some(&**shared),
            None => error.source(),
        };
    }
    None
}
