//! Work in the store's own transaction.

use std::error::Error;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use redrive_core::{Event, Moment};
use redrive_retry::effects;
use redrive_store::sql::{SqlError, SqlRow, Value};
use redrive_store::{NewEvent, PublishError, Published, StoreError, Tx, TxJob, TxOutcome};

use crate::engine::lineage::{self, Lineage};
use crate::engine::observe;
use crate::engine::queue::Queues;
use crate::engine::sqlstate::{is_of_another, sqlstate};
use crate::engine::{Redrive, Reply, TransactError};

/// How long a transaction may take, unless its attempt has less.
pub(in crate::engine) const TIME: Duration = Duration::from_secs(5);

/// A transaction of the store's own domain. Everything done through it commits together, or not at all.
pub struct Transaction<'a> {
    tx: &'a mut dyn Tx,
    queues: &'a Queues,
    now: Moment,
    /// How long a marker is kept.
    remember: Duration,
    lineage: Option<Lineage>,
}

impl fmt::Debug for Transaction<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Transaction").finish_non_exhaustive()
    }
}

impl<'a> Transaction<'a> {
    pub(in crate::engine) fn new(
        tx: &'a mut dyn Tx,
        queues: &'a Queues,
        now: Moment,
        remember: Duration,
        lineage: Option<Lineage>,
    ) -> Self {
        Self { tx, queues, now, remember, lineage }
    }

    /// The SQLite connection in which the transaction is open: the caller's own tables are in the same file.
    /// Statements that begin or end transactions are refused. `None` in another store.
    #[cfg(feature = "sqlite")]
    #[must_use]
    pub fn sqlite(&mut self) -> Option<&rusqlite::Connection> {
        redrive_store::sqlite::connection(self.tx)
    }

    /// Uses the PostgreSQL connection in which the transaction is open, and blocks on it: this thread may block.
    /// `None` in another store.
    ///
    /// ```
    /// # use redrive::{Transaction, postgres::sqlx};
    /// # fn work(tx: &mut Transaction<'_>) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    /// let insert = sqlx::query("INSERT INTO booking (guest) VALUES ($1)").bind("Ada");
    /// tx.postgres(async |conn| insert.execute(conn).await).ok_or("not in PostgreSQL")??;
    /// # Ok(())
    /// # }
    /// ```
    #[cfg(feature = "postgres")]
    pub fn postgres<T>(
        &mut self,
        work: impl AsyncFnOnce(&mut redrive_store::postgres::sqlx::PgConnection) -> T,
    ) -> Option<T> {
        redrive_store::postgres::with(self.tx, work)
    }

    /// Runs the work again if it returns an error, because a concurrent transaction caused it.
    pub(in crate::engine) fn run_again(&mut self) {
        #[cfg(feature = "postgres")]
        redrive_store::postgres::run_again(self.tx);
    }

    /// Runs a statement of the caller's own, with `$1`, `$2` for its values, in any SQL store; returns how many rows
    /// it changed.
    ///
    /// ```
    /// # use redrive::Transaction;
    /// # fn work(tx: &mut Transaction<'_>) -> Result<(), redrive::store::sql::SqlError> {
    /// let (guest, cabin) = ("Ada", 7);
    /// tx.execute("INSERT INTO booking (guest, cabin) VALUES ($1, $2)", &[guest.into(), cabin.into()])?;
    /// let rows = tx.query("SELECT guest FROM booking WHERE cabin = $1", &[cabin.into()])?;
    /// let guest: String = rows[0].get(0)?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// If the database refuses it, or the store has no SQL.
    pub fn execute(&mut self, statement: &str, values: &[Value]) -> Result<u64, SqlError> {
        self.tx.execute(statement, values)
    }

    /// Runs a query of the caller's own, as [`execute`](Self::execute) runs a statement.
    ///
    /// # Errors
    /// If the database refuses it, or the store has no SQL.
    pub fn query(&mut self, statement: &str, values: &[Value]) -> Result<Vec<SqlRow>, SqlError> {
        self.tx.query(statement, values)
    }

    /// Stores bytes under a name in the same commit, for a program without tables of its own; `None` removes them. Use
    /// a table for large or frequently read data.
    ///
    /// # Errors
    /// If the store operation fails.
    pub fn keep(&mut self, name: &str, bytes: Option<&[u8]>) -> Result<(), StoreError> {
        self.tx.keep(name, bytes)
    }

    /// The entries whose names have this prefix, by name. They are locked until this transaction ends.
    ///
    /// # Errors
    /// If the store operation fails.
    pub fn kept(&mut self, beginning: &str) -> Result<Vec<(String, Vec<u8>)>, StoreError> {
        self.tx.kept(beginning)
    }

    /// The caller's own table in a store in memory. `None` in another store.
    #[must_use]
    pub fn memory(&mut self) -> Option<&mut std::collections::BTreeMap<String, Vec<u8>>> {
        redrive_store::memory::table(self.tx)
    }

    /// Publishes an event in the same commit. An event of a handler inherits its correlation.
    ///
    /// # Errors
    /// As [`Redrive::publish`].
    pub fn publish(&mut self, mut event: Event) -> Result<Published, PublishError> {
        match &self.lineage {
            Some(lineage) => lineage.give(&mut event),
            None => lineage::inherit(&mut event),
        }
        let new = self.queues.prepare(event, self.now)?;
        self.tx.publish(new)
    }

    /// Completes a request in the same commit, under its fence.
    #[cfg(feature = "api")]
    pub(crate) fn complete(
        &mut self,
        scope: &redrive_core::ledger::RequestScope,
        epoch: u64,
        reply: redrive_core::ledger::StoredReply,
        resource: Option<String>,
    ) -> Result<(), redrive_store::CompleteError> {
        self.tx.complete(scope, epoch, reply, resource, self.now)
    }

    /// Marks that `handler` has processed `id`, and returns whether it is the first time. `false`: the effect is
    /// committed already, and there is nothing to do.
    ///
    /// The name carries a version, such as `projector.v1`: a handler that changes its effect takes a new version, and
    /// sees all events again.
    ///
    /// # Errors
    /// For a name without a version, or if the store operation fails.
    pub fn first_time(&mut self, handler: &str, id: &str) -> Result<bool, PublishError> {
        check_handler(handler)?;
        let is_first = self.tx.mark(handler, id, self.now + self.remember)?;
        crate::engine::observe::marked(is_first);
        Ok(is_first)
    }
}

/// Whether the name of a handler ends in a version.
pub(in crate::engine) fn check_handler(handler: &str) -> Result<(), PublishError> {
    let versioned = handler.rsplit_once(".v").is_some_and(|(name, version)| {
        !name.is_empty() && !version.is_empty() && version.bytes().all(|byte| byte.is_ascii_digit())
    });
    if versioned { Ok(()) } else { Err(PublishError::Handler { name: handler.to_owned() }) }
}

impl Redrive {
    /// Prepares an event that is published in no transaction: refused inside the body of one.
    pub(in crate::engine) fn prepare_alone(
        &self,
        event: Event,
        now: Moment,
    ) -> (observe::Name, Result<NewEvent, PublishError>) {
        let (queue, new) = self.prepare(event, now);
        let refused = effects::are_refused();
        (queue, new.and_then(|new| if refused { Err(PublishError::InTransaction) } else { Ok(new) }))
    }
}

/// A reply other than ok, on its way out of a transaction that is to be rolled back.
#[derive(Debug)]
pub(in crate::engine) struct Refused(pub(in crate::engine) Reply);

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the handler returned an error")
    }
}

impl Error for Refused {}

pub(in crate::engine) async fn transact<T, E>(
    redrive: &Redrive,
    mut work: impl FnMut(&mut Transaction<'_>) -> Result<T, E> + Send + 'static,
) -> Result<T, TransactError>
where
    T: Send + 'static,
    E: Into<Box<dyn Error + Send + Sync>>,
{
    let (now, queues) = (redrive.now(), redrive.0.queues.clone());
    let given = Arc::new(Mutex::new(None));
    let giving = given.clone();
    let lineage = Lineage::current();
    let work = Box::new(move |tx: &mut dyn Tx| {
        let mut tx = Transaction::new(tx, &queues, now, REMEMBER, lineage.clone());
        let value = effects::refused_in(|| work(&mut tx)).map_err(|error| {
            let error = error.into();
            if is_of_another(sqlstate(&*error).as_deref()) {
                tx.run_again();
            }
            error
        })?;
        *giving.lock().unwrap_or_else(PoisonError::into_inner) = Some(value);
        Ok(None)
    });
    let job = TxJob { work, claim: None, time: TIME, alone: false };
    match redrive.store().transact(job).await? {
        TxOutcome::Committed { .. } => {
            let value = given.lock().unwrap_or_else(PoisonError::into_inner).take();
            value.ok_or_else(|| TransactError::Panicked("the work returned nothing".to_owned()))
        }
        TxOutcome::Aborted(error) => Err(TransactError::Work(error)),
        TxOutcome::Panicked(message) => Err(TransactError::Panicked(message)),
        TxOutcome::TimedOut => Err(TransactError::TimedOut),
        TxOutcome::Stale | TxOutcome::Fenced => Err(TransactError::Store(redrive_store::StoreError::Closed)),
    }
}

/// How long a marker is kept if no queue's window bounds it.
pub(in crate::engine) const REMEMBER: Duration = Duration::from_secs(7 * 86_400);
