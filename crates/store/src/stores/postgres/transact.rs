//! The user's own work, in a transaction of this database.
//!
//! Work is synchronous, so it runs on a thread of its own, and blocks there on its statements. The claimed event is
//! locked first: of two transactions that claim it one waits, and then finds it gone. Last of all comes the fence, as
//! for every settle.
//!
//! Work that fails because of a deadlock or a cut connection runs again, and no attempt is charged. The statements of
//! [`Tx`] detect that; for statements made by [`with`] a cut is detected, and for anything else there is
//! [`run_again`].
//!
//! Work that ends the transaction by itself would have its effect without the settle, or the other way round. The
//! number of the transaction, which then differs, reveals that, and nothing of what follows is committed.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

use redrive_core::Moment;
use redrive_core::ledger::{RequestScope, StoredReply};
use redrive_core::queue_entry::{QueueEntry, SettleResult};
use sqlx::{AssertSqlSafe, PgConnection, Row};
use tokio::runtime::Handle;

use super::database::commit_ids::{Earlier, numbers};
use super::database::{Database, TxError, jittered};
use super::events::tracked::RowState;
use super::faults::{Fault, Kind, Step, broken, kind, not_done, undecided};
use super::publish::slow::Given;
use super::tx::{Access, OwnTx, PgTx, maybe, one, run};
use crate::error::{PublishError, StoreError};
use crate::ledger::RunEnding;
use crate::sql::{self, SqlError, Value};
use crate::store::{NewEvent, Published};
use crate::stores::shared::numbers::{from_moment, stream_of};
use crate::transaction::{CompleteError, Tx, TxJob, TxOutcome, TxSettle};

pub(super) mod caller_tx;

pub(super) mod values;

pub(super) mod kept;

/// The least time a statement gets, however little is left: 0 would mean no limit.
const STATEMENT_LEAST: Duration = Duration::from_millis(1);

/// How long to wait before work runs again, and at most.
const AGAIN: Duration = Duration::from_millis(20);
const AGAIN_MOST: Duration = Duration::from_millis(320);

/// Uses the connection, if this is a transaction of a PostgreSQL store. Its writes commit with the rest of the
/// transaction, or not at all.
///
/// ```
/// # use redrive_store::{Tx, postgres};
/// fn charge(tx: &mut dyn Tx) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
///     let insert = "INSERT INTO charge (customer, euro) VALUES ($1, $2)";
///     postgres::with(tx, async |conn| postgres::sqlx::query(insert).bind(3).bind(17).execute(conn).await)
///         .ok_or("not in PostgreSQL")??;
///     Ok(())
/// }
/// ```
pub fn with<T>(tx: &mut dyn Tx, work: impl AsyncFnOnce(&mut PgConnection) -> T) -> Option<T> {
    let work_tx = tx.as_any().downcast_mut::<WorkTx>()?;
    let (handle, until) = (work_tx.handle.clone(), work_tx.until);
    let worked =
        handle.block_on(async { tokio::time::timeout_at(until.into(), work(&mut work_tx.tx.conn)).await });
    match worked {
        Ok(worked) => Some(worked),
        // There is no result to give to the work, so it does not go on.
        Err(_) => std::panic::resume_unwind(Box::new(OverTime)),
    }
}

/// Says that a failure was caused by a concurrent transaction: if the work returns an error, the error does not count,
/// and the work runs again while it has time. Other stores ignore it.
pub fn run_again(tx: &mut dyn Tx) {
    if let Some(work_tx) = tx.as_any().downcast_mut::<WorkTx>() {
        work_tx.shaken = true;
    }
}

/// The panic that ends work whose time is over.
struct OverTime;

/// A transaction with a caller's work in it.
struct WorkTx {
    tx: OwnTx,
    handle: Handle,
    /// When its time is over.
    until: Instant,
    /// Whether a statement failed because of a concurrent transaction or a lost connection: then the work's own result
    /// does not count, and it runs again.
    shaken: bool,
}

impl WorkTx {
    fn refused(&mut self, error: sqlx::Error) -> SqlError {
        self.shaken |= is_passing(kind(&error));
        values::refused(error)
    }

    fn not_done(&mut self, fault: Fault) -> StoreError {
        self.shaken |= matches!(&fault, Fault::Sql(error) if is_passing(kind(error)));
        not_done(fault)
    }
}

/// Whether the same may work at once, or after a while.
const fn is_passing(kind: Kind) -> bool {
    matches!(kind, Kind::Again | Kind::Cut | Kind::Busy)
}

impl Tx for WorkTx {
    fn mark(&mut self, handler: &str, id: &str, until: Moment) -> Result<bool, PublishError> {
        let marked = self.handle.clone().block_on(self.tx.mark(handler, id, until));
        marked.map_err(|fault| PublishError::Store(self.not_done(fault)))
    }

    fn publish(&mut self, new: NewEvent) -> Result<Published, PublishError> {
        let mut given = Given::new();
        let published = self.handle.clone().block_on(self.tx.publish_all(&[&new], &mut given));
        let mut answers = published.map_err(|fault| PublishError::Store(self.not_done(fault)))?;
        answers.pop().unwrap_or_else(|| Err(broken("an event was not answered").into()))
    }

    fn complete(
        &mut self,
        scope: &RequestScope,
        epoch: u64,
        reply: StoredReply,
        resource: Option<String>,
        at: Moment,
    ) -> Result<(), CompleteError> {
        let end = RunEnding::Completed { reply, resource };
        let ended = self.handle.clone().block_on(self.tx.end_request(scope, epoch, end, at));
        ended.map_err(|fault| self.not_done(fault))?.map_err(CompleteError::Fenced)
    }

    fn keep(&mut self, name: &str, bytes: Option<&[u8]>) -> Result<(), StoreError> {
        self.handle.clone().block_on(self.tx.put_kept(name, bytes)).map_err(not_done)
    }

    fn kept(&mut self, beginning: &str) -> Result<Vec<(String, Vec<u8>)>, StoreError> {
        self.handle.clone().block_on(self.tx.find_kept(beginning)).map_err(not_done)
    }

    fn execute(&mut self, statement: &str, values: &[Value]) -> Result<u64, SqlError> {
        let keeps = self.tx.keeps() && self.tx.db.user_statements.keeps(statement);
        let query = values::query(statement, values).persistent(keeps);
        let done = self.handle.clone().block_on(query.execute(&mut *self.tx.conn));
        done.map(|done| done.rows_affected()).map_err(|error| self.refused(error))
    }

    fn query(&mut self, statement: &str, values: &[Value]) -> Result<Vec<sql::SqlRow>, SqlError> {
        let keeps = self.tx.keeps() && self.tx.db.user_statements.keeps(statement);
        let query = values::query(statement, values).persistent(keeps);
        let found = self.handle.clone().block_on(query.fetch_all(&mut *self.tx.conn));
        found.map_err(|error| self.refused(error))?.iter().map(values::row).collect()
    }

    fn as_any(&mut self) -> &mut dyn Any {
        self
    }
}

/// The event of a key that may run now.
type Next = Option<Box<QueueEntry>>;

/// The result of the work.
enum Worked {
    Ok(Option<Vec<u8>>),
    No(TxOutcome),
    /// It was interrupted in the middle of a statement.
    Over,
}

impl Database {
    /// Runs a job. A job that was rolled back because of a concurrent transaction runs again.
    pub(super) async fn transact(self: &Arc<Self>, mut job: TxJob) -> Result<TxOutcome, StoreError> {
        let began = Instant::now();
        let (mut earlier, mut until, mut wait) = (Vec::new(), None, AGAIN);
        loop {
            let (back, done) = self.transact_once(job, &mut earlier, &mut until).await;
            job = back;
            let fault = match done {
                Ok((TxOutcome::Aborted(_), true)) if began.elapsed() + wait <= job.time => {
                    tokio::time::sleep(jittered(wait)).await;
                    wait = (wait * 2).min(AGAIN_MOST);
                    continue;
                }
                Ok((done @ TxOutcome::Committed { .. }, _)) => return Ok(done),
                Ok((done, _)) if earlier.is_empty() => return Ok(done),
                // A COMMIT of an earlier try may still be on its way.
                Ok((done, _)) => {
                    return match self.find_out(&numbers(&earlier)).await {
                        Ok(Some(at)) => Ok(committed(earlier.swap_remove(at))),
                        Ok(None) => Ok(done),
                        Err(error) => Err(StoreError::Unanswered { what: error.to_string() }),
                    };
                }
                Err(TxError::No(fault)) => fault,
                Err(TxError::Unknown(error)) => Fault::Sql(error),
            };
            let goes_on = match &fault {
                Fault::Sql(error) => {
                    let kind = kind(error);
                    let is_asked = !earlier.is_empty() && kind == Kind::Passing;
                    (is_passing(kind) || is_asked) && began.elapsed() <= job.time
                }
                Fault::Void | Fault::Refused(_) => false,
            };
            if goes_on {
                tokio::time::sleep(jittered(AGAIN)).await;
                continue;
            }
            // The present answer counts only if none of the earlier tries can be committed any more.
            return match self.find_out(&numbers(&earlier)).await {
                Ok(Some(at)) => Ok(committed(earlier.swap_remove(at))),
                Ok(None) if matches!(fault, Fault::Void) => Ok(TxOutcome::Fenced),
                Ok(None) => Err(not_done(fault)),
                Err(_) => Err(undecided(fault)),
            };
        }
    }

    /// A try: its outcome, and whether a concurrent transaction disturbed the work.
    async fn transact_once(
        self: &Arc<Self>,
        job: TxJob,
        earlier: &mut Vec<Earlier<Next>>,
        until: &mut Option<Instant>,
    ) -> (TxJob, Result<(TxOutcome, bool), TxError>) {
        let mut tx = match OwnTx::begin(self, Access::Write).await {
            Ok(tx) => tx,
            Err(fault) => return (job, Err(fault.into())),
        };
        match tx.recognise(&numbers(earlier)).await {
            Ok(None) => {}
            Ok(Some(at)) => {
                tx.roll_back().await;
                self.notifier.pending.settled(job.claim.iter().map(|claim| claim.seq));
                return (job, Ok((committed(earlier.swap_remove(at)), false)));
            }
            Err(fault) => {
                tx.roll_back().await;
                return (job, Err(fault.into()));
            }
        }
        // All tries share the time limit of the first.
        let left = until.map_or(job.time, |until| until.saturating_duration_since(Instant::now()));
        let number = match tx.open_for_work(job.claim.clone(), left).await {
            Ok(Ok(number)) => number,
            Ok(Err(refused)) => {
                tx.roll_back().await;
                return (job, Ok((refused, false)));
            }
            Err(fault) => {
                tx.roll_back().await;
                return (job, Err(fault.into()));
            }
        };
        tx.is_worked_at();
        let until = *until.get_or_insert_with(|| Instant::now() + job.time);
        let work_tx = WorkTx { tx, handle: Handle::current(), until, shaken: false };
        let worked = tokio::task::spawn_blocking(move || work(work_tx, job)).await;
        let Ok((mut tx, job, worked, shaken)) = worked else {
            // The runtime is shutting down: the connection is gone with the transaction, and rolled back.
            let job = TxJob { work: Box::new(|_| Ok(None)), claim: None, time: Duration::ZERO, alone: false };
            return (job, Err(Fault::Refused(StoreError::Closed).into()));
        };
        let settled = match worked {
            Worked::Ok(result) => tx.settle_work(job.claim.clone(), number, result).await,
            // In the middle of a statement: the connection cannot be used again.
            Worked::Over => return (job, Ok((TxOutcome::TimedOut, false))),
            Worked::No(outcome) => {
                let is_there = tx.try_to_roll_back().await;
                return (job, Ok((outcome, shaken || !is_there)));
            }
        };
        let settled = match settled {
            Ok(TxOutcome::Committed { next }) => tx.finish().await.map(|()| TxOutcome::Committed { next }),
            other => other,
        };
        match settled {
            Ok(TxOutcome::Committed { next }) => {
                let number = self.commit_ids.next();
                // The work may also have published in other ways, which were not announced.
                tx.number = None;
                let committed = self.commit(&mut tx, Some(number)).await;
                match &committed {
                    Ok(()) => self.notifier.pending.settled(job.claim.iter().map(|claim| claim.seq)),
                    Err(TxError::Unknown(_)) => {
                        earlier.push(Earlier { number, did: next.clone().map(Box::new) });
                    }
                    Err(TxError::No(_)) => {}
                }
                let committed = match committed {
                    // A deferred constraint of the user's own tables forbade it.
                    Err(TxError::No(Fault::Sql(error))) if kind(&error) == Kind::Other => {
                        Ok((TxOutcome::Aborted(Box::new(error)), false))
                    }
                    committed => committed.map(|()| (TxOutcome::Committed { next }, false)),
                };
                (job, committed)
            }
            Ok(outcome) => {
                tx.roll_back().await;
                (job, Ok((outcome, shaken)))
            }
            Err(fault) => {
                tx.roll_back().await;
                (job, Err(fault.into()))
            }
        }
    }
}

/// The answer of a try that was committed.
fn committed(earlier: Earlier<Next>) -> TxOutcome {
    TxOutcome::Committed { next: earlier.did.map(|next| *next) }
}

/// Runs the work, on a thread that may block.
fn work(mut work_tx: WorkTx, mut job: TxJob) -> (OwnTx, TxJob, Worked, bool) {
    let worked = catch_unwind(AssertUnwindSafe(|| (job.work)(&mut work_tx)));
    let is_over = Instant::now() > work_tx.until;
    let worked = match worked {
        Err(panic) if panic.is::<OverTime>() => Worked::Over,
        Err(panic) => Worked::No(TxOutcome::Panicked(message(&*panic))),
        Ok(_) if is_over => Worked::No(TxOutcome::TimedOut),
        Ok(Err(error)) => Worked::No(TxOutcome::Aborted(error)),
        Ok(Ok(result)) => Worked::Ok(result),
    };
    (work_tx.tx, job, worked, work_tx.shaken)
}

impl OwnTx {
    /// Locks the claimed event, and bounds the time of the work. Returns the number of the transaction, or why the
    /// work does not run.
    async fn open_for_work(
        &mut self,
        claim: Option<TxSettle>,
        time: Duration,
    ) -> Step<Result<String, TxOutcome>> {
        if let Some(claim) = &claim
            && let Err(refused) = self.lock_claim(claim).await?
        {
            return Ok(Err(refused));
        }
        self.has_work = true;
        let time = time.max(STATEMENT_LEAST);
        // A process that is suspended must not keep a claimed event from the next owner of its shard.
        let idle = if claim.is_some() { time.min(self.db.lease / 3) } else { time };
        let [millis, idle] = [time, idle].map(|time| time.as_millis().min(i32::MAX as u128));
        let bounds = format!(
            "SET LOCAL statement_timeout = {millis}; SET LOCAL idle_in_transaction_session_timeout = {idle}"
        );
        sqlx::raw_sql(AssertSqlSafe(bounds)).execute(&mut *self.conn).await?;
        Ok(Ok(one!(self, "SELECT pg_current_xact_id()::text")?))
    }

    async fn lock_claim(&mut self, claim: &TxSettle) -> Step<Result<(), TxOutcome>> {
        if !self.is_current(claim.token).await? {
            return Ok(Err(TxOutcome::Fenced));
        }
        let Some(stream) = self.stream(stream_of(claim.seq)).await? else {
            return Ok(Err(TxOutcome::Stale));
        };
        let Some((tracked, _)) = self.take_up(claim.seq, &stream).await? else {
            return Ok(Err(TxOutcome::Stale));
        };
        if tracked.row.shard != claim.token.shard {
            return Ok(Err(TxOutcome::Fenced));
        }
        let is_over = tracked.state.is_dead() || tracked.state == RowState::Discarded;
        Ok(if tracked.rev != claim.rev || is_over { Err(TxOutcome::Stale) } else { Ok(()) })
    }

    /// Settles the claimed event with the work's result.
    async fn settle_work(
        &mut self,
        claim: Option<TxSettle>,
        number: String,
        result: Option<Vec<u8>>,
    ) -> Step<TxOutcome> {
        let now = match maybe!(self, "SELECT pg_current_xact_id_if_assigned()::text") {
            Ok(now) => now,
            Err(error) if is_spoiled(&error) => {
                let what = "a statement of the work failed, and the work went on; return its error, or use a savepoint";
                return Ok(TxOutcome::Aborted(what.into()));
            }
            Err(error) => return Err(error.into()),
        };
        if now.and_then(|row| row.try_get::<Option<String>, _>(0).ok().flatten()) != Some(number) {
            let what = "the work ended the transaction; leave BEGIN, COMMIT and ROLLBACK to the store";
            return Ok(TxOutcome::Aborted(what.into()));
        }
        // The longest time that a suspended process may block the next owner of its shards.
        let millis = (self.db.lease / 3).as_millis();
        let bounds = format!(
            "SET LOCAL statement_timeout = 0; SET LOCAL idle_in_transaction_session_timeout = {millis}"
        );
        sqlx::raw_sql(AssertSqlSafe(bounds)).execute(&mut *self.conn).await?;
        let Some(claim) = claim else { return Ok(TxOutcome::Committed { next: None }) };
        self.tokens.insert(claim.token.shard, claim.token);
        self.advance_clock(claim.at);
        let left = (claim.attempts, claim.history.clone(), result);
        match self.settle_done(claim.token, (claim.seq, claim.rev), claim.at, left).await? {
            SettleResult::Applied { next, .. } => Ok(TxOutcome::Committed { next }),
            SettleResult::Stale => Ok(TxOutcome::Stale),
            SettleResult::Fenced => Ok(TxOutcome::Fenced),
        }
    }
}

impl PgTx<'_> {
    /// Marks that a handler has processed an id. `false` if it had.
    pub(super) async fn mark(&mut self, handler: &str, id: &str, until: Moment) -> Step<bool> {
        let until = from_moment(until);
        let insert =
            "INSERT INTO redrive.inbox (handler, id, until) VALUES ($1, $2, $3) ON CONFLICT DO NOTHING";
        if run!(self, insert, handler, id, until)? == 1 {
            return Ok(true);
        }
        let raise = "UPDATE redrive.inbox SET until = $3 WHERE handler = $1 AND id = $2 AND until < $3";
        run!(self, raise, handler, id, until)?;
        Ok(false)
    }
}

/// Whether an earlier statement failed, so that the transaction cannot be committed.
fn is_spoiled(error: &sqlx::Error) -> bool {
    error.as_database_error().is_some_and(|said| said.code().as_deref() == Some("25P02"))
}

fn message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "a panic without a message".to_owned())
}
