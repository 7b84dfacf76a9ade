//! Work in the store's own domain: effect, marker, publishes and settle in one commit.
//!
//! A job is synchronous and does database work only, because it holds up everybody's commit, and it may run
//! more than once: when another member of its group spoils the commit, everyone runs again. What it did
//! before is rolled back each time; what it did outside the database is not.

use std::any::Any;
use std::error::Error;
use std::time::Duration;

use redrive_core::Moment;
use redrive_core::entry::{Entry, Grant, Seq};
use redrive_core::ledger::{Fenced, Reply, Scope};

use crate::error::{PublishError, StoreError};
use crate::sql::{Row, SqlError, Value};
use crate::store::{New, Published};

/// A transaction, as its work sees it.
pub trait Tx {
    /// Marks that `handler` has processed `id`. `false` where it had: the effect is there already. The marker
    /// commits with everything else that the work does, and is remembered until `until` at least.
    ///
    /// # Errors
    /// Where the store could not.
    fn mark(&mut self, handler: &str, id: &str, until: Moment) -> Result<bool, PublishError>;

    /// Publishes an event with everything else that the work does.
    ///
    /// # Errors
    /// As [`Store::publish`](crate::Store::publish).
    fn publish(&mut self, new: New) -> Result<Published, PublishError>;

    /// Completes a request with everything else that the work does, under the fence: where its run was taken over,
    /// nobody may commit, and the work has to end with an error.
    ///
    /// # Errors
    /// [`CompleteError::Fenced`] where it was taken over.
    fn complete(
        &mut self,
        scope: &Scope,
        epoch: u64,
        reply: Reply,
        resource: Option<String>,
        at: Moment,
    ) -> Result<(), CompleteError>;

    /// Keeps bytes under a name, for a program that is built on the store and has no tables of its own; none takes
    /// them away.
    ///
    /// # Errors
    /// Where the store could not.
    fn keep(&mut self, name: &str, bytes: Option<&[u8]>) -> Result<(), StoreError>;

    /// What is kept under names that begin so, by name. Whoever looks has it for itself until its transaction ends.
    ///
    /// # Errors
    /// Where the store could not.
    fn kept(&mut self, beginning: &str) -> Result<Vec<(String, Vec<u8>)>, StoreError>;

    /// Runs a statement of the caller's own, with `$1`, `$2` for its values; gives how many rows it changed.
    ///
    /// # Errors
    /// Where the database refuses it, or the store has no SQL.
    fn execute(&mut self, _statement: &str, _values: &[Value]) -> Result<u64, SqlError> {
        Err(SqlError::None)
    }

    /// Asks with a statement of the caller's own, with `$1`, `$2` for its values.
    ///
    /// # Errors
    /// Where the database refuses it, or the store has no SQL.
    fn query(&mut self, _statement: &str, _values: &[Value]) -> Result<Vec<Row>, SqlError> {
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
    /// Somebody else runs it, or ended it, or it is not there.
    #[error("the request was taken over by another run; nothing of this one may be kept")]
    Fenced(Option<Fenced>),
    /// The store could not.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// What runs in a transaction: `Ok` commits, with the result to be left on the receipt where an event is
/// settled by it; `Err` rolls back.
pub type Work = Box<dyn FnMut(&mut dyn Tx) -> Result<Option<Vec<u8>>, Box<dyn Error + Send + Sync>> + Send>;

/// Work for a transaction.
pub struct Job {
    /// What to do.
    pub work: Work,
    /// The event that is done when the work is, under the fence. The work does not run if it is stale.
    pub claim: Option<Claim>,
    /// How long it may take; its statements are interrupted then.
    pub time: Duration,
    /// Whether it is to have a commit of its own, because one like it took too long before.
    pub alone: bool,
}

impl std::fmt::Debug for Job {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Job").field("claim", &self.claim).field("time", &self.time).finish_non_exhaustive()
    }
}

/// The event that a job settles.
#[derive(Debug, Clone, PartialEq)]
pub struct Claim {
    /// In whose right.
    pub grant: Grant,
    /// Which event.
    pub seq: Seq,
    /// As of which change.
    pub rev: u32,
    /// When.
    pub at: Moment,
    /// Attempts in all, this one included.
    pub attempts: u32,
    /// Its attempts, where some failed before.
    pub story: Option<std::sync::Arc<redrive_core::event::Story>>,
}

/// What became of a job.
#[derive(Debug)]
pub enum Transacted {
    /// It is committed, and the claimed event is done.
    Committed {
        /// The event of the same key that may run now.
        next: Option<Entry>,
    },
    /// The work said no, and everything is rolled back.
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
