//! Work in the store's own domain: effect, marker, publishes and settle in one commit.
//!
//! A job is synchronous and does database work only, because other calls wait for the same commit. It may run more
//! than once: if another member of its group spoils the commit, all of them run again. Each time the database rolls
//! back what the job did before; effects outside the database are not rolled back.

use std::any::Any;
use std::error::Error;
use std::time::Duration;

use redrive_core::Moment;
use redrive_core::ledger::{FencedRun, RequestScope, StoredReply};
use redrive_core::queue_entry::{FencingToken, QueueEntry, Seq};

use crate::error::{PublishError, StoreError};
use crate::sql::{SqlError, SqlRow, Value};
use crate::store::{NewEvent, Published};

/// A transaction, as its work sees it.
pub trait Tx {
    /// Marks that `handler` has processed `id`. `false` if it had: the effect is committed already. The marker commits
    /// with the other writes of the work, and is kept until `until` at least.
    ///
    /// # Errors
    /// If the store operation fails.
    fn mark(&mut self, handler: &str, id: &str, until: Moment) -> Result<bool, PublishError>;

    /// Publishes an event in the same commit.
    ///
    /// # Errors
    /// As [`EventStore::publish`](crate::EventStore::publish).
    fn publish(&mut self, new: NewEvent) -> Result<Published, PublishError>;

    /// Completes a request in the same commit, under its fence. If another run took the request over, the call fails,
    /// and the work has to end with an error: its transaction must not commit.
    ///
    /// # Errors
    /// [`CompleteError::Fenced`] if another run took it over.
    fn complete(
        &mut self,
        scope: &RequestScope,
        epoch: u64,
        reply: StoredReply,
        resource: Option<String>,
        at: Moment,
    ) -> Result<(), CompleteError>;

    /// Stores bytes under a name, for a program that is built on the store and has no tables of its own; `None`
    /// removes them.
    ///
    /// # Errors
    /// If the store operation fails.
    fn keep(&mut self, name: &str, bytes: Option<&[u8]>) -> Result<(), StoreError>;

    /// The entries whose names have this prefix, by name. They are locked until the transaction ends.
    ///
    /// # Errors
    /// If the store operation fails.
    fn kept(&mut self, beginning: &str) -> Result<Vec<(String, Vec<u8>)>, StoreError>;

    /// Runs a statement of the caller's own, with `$1`, `$2` for its values; returns how many rows it changed.
    ///
    /// # Errors
    /// If the database refuses it, or the store has no SQL.
    fn execute(&mut self, _statement: &str, _values: &[Value]) -> Result<u64, SqlError> {
        Err(SqlError::None)
    }

    /// Runs a query of the caller's own, with `$1`, `$2` for its values.
    ///
    /// # Errors
    /// If the database refuses it, or the store has no SQL.
    fn query(&mut self, _statement: &str, _values: &[Value]) -> Result<Vec<SqlRow>, SqlError> {
        Err(SqlError::None)
    }

    /// The store's own transaction: a `&rusqlite::Connection` is behind
    /// [`sqlite::connection`](crate::sqlite::connection), a table of bytes behind
    /// [`memory::table`](crate::memory::table).
    fn as_any(&mut self) -> &mut dyn Any;
}

/// Why a request was not completed.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum CompleteError {
    /// Another run has the request, or ended it, or there is no such request.
    #[error("another run took the request over; this one must not commit")]
    Fenced(Option<FencedRun>),
    /// The store operation failed.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// The work of a transaction: `Ok` commits, with the result to keep on the dedupe record if the work settles an event;
/// `Err` rolls back.
pub type TxWork = Box<dyn FnMut(&mut dyn Tx) -> Result<Option<Vec<u8>>, Box<dyn Error + Send + Sync>> + Send>;

/// Work for a transaction.
pub struct TxJob {
    /// The function to run.
    pub work: TxWork,
    /// The event that the work settles as done, under the fence. The work does not run if it is stale.
    pub claim: Option<TxSettle>,
    /// How long it may take; then its statements are interrupted.
    pub time: Duration,
    /// Whether it needs a commit of its own, because a similar job took too long before.
    pub alone: bool,
}

impl std::fmt::Debug for TxJob {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Job").field("claim", &self.claim).field("time", &self.time).finish_non_exhaustive()
    }
}

/// The event that a job settles.
#[derive(Debug, Clone, PartialEq)]
pub struct TxSettle {
    /// The fencing token it ran under.
    pub token: FencingToken,
    /// The event.
    pub seq: Seq,
    /// The revision of the event.
    pub rev: u32,
    /// When.
    pub at: Moment,
    /// Attempts in all, including this one.
    pub attempts: u32,
    /// The attempt history, if earlier attempts failed.
    pub history: Option<std::sync::Arc<redrive_core::event::AttemptHistory>>,
}

/// The outcome of a job.
#[derive(Debug)]
pub enum TxOutcome {
    /// It is committed, and the claimed event is done.
    Committed {
        /// The event of the same key that may run now.
        next: Option<QueueEntry>,
    },
    /// The work returned an error, and everything is rolled back.
    Aborted(Box<dyn Error + Send + Sync>),
    /// The work panicked, and everything is rolled back.
    Panicked(String),
    /// The work took too long, and everything is rolled back.
    TimedOut,
    /// The claimed event has another `rev`, or is gone; the work did not run.
    Stale,
    /// The shard has another owner; the work did not run.
    Fenced,
}
