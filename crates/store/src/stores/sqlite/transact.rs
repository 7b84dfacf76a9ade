//! The user's own work, in everybody's transaction.
//!
//! Each job has a savepoint, its panic is caught, and a [guard](super::guard) keeps it from what would reach
//! beyond it. What still does (`INSERT OR ROLLBACK`, a statement that was interrupted while it wrote) is seen
//! by the transaction being gone; then everyone in the group runs again, alone. A job that ran out of time
//! does not: it has its answer.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};

use redrive_core::Moment;
use redrive_core::entry::Settled;
use redrive_core::ledger::{Reply, Scope};
use rusqlite::types::ValueRef;
use rusqlite::{Connection, OptionalExtension, params};
use tokio::sync::oneshot;

use super::desk::Desk;
use super::faults::{Fault, Step};
use super::numbers::from_moment;
use super::open::reset;
use super::writer::{Fate, Member};
use crate::error::{PublishError, StoreError};
use crate::ledger::End;
use crate::sql::{Row, SqlError, Value};
use crate::store::{New, Published};
use crate::transaction::{CompleteError, Job, Transacted, Tx};

/// The connection, if this is a transaction of a SQLite store. Whatever is written with it commits with
/// everything else that the work does, or not at all.
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
    tx.as_any().downcast_ref::<Desk>().map(|desk| &desk.conn)
}

impl Tx for Desk {
    fn mark(&mut self, handler: &str, id: &str, until: Moment) -> Result<bool, PublishError> {
        let guard = std::sync::Arc::clone(&self.guard);
        guard.outside(|| self.is_open().and_then(|()| self.put_mark(handler, id, until))).map_err(refused)
    }

    fn publish(&mut self, new: New) -> Result<Published, PublishError> {
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
        scope: &Scope,
        epoch: u64,
        reply: Reply,
        resource: Option<String>,
        at: Moment,
    ) -> Result<(), CompleteError> {
        let guard = std::sync::Arc::clone(&self.guard);
        let end = End::Completed { reply, resource };
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
        let changed = statement_of(&self.conn, statement, values)
            .and_then(|mut statement| statement.raw_execute())
            .map_err(refused_statement)?;
        Ok(u64::try_from(changed).unwrap_or(u64::MAX))
    }

    fn query(&mut self, statement: &str, values: &[Value]) -> Result<Vec<Row>, SqlError> {
        let ask = || {
            let mut statement = statement_of(&self.conn, statement, values)?;
            let columns = statement.column_count();
            let mut found = statement.raw_query();
            let mut rows = Vec::new();
            while let Some(row) = found.next()? {
                let values = (0..columns).map(|column| row.get_ref(column).map(value));
                rows.push(Row::new(values.collect::<rusqlite::Result<_>>()?));
            }
            Ok(rows)
        };
        ask().map_err(refused_statement)
    }

    fn as_any(&mut self) -> &mut dyn Any {
        self
    }
}

/// A statement with its values. SQLite takes `$2` for a name; that the number in it counts is our doing.
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
pub(super) struct Work {
    job: Job,
    outcome: Option<Transacted>,
    is_final: bool,
    tell: oneshot::Sender<Result<Transacted, StoreError>>,
}

impl Work {
    pub(super) const fn new(job: Job, tell: oneshot::Sender<Result<Transacted, StoreError>>) -> Self {
        Self { job, outcome: None, is_final: false, tell }
    }
}

impl Member for Work {
    fn is_alone(&self) -> bool {
        self.job.alone
    }

    fn run(&mut self, desk: &mut Desk, has_company: bool) -> Step<()> {
        if self.is_final {
            return Ok(());
        }
        match desk.transact(&mut self.job) {
            Ok(outcome) => {
                self.outcome = Some(outcome);
                Ok(())
            }
            Err(Ended::Fault(fault)) => Err(fault),
            Err(Ended::Transaction(outcome)) => {
                self.is_final = !has_company || matches!(outcome, Transacted::TimedOut);
                self.outcome = Some(outcome);
                Err(Fault::Spoiled)
            }
        }
    }

    fn is_answered(&self) -> bool {
        self.is_final
    }

    fn answer(self: Box<Self>, fate: Fate) {
        let Self { outcome, is_final, tell, .. } = *self;
        let answer = match (fate, outcome) {
            (_, Some(outcome)) if is_final => Ok(outcome),
            (Fate::Committed, Some(outcome)) => Ok(outcome),
            (Fate::Committed, None) => Err(super::faults::broken("a job ended without an outcome")),
            // Work that did nothing cannot have broken a rule.
            (Fate::Forbidden(error), Some(Transacted::Committed { .. })) => {
                Ok(Transacted::Aborted(Box::new(error)))
            }
            (Fate::Forbidden(_), Some(outcome)) => Ok(outcome),
            (Fate::Forbidden(error), None) => Err(super::faults::rolled_back(error)),
            (Fate::Failed(error), _) => Err(error),
        };
        let _ = tell.send(answer);
    }
}

/// Why a job has no outcome yet.
enum Ended {
    Fault(Fault),
    /// The job ended the transaction of all; this is what became of it by itself.
    Transaction(Transacted),
}

impl<E: Into<Fault>> From<E> for Ended {
    fn from(error: E) -> Self {
        Self::Fault(error.into())
    }
}

impl Desk {
    fn transact(&mut self, job: &mut Job) -> Result<Transacted, Ended> {
        if let Some(claim) = &job.claim {
            if !self.is_current(claim.grant)? {
                return Ok(Transacted::Fenced);
            }
            if !self.is_there(claim.seq, claim.rev)? {
                return Ok(Transacted::Stale);
            }
        }
        // What was given before must outlast a rollback to the savepoint, which makes us forget it.
        self.write_numbers()?;
        self.conn.execute_batch("SAVEPOINT redrive_job")?;
        let arrived = self.arrived.len();
        let worked = self.work(job);
        if self.conn.is_autocommit() {
            return Err(Ended::Transaction(
                worked.map_or_else(|outcome| outcome, |_| Transacted::Aborted(ENDED.into())),
            ));
        }
        match worked {
            Ok(result) => {
                let next = match &job.claim {
                    None => None,
                    Some(claim) => {
                        let left = (claim.attempts, claim.story.clone(), result);
                        match self.settle_done(claim.grant, (claim.seq, claim.rev), claim.at, left)? {
                            Settled::Applied { next, .. } => next,
                            Settled::Stale | Settled::Fenced => None,
                        }
                    }
                };
                self.conn.execute_batch("RELEASE redrive_job")?;
                Ok(Transacted::Committed { next })
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

    /// Runs the work, and gives its result, or what became of it.
    fn work(&mut self, job: &mut Job) -> Result<Option<Vec<u8>>, Transacted> {
        let guard = std::sync::Arc::clone(&self.guard);
        guard.enter(job.time);
        let worked = catch_unwind(AssertUnwindSafe(|| (job.work)(self)));
        let is_over = guard.leave();
        reset(&self.conn);
        match worked {
            Err(panic) => Err(Transacted::Panicked(message(&*panic))),
            Ok(_) if is_over => Err(Transacted::TimedOut),
            Ok(Err(error)) => Err(Transacted::Aborted(error)),
            Ok(Ok(result)) => Ok(result),
        }
    }

    /// Whether there still is a transaction to write in.
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
        .unwrap_or_else(|| "a panic without words".to_owned())
}
