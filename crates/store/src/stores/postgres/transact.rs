//! The user's own work, in a transaction of this database.
//!
//! Work is synchronous, so it runs on a thread of its own, and waits there for its statements. The claimed event is
//! locked first: of two that claim it one waits, and then finds it gone. Last of all comes the fence, as for every
//! settle.
//!
//! Work that fails because of somebody else, by a deadlock or because the connection was cut, runs again: no attempt is
//! charged for it. That is seen in the statements of [`Tx`]; of those that were made by [`with`], a cut is seen, and for
//! anything else there is [`run_again`].
//!
//! Work that ends the transaction by itself would have its effect without the settle, or the other way round. That is
//! seen by the transaction's number, which is another one then, and nothing of what follows is committed.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

use redrive_core::Moment;
use redrive_core::entry::{Entry, Settled};
use redrive_core::ledger::{Reply, Scope};
use sqlx::{AssertSqlSafe, PgConnection, Row};
use tokio::runtime::Handle;

use super::desk::{Desk, DeskAt, For, maybe, one, run};
use super::faults::{Fault, Kind, Step, broken, kind, not_done, undecided};
use super::held::Stand;
use super::office::{Office, Trouble};
use super::once::{Earlier, numbers};
use super::publish::Given;
use super::values;
use crate::error::{PublishError, StoreError};
use crate::ledger::End;
use crate::sql::{self, SqlError, Value};
use crate::store::{New, Published};
use crate::stores::shared::numbers::{from_moment, stream_of};
use crate::transaction::{Claim, CompleteError, Job, Transacted, Tx};

/// A statement gets this much at least, however little time is left: 0 would be no limit.
const STATEMENT_LEAST: Duration = Duration::from_millis(1);

/// How long to wait before work is run again, and at most.
const AGAIN: Duration = Duration::from_millis(20);
const AGAIN_MOST: Duration = Duration::from_millis(320);

/// Does something with the connection, if this is a transaction of a PostgreSQL store. Whatever is written with it
/// commits with everything else that the work does, or not at all.
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
    let bench = tx.as_any().downcast_mut::<Bench>()?;
    let (handle, until) = (bench.handle.clone(), bench.until);
    let worked =
        handle.block_on(async { tokio::time::timeout_at(until.into(), work(&mut bench.desk.conn)).await });
    match worked {
        Ok(worked) => Some(worked),
        // There is nothing that the work could be given, so it does not go on.
        Err(_) => std::panic::resume_unwind(Box::new(OverTime)),
    }
}

/// Says that something failed because of somebody else: if the work says no, it is not its own word, and it runs again while
/// it has time. In another store nothing comes of it.
pub fn run_again(tx: &mut dyn Tx) {
    if let Some(bench) = tx.as_any().downcast_mut::<Bench>() {
        bench.shaken = true;
    }
}

/// What ends work that waits for something that does not come.
struct OverTime;

/// A desk that work is done at.
struct Bench {
    desk: Desk,
    handle: Handle,
    /// When its time is over.
    until: Instant,
    /// Whether a statement failed because of somebody else, or because the connection is gone: then whatever the work
    /// says, it is not its own word, and it runs again.
    shaken: bool,
}

impl Bench {
    fn refused(&mut self, error: sqlx::Error) -> SqlError {
        self.shaken |= is_passing(kind(&error));
        values::refused(error)
    }

    fn not_done(&mut self, fault: Fault) -> StoreError {
        self.shaken |= matches!(&fault, Fault::Sql(error) if is_passing(kind(error)));
        not_done(fault)
    }
}

/// Whether the same may work at once, or in a while.
const fn is_passing(kind: Kind) -> bool {
    matches!(kind, Kind::Again | Kind::Cut | Kind::Busy)
}

impl Tx for Bench {
    fn mark(&mut self, handler: &str, id: &str, until: Moment) -> Result<bool, PublishError> {
        let marked = self.handle.clone().block_on(self.desk.mark(handler, id, until));
        marked.map_err(|fault| PublishError::Store(self.not_done(fault)))
    }

    fn publish(&mut self, new: New) -> Result<Published, PublishError> {
        let mut given = Given::new();
        let published = self.handle.clone().block_on(self.desk.publish_all(&[&new], &mut given));
        let mut answers = published.map_err(|fault| PublishError::Store(self.not_done(fault)))?;
        answers.pop().unwrap_or_else(|| Err(broken("an event was not answered").into()))
    }

    fn complete(
        &mut self,
        scope: &Scope,
        epoch: u64,
        reply: Reply,
        resource: Option<String>,
        at: Moment,
    ) -> Result<(), CompleteError> {
        let end = End::Completed { reply, resource };
        let ended = self.handle.clone().block_on(self.desk.end_request(scope, epoch, end, at));
        ended.map_err(|fault| self.not_done(fault))?.map_err(CompleteError::Fenced)
    }

    fn keep(&mut self, name: &str, bytes: Option<&[u8]>) -> Result<(), StoreError> {
        self.handle.clone().block_on(self.desk.put_kept(name, bytes)).map_err(not_done)
    }

    fn kept(&mut self, beginning: &str) -> Result<Vec<(String, Vec<u8>)>, StoreError> {
        self.handle.clone().block_on(self.desk.find_kept(beginning)).map_err(not_done)
    }

    fn execute(&mut self, statement: &str, values: &[Value]) -> Result<u64, SqlError> {
        let query = values::query(statement, values).persistent(self.desk.keeps());
        let done = self.handle.clone().block_on(query.execute(&mut *self.desk.conn));
        done.map(|done| done.rows_affected()).map_err(|error| self.refused(error))
    }

    fn query(&mut self, statement: &str, values: &[Value]) -> Result<Vec<sql::Row>, SqlError> {
        let query = values::query(statement, values).persistent(self.desk.keeps());
        let found = self.handle.clone().block_on(query.fetch_all(&mut *self.desk.conn));
        found.map_err(|error| self.refused(error))?.iter().map(values::row).collect()
    }

    fn as_any(&mut self) -> &mut dyn Any {
        self
    }
}

/// Who of a key may run now.
type Next = Option<Box<Entry>>;

/// What became of work that was done.
enum Worked {
    Ok(Option<Vec<u8>>),
    No(Transacted),
    /// It was ended in the middle of something.
    Over,
}

impl Office {
    /// Runs a job. What was rolled back because of somebody else runs again.
    pub(super) async fn transact(self: &Arc<Self>, mut job: Job) -> Result<Transacted, StoreError> {
        let began = Instant::now();
        let (mut earlier, mut until, mut wait) = (Vec::new(), None, AGAIN);
        loop {
            let (back, done) = self.transact_once(job, &mut earlier, &mut until).await;
            job = back;
            let fault = match done {
                Ok((Transacted::Aborted(_), true)) if began.elapsed() + wait <= job.time => {
                    tokio::time::sleep(wait).await;
                    wait = (wait * 2).min(AGAIN_MOST);
                    continue;
                }
                Ok((done @ Transacted::Committed { .. }, _)) => return Ok(done),
                Ok((done, _)) if earlier.is_empty() => return Ok(done),
                // A COMMIT of a try before may still be on its way.
                Ok((done, _)) => {
                    return match self.find_out(&numbers(&earlier)).await {
                        Ok(Some(at)) => Ok(committed(earlier.swap_remove(at))),
                        Ok(None) => Ok(done),
                        Err(error) => Err(StoreError::Unanswered { what: error.to_string() }),
                    };
                }
                Err(Trouble::No(fault)) => fault,
                Err(Trouble::Unknown(error)) => Fault::Sql(error),
            };
            let goes_on = match &fault {
                Fault::Sql(error) => {
                    let kind = kind(error);
                    let is_asked = !earlier.is_empty() && kind == Kind::Passing;
                    (is_passing(kind) || is_asked) && began.elapsed() <= job.time
                }
                Fault::Lost | Fault::Refused(_) => false,
            };
            if goes_on {
                tokio::time::sleep(AGAIN).await;
                continue;
            }
            // What was said just now counts only where none of the tries before can happen any more.
            return match self.find_out(&numbers(&earlier)).await {
                Ok(Some(at)) => Ok(committed(earlier.swap_remove(at))),
                Ok(None) if matches!(fault, Fault::Lost) => Ok(Transacted::Fenced),
                Ok(None) => Err(not_done(fault)),
                Err(_) => Err(undecided(fault)),
            };
        }
    }

    /// A try: what became of it, and whether the work was shaken by somebody else.
    async fn transact_once(
        self: &Arc<Self>,
        job: Job,
        earlier: &mut Vec<Earlier<Next>>,
        until: &mut Option<Instant>,
    ) -> (Job, Result<(Transacted, bool), Trouble>) {
        let mut desk = match Desk::begin(self, For::Writing).await {
            Ok(desk) => desk,
            Err(fault) => return (job, Err(fault.into())),
        };
        match desk.recognise(&numbers(earlier)).await {
            Ok(None) => {}
            Ok(Some(at)) => {
                desk.roll_back().await;
                self.tellings.settled(job.claim.iter().map(|claim| claim.seq));
                return (job, Ok((committed(earlier.swap_remove(at)), false)));
            }
            Err(fault) => {
                desk.roll_back().await;
                return (job, Err(fault.into()));
            }
        }
        // The time of all tries is the one that the first has.
        let left = until.map_or(job.time, |until| until.saturating_duration_since(Instant::now()));
        let number = match desk.open_for_work(job.claim.clone(), left).await {
            Ok(Ok(number)) => number,
            Ok(Err(refused)) => {
                desk.roll_back().await;
                return (job, Ok((refused, false)));
            }
            Err(fault) => {
                desk.roll_back().await;
                return (job, Err(fault.into()));
            }
        };
        desk.is_worked_at();
        let until = *until.get_or_insert_with(|| Instant::now() + job.time);
        let bench = Bench { desk, handle: Handle::current(), until, shaken: false };
        let worked = tokio::task::spawn_blocking(move || work(bench, job)).await;
        let Ok((mut desk, job, worked, shaken)) = worked else {
            // The runtime is shutting down: the connection is gone with the desk, and rolled back.
            let job = Job { work: Box::new(|_| Ok(None)), claim: None, time: Duration::ZERO, alone: false };
            return (job, Err(Fault::Refused(StoreError::Closed).into()));
        };
        let settled = match worked {
            Worked::Ok(result) => desk.settle_work(job.claim.clone(), number, result).await,
            // In the middle of something: the connection is of no use to anybody.
            Worked::Over => return (job, Ok((Transacted::TimedOut, false))),
            Worked::No(outcome) => {
                let is_there = desk.try_to_roll_back().await;
                return (job, Ok((outcome, shaken || !is_there)));
            }
        };
        let settled = match settled {
            Ok(Transacted::Committed { next }) => {
                desk.finish().await.map(|()| Transacted::Committed { next })
            }
            other => other,
        };
        match settled {
            Ok(Transacted::Committed { next }) => {
                let number = self.numbers.next();
                // The work may have published in other ways, too, which nobody was told of.
                desk.number = None;
                let committed = self.commit(&mut desk, Some(number)).await;
                match &committed {
                    Ok(()) => self.tellings.settled(job.claim.iter().map(|claim| claim.seq)),
                    Err(Trouble::Unknown(_)) => {
                        earlier.push(Earlier { number, did: next.clone().map(Box::new) });
                    }
                    Err(Trouble::No(_)) => {}
                }
                let committed = match committed {
                    // A rule of the user's own tables that is checked at the end forbade it.
                    Err(Trouble::No(Fault::Sql(error))) if kind(&error) == Kind::Other => {
                        Ok((Transacted::Aborted(Box::new(error)), false))
                    }
                    committed => committed.map(|()| (Transacted::Committed { next }, false)),
                };
                (job, committed)
            }
            Ok(outcome) => {
                desk.roll_back().await;
                (job, Ok((outcome, shaken)))
            }
            Err(fault) => {
                desk.roll_back().await;
                (job, Err(fault.into()))
            }
        }
    }
}

/// What a try that was committed says.
fn committed(earlier: Earlier<Next>) -> Transacted {
    Transacted::Committed { next: earlier.did.map(|next| *next) }
}

/// Runs the work, on a thread that may wait.
fn work(mut bench: Bench, mut job: Job) -> (Desk, Job, Worked, bool) {
    let worked = catch_unwind(AssertUnwindSafe(|| (job.work)(&mut bench)));
    let is_over = Instant::now() > bench.until;
    let worked = match worked {
        Err(panic) if panic.is::<OverTime>() => Worked::Over,
        Err(panic) => Worked::No(Transacted::Panicked(message(&*panic))),
        Ok(_) if is_over => Worked::No(Transacted::TimedOut),
        Ok(Err(error)) => Worked::No(Transacted::Aborted(error)),
        Ok(Ok(result)) => Worked::Ok(result),
    };
    (bench.desk, job, worked, bench.shaken)
}

impl Desk {
    /// Locks what the work is for, and bounds its time: the number of the transaction, or why it does not run.
    async fn open_for_work(
        &mut self,
        claim: Option<Claim>,
        time: Duration,
    ) -> Step<Result<String, Transacted>> {
        if let Some(claim) = &claim
            && let Err(refused) = self.lock_claim(claim).await?
        {
            return Ok(Err(refused));
        }
        self.has_work = true;
        let time = time.max(STATEMENT_LEAST);
        // A process that stands still is not to keep a claimed event from whoever takes its shard over.
        let idle = if claim.is_some() { time.min(self.office.lease / 3) } else { time };
        let [millis, idle] = [time, idle].map(|time| time.as_millis().min(i32::MAX as u128));
        let bounds = format!(
            "SET LOCAL statement_timeout = {millis}; SET LOCAL idle_in_transaction_session_timeout = {idle}"
        );
        sqlx::raw_sql(AssertSqlSafe(bounds)).execute(&mut *self.conn).await?;
        Ok(Ok(one!(self, "SELECT pg_current_xact_id()::text")?))
    }

    async fn lock_claim(&mut self, claim: &Claim) -> Step<Result<(), Transacted>> {
        if !self.is_current(claim.grant).await? {
            return Ok(Err(Transacted::Fenced));
        }
        let Some(stream) = self.stream(stream_of(claim.seq)).await? else {
            return Ok(Err(Transacted::Stale));
        };
        let Some((held, _)) = self.take_up(claim.seq, &stream).await? else {
            return Ok(Err(Transacted::Stale));
        };
        if held.row.shard != claim.grant.shard {
            return Ok(Err(Transacted::Fenced));
        }
        let is_over = held.stand.is_dead() || held.stand == Stand::Discarded;
        Ok(if held.rev != claim.rev || is_over { Err(Transacted::Stale) } else { Ok(()) })
    }

    /// Settles the claimed event with what the work left.
    async fn settle_work(
        &mut self,
        claim: Option<Claim>,
        number: String,
        result: Option<Vec<u8>>,
    ) -> Step<Transacted> {
        let now = match maybe!(self, "SELECT pg_current_xact_id_if_assigned()::text") {
            Ok(now) => now,
            Err(error) if is_spoiled(&error) => {
                let what = "a statement of the work failed, and the work went on; return its error, or use a savepoint";
                return Ok(Transacted::Aborted(what.into()));
            }
            Err(error) => return Err(error.into()),
        };
        if now.and_then(|row| row.try_get::<Option<String>, _>(0).ok().flatten()) != Some(number) {
            let what = "the work ended the transaction; leave BEGIN, COMMIT and ROLLBACK to the store";
            return Ok(Transacted::Aborted(what.into()));
        }
        // The longest that a process that stands still may hold up whoever takes its shards.
        let millis = (self.office.lease / 3).as_millis();
        let bounds = format!(
            "SET LOCAL statement_timeout = 0; SET LOCAL idle_in_transaction_session_timeout = {millis}"
        );
        sqlx::raw_sql(AssertSqlSafe(bounds)).execute(&mut *self.conn).await?;
        let Some(claim) = claim else { return Ok(Transacted::Committed { next: None }) };
        self.grants.insert(claim.grant.shard, claim.grant);
        self.see(claim.at);
        let left = (claim.attempts, claim.story.clone(), result);
        match self.settle_done(claim.grant, (claim.seq, claim.rev), claim.at, left).await? {
            Settled::Applied { next, .. } => Ok(Transacted::Committed { next }),
            Settled::Stale => Ok(Transacted::Stale),
            Settled::Fenced => Ok(Transacted::Fenced),
        }
    }
}

impl DeskAt<'_> {
    /// Marks that a handler has processed an id. `false` where it had.
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

/// Whether an earlier statement failed, so that nothing of the transaction can be kept.
fn is_spoiled(error: &sqlx::Error) -> bool {
    error.as_database_error().is_some_and(|said| said.code().as_deref() == Some("25P02"))
}

fn message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "a panic without words".to_owned())
}
