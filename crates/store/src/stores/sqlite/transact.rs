//! The user's own work, in the transaction that all calls of the group share.
//!
//! Each job has a savepoint, its panic is caught, and a [guard] keeps it from actions that would reach beyond it. If
//! one still does (`INSERT OR ROLLBACK`, a statement that was interrupted while it wrote), the transaction is gone,
//! which is detected; then every call of the group runs again, alone. A job that ran out of time does not: it has its
//! answer.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};

use redrive_core::Moment;
use redrive_core::ledger::{RequestScope, StoredReply};
use redrive_core::queue_entry::SettleResult;
use rusqlite::types::ValueRef;
use rusqlite::{Connection, OptionalExtension, params};
use tokio::sync::oneshot;

use super::faults::{Fault, Step};
use super::open::reset;
use super::writer::tx::WriterTx;
use super::writer::{CommitOutcome, GroupMember};
use crate::error::{PublishError, StoreError};
use crate::ledger::RunEnding;
use crate::sql::{SqlError, SqlRow, Value};
use crate::store::{NewEvent, Published};
use crate::stores::shared::numbers::from_moment;
use crate::transaction::{CompleteError, Tx, TxJob, TxOutcome};

pub(super) mod guard;

/// The connection, if this is a transaction of a SQLite store. Its writes commit with the rest of the transaction, or
/// not at all.
///
/// ```
/// # use redrive_store::{Tx, sqlite};
/// fn charge(tx: &mut dyn Tx) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
///     let db = sqlite::connection(tx).ok_or("not in SQLite")?;
///     db.execute("INSERT INTO charge (customer, euro) VALUES (3, 17)", [])?;
///     Ok(())
/// }
/// ```
pub fn connection(tx: &mut dyn Tx) -> Option<&Connection> {
    tx.as_any().downcast_ref::<WriterTx>().map(|tx| &tx.conn)
}

impl Tx for WriterTx {
    fn mark(&mut self, handler: &str, id: &str, until: Moment) -> Result<bool, PublishError> {
        let guard = std::sync::Arc::clone(&self.guard);
        guard.outside(|| self.is_open().and_then(|()| self.put_mark(handler, id, until))).map_err(refused)
    }

    fn publish(&mut self, new: NewEvent) -> Result<Published, PublishError> {
        new.event.check()?;
        let guard = std::sync::Arc::clone(&self.guard);
        guard
            .outside(|| {
                self.is_open()?;
                self.disk.check()?;
                Self::publish(self, &new)
            })
            .map_err(refused)?
    }

    fn complete(
        &mut self,
        scope: &RequestScope,
        epoch: u64,
        reply: StoredReply,
        resource: Option<String>,
        at: Moment,
    ) -> Result<(), CompleteError> {
        let guard = std::sync::Arc::clone(&self.guard);
        let end = RunEnding::Completed { reply, resource };
        let ended = guard.outside(|| self.is_open().and_then(|()| self.end_request(scope, epoch, end, at)));
        ended.map_err(super::faults::not_seen)?.map_err(CompleteError::Fenced)
    }

    fn keep(&mut self, name: &str, bytes: Option<&[u8]>) -> Result<(), StoreError> {
        let guard = std::sync::Arc::clone(&self.guard);
        guard
            .outside(|| self.is_open().and_then(|()| self.put_kept(name, bytes)))
            .map_err(super::faults::not_seen)
    }

    fn kept(&mut self, beginning: &str) -> Result<Vec<(String, Vec<u8>)>, StoreError> {
        let guard = std::sync::Arc::clone(&self.guard);
        guard
            .outside(|| self.is_open().and_then(|()| self.find_kept(beginning)))
            .map_err(super::faults::not_seen)
    }

    fn execute(&mut self, statement: &str, values: &[Value]) -> Result<u64, SqlError> {
        let keeps = self.user_statements.keeps(statement);
        let execute = || {
            let mut prepared = statement_of(&self.conn, statement, values)?;
            let changed = prepared.raw_execute();
            if !keeps {
                prepared.discard();
            }
            changed
        };
        let changed = execute().map_err(refused_statement)?;
        Ok(u64::try_from(changed).unwrap_or(u64::MAX))
    }

    fn query(&mut self, statement: &str, values: &[Value]) -> Result<Vec<SqlRow>, SqlError> {
        let keeps = self.user_statements.keeps(statement);
        let ask = || {
            let mut prepared = statement_of(&self.conn, statement, values)?;
            let columns = prepared.column_count();
            let mut found = prepared.raw_query();
            let mut rows = Vec::new();
            while let Some(row) = found.next()? {
                let values = (0..columns).map(|column| row.get_ref(column).map(value));
                rows.push(SqlRow::new(values.collect::<rusqlite::Result<_>>()?));
            }
            drop(found);
            if !keeps {
                prepared.discard();
            }
            Ok(rows)
        };
        ask().map_err(refused_statement)
    }

    fn as_any(&mut self) -> &mut dyn Any {
        self
    }
}

/// A statement with its values. SQLite takes `$2` for a name; we bind by the number in it.
fn statement_of<'a>(
    conn: &'a Connection,
    text: &str,
    values: &[Value],
) -> rusqlite::Result<rusqlite::CachedStatement<'a>> {
    let mut statement = conn.prepare_cached(text)?;
    for index in 1..=statement.parameter_count() {
        let number = statement.parameter_name(index).and_then(|name| name.strip_prefix('$')?.parse().ok());
        let value = values.get(number.unwrap_or(index).wrapping_sub(1));
        let value = value.ok_or(rusqlite::Error::InvalidParameterCount(values.len(), index))?;
        match value {
            Value::Null => statement.raw_bind_parameter(index, rusqlite::types::Null)?,
            Value::Integer(number) => statement.raw_bind_parameter(index, number)?,
            Value::Real(number) => statement.raw_bind_parameter(index, number)?,
            Value::Text(text) => statement.raw_bind_parameter(index, text)?,
            Value::Bytes(bytes) => statement.raw_bind_parameter(index, bytes)?,
        }
    }
    Ok(statement)
}

fn value(of: ValueRef<'_>) -> Value {
    match of {
        ValueRef::Null => Value::Null,
        ValueRef::Integer(number) => Value::Integer(number),
        ValueRef::Real(number) => Value::Real(number),
        ValueRef::Text(text) => Value::Text(String::from_utf8_lossy(text).into_owned()),
        ValueRef::Blob(bytes) => Value::Bytes(bytes.to_vec()),
    }
}

fn refused_statement(error: rusqlite::Error) -> SqlError {
    SqlError::Statement(std::sync::Arc::new(error))
}

fn refused(fault: Fault) -> PublishError {
    PublishError::Store(super::faults::not_seen(fault))
}

const ENDED: &str =
    "the work ended the transaction, perhaps by OR ROLLBACK; use OR ABORT, or return an error";

/// A job that waits for its commit.
pub(super) struct WorkCall {
    job: TxJob,
    outcome: Option<TxOutcome>,
    is_final: bool,
    tell: oneshot::Sender<Result<TxOutcome, StoreError>>,
}

impl WorkCall {
    pub(super) const fn new(job: TxJob, tell: oneshot::Sender<Result<TxOutcome, StoreError>>) -> Self {
        Self { job, outcome: None, is_final: false, tell }
    }
}

impl GroupMember for WorkCall {
    fn is_alone(&self) -> bool {
        self.job.alone
    }

    fn run(&mut self, tx: &mut WriterTx, has_company: bool) -> Step<()> {
        if self.is_final {
            return Ok(());
        }
        match tx.transact(&mut self.job) {
            Ok(outcome) => {
                self.outcome = Some(outcome);
                Ok(())
            }
            Err(Ended::Fault(fault)) => Err(fault),
            Err(Ended::Transaction(outcome)) => {
                self.is_final = !has_company || matches!(outcome, TxOutcome::TimedOut);
                self.outcome = Some(outcome);
                Err(Fault::Void)
            }
        }
    }

    fn is_answered(&self) -> bool {
        self.is_final
    }

    fn answer(self: Box<Self>, fate: CommitOutcome) {
        let Self { outcome, is_final, tell, .. } = *self;
        let answer = match (fate, outcome) {
            (_, Some(outcome)) if is_final => Ok(outcome),
            (CommitOutcome::Committed, Some(outcome)) => Ok(outcome),
            (CommitOutcome::Committed, None) => Err(super::faults::broken("a job ended without an outcome")),
            // Work that did nothing cannot have violated a constraint.
            (CommitOutcome::Forbidden(error), Some(TxOutcome::Committed { .. })) => {
                Ok(TxOutcome::Aborted(Box::new(error)))
            }
            (CommitOutcome::Forbidden(_), Some(outcome)) => Ok(outcome),
            (CommitOutcome::Forbidden(error), None) => Err(super::faults::rolled_back(error)),
            (CommitOutcome::Failed(error), _) => Err(error),
        };
        let _ = tell.send(answer);
    }
}

/// Why a job has no outcome yet.
enum Ended {
    Fault(Fault),
    /// The job ended the transaction of all; this is its outcome by itself.
    Transaction(TxOutcome),
}

impl<E: Into<Fault>> From<E> for Ended {
    fn from(error: E) -> Self {
        Self::Fault(error.into())
    }
}

impl WriterTx {
    fn transact(&mut self, job: &mut TxJob) -> Result<TxOutcome, Ended> {
        if let Some(claim) = &job.claim {
            if !self.is_current(claim.token)? {
                return Ok(TxOutcome::Fenced);
            }
            if !self.is_there(claim.seq, claim.rev)? {
                return Ok(TxOutcome::Stale);
            }
        }
        // Numbers drawn before must survive a rollback to the savepoint, which clears our cache of them.
        self.write_numbers()?;
        self.conn.execute_batch("SAVEPOINT redrive_job")?;
        let arrived = self.arrived.len();
        let worked = self.work(job);
        if self.conn.is_autocommit() {
            return Err(Ended::Transaction(
                worked.map_or_else(|outcome| outcome, |_| TxOutcome::Aborted(ENDED.into())),
            ));
        }
        match worked {
            Ok(result) => {
                let next = match &job.claim {
                    None => None,
                    Some(claim) => {
                        let left = (claim.attempts, claim.history.clone(), result);
                        match self.settle_done(claim.token, (claim.seq, claim.rev), claim.at, left)? {
                            SettleResult::Applied { next, .. } => next,
                            SettleResult::Stale | SettleResult::Fenced => None,
                        }
                    }
                };
                self.conn.execute_batch("RELEASE redrive_job")?;
                Ok(TxOutcome::Committed { next })
            }
            Err(outcome) => {
                self.conn.execute_batch("ROLLBACK TO redrive_job; RELEASE redrive_job")?;
                self.arrived.truncate(arrived);
                self.forget_streams();
                self.names.forget();
                Ok(outcome)
            }
        }
    }

    /// Runs the work, and returns its result, or its outcome.
    fn work(&mut self, job: &mut TxJob) -> Result<Option<Vec<u8>>, TxOutcome> {
        let guard = std::sync::Arc::clone(&self.guard);
        guard.enter(job.time);
        let worked = catch_unwind(AssertUnwindSafe(|| (job.work)(self)));
        let is_over = guard.leave();
        reset(&self.conn);
        match worked {
            Err(panic) => Err(TxOutcome::Panicked(message(&*panic))),
            Ok(_) if is_over => Err(TxOutcome::TimedOut),
            Ok(Err(error)) => Err(TxOutcome::Aborted(error)),
            Ok(Ok(result)) => Ok(result),
        }
    }

    /// Fails if the transaction is gone.
    fn is_open(&self) -> Step<()> {
        if self.conn.is_autocommit() { Err(super::faults::broken(ENDED).into()) } else { Ok(()) }
    }

    fn put_kept(&self, name: &str, bytes: Option<&[u8]>) -> Step<()> {
        let done = match bytes {
            Some(bytes) => self
                .conn
                .prepare_cached(
                    "INSERT INTO redrive_kept (name, bytes) VALUES (?1, ?2) ON CONFLICT DO UPDATE SET bytes = ?2",
                )?
                .execute(params![name, bytes]),
            None => self.conn.prepare_cached("DELETE FROM redrive_kept WHERE name = ?1")?.execute([name]),
        };
        Ok(done.map(drop)?)
    }

    fn find_kept(&self, beginning: &str) -> Step<Vec<(String, Vec<u8>)>> {
        let mut statement = self.conn.prepare_cached(
            "SELECT name, bytes FROM redrive_kept WHERE name >= ?1 AND substr(name, 1, length(?1)) = ?1 ORDER BY name",
        )?;
        let found = statement.query_map([beginning], |row| Ok((row.get(0)?, row.get(1)?)))?;
        Ok(found.collect::<rusqlite::Result<_>>()?)
    }

    fn put_mark(&self, handler: &str, id: &str, until: Moment) -> Step<bool> {
        let until = from_moment(until);
        let had: Option<i64> = self
            .conn
            .prepare_cached("SELECT until FROM redrive_inbox WHERE handler = ?1 AND id = ?2")?
            .query_row([handler, id], |row| row.get(0))
            .optional()?;
        if had.is_none_or(|had| had < until) {
            self.conn
                .prepare_cached(
                    "INSERT INTO redrive_inbox (handler, id, until) VALUES (?1, ?2, ?3) \
                     ON CONFLICT DO UPDATE SET until = ?3",
                )?
                .execute(params![handler, id, until])?;
        }
        Ok(had.is_none())
    }
}

fn message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "a panic without a message".to_owned())
}
