//! The database: the state that all transactions of one opening share, and how a call becomes a transaction.
//!
//! A transaction that was rolled back because of a concurrent one is repeated; so is one whose connection was cut
//! before its COMMIT was sent, while there is patience. One whose COMMIT was sent and not answered is repeated under
//! the id of the first ([`self::commit_ids`]), unless its caller recognises its own rows ([`TxError::Unknown`]).

use std::collections::BTreeMap;
use std::hash::{BuildHasher as _, RandomState};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use redrive_core::Event;
use redrive_core::queue_entry::{QueueEntry, StreamId};
use sqlx::postgres::{PgArguments, PgRow};
use sqlx::query::Query;
use sqlx::{Connection, PgConnection, PgPool};
use tokio::sync::RwLock;

use super::events::fresh::Stream;
use super::faults::{Fault, Kind, Step, kind, not_done, rolled_back, undecided};
use super::open::schema::Schema;
use super::transact::caller_tx::DatabaseIdentity;
use super::tx::{Access, OwnTx};
use crate::error::StoreError;
use crate::nodes::NodeLease;
use crate::store::Arrivals;
use crate::stores::shared::rules::StoreClock;
use crate::stores::shared::user_statements::UserStatements;
use arrival_notifier::{Notifier, Open};
use autocommit::AutocommitPool;
use cache::Cache;
use commit_ids::{CommitId, CommitIds, Earlier, numbers};

pub(super) mod autocommit;

pub(super) mod cache;

pub(super) mod commit_ids;

pub(super) mod seq_reserve;

pub(super) mod arrival_notifier;

pub(super) mod arrivals;

/// How often a call is repeated because of concurrent transactions.
pub(super) const TRIES_MAX: u32 = 30;
/// The first wait between two tries; each is twice as long as the one before, up to [`WAIT_MAX`].
const WAIT: Duration = Duration::from_millis(1);
const WAIT_MAX: Duration = Duration::from_millis(200);

/// The work of a call in a transaction.
pub(super) type TxFuture<'a, T> = Pin<Box<dyn Future<Output = Step<T>> + Send + 'a>>;

/// The database as this process has opened it: its connections, caches and notifications.
pub(super) struct Database {
    /// For transactions.
    pub(super) pool: PgPool,
    /// For statements that are transactions by themselves: connections of the pool that are kept at hand.
    pub(super) autocommit: Arc<AutocommitPool>,
    /// For work that must not wait for a transaction: heartbeats, new streams, hints.
    pub(super) side: PgPool,
    pub(super) schema: Schema,
    /// The address of the database, without secrets.
    pub(super) place: String,
    /// The identity of the database, and its incarnation.
    pub(super) home: DatabaseIdentity,
    /// Whether every transaction has a session of its own: it must not leave anything for the next.
    pub(super) pooled: bool,
    /// How a transaction that writes begins.
    pub(super) begin: String,
    /// How long this process owns its shards after its last renewal.
    pub(super) lease: Duration,
    /// How long a call keeps trying to reach the database.
    pub(super) patience: Duration,
    /// How long a commit waits for another transaction's lock.
    pub(super) lock_wait: Duration,
    pub(super) shards: u32,
    /// The number of this process among those that share the database.
    pub(super) node: i64,
    /// Its lease, as this process sees it.
    pub(super) node_lease: Arc<NodeLease>,
    pub(super) clock: StoreClock,
    /// The statements of the caller's own that are kept prepared.
    pub(super) user_statements: UserStatements,
    pub(super) commit_ids: CommitIds,
    pub(super) is_closed: AtomicBool,
    /// Held while this process renews its lease.
    pub(super) beating: tokio::sync::Mutex<()>,
    /// Held by every call; closing the store waits for all of them.
    pub(super) gate: Arc<RwLock<()>>,
    pub(super) cache: Cache,
    pub(super) notifier: Notifier,
}

/// The news of a commit for watchers and other processes.
#[derive(Debug, Default)]
pub(super) struct CommitNews {
    /// Events that became runnable.
    pub(super) arrived: Vec<QueueEntry>,
    /// Streams with runnable events that are not in `arrived`.
    pub(super) missed: BTreeMap<StreamId, Arc<Stream>>,
    /// Whether a command took events from an owner.
    pub(super) recall: bool,
    /// The number of the transaction, if its notification is complete.
    pub(super) number: Option<u64>,
    /// Whether all of it is in shards of this process, as far as it knows: then other processes have nothing to look
    /// for. If that is wrong, their next look finds it.
    pub(super) is_near: bool,
}

impl CommitNews {
    /// The outcome of the commit is unknown: a load will tell.
    pub(super) fn in_doubt(mut self) -> Self {
        for entry in self.arrived.drain(..) {
            let Event { queue, tenant, .. } = &*entry.event;
            let (queue, tenant) = (queue.clone(), tenant.clone());
            let stream = || Arc::new(Stream { id: entry.stream, queue, tenant });
            self.missed.entry(entry.stream).or_insert_with(stream);
        }
        Self { number: None, is_near: false, ..self }
    }
}

/// Why a transaction did not happen, or may not have happened.
#[derive(Debug)]
pub(super) enum TxError {
    /// It did not happen.
    No(Fault),
    /// Its COMMIT was not answered.
    Unknown(sqlx::Error),
}

impl From<Fault> for TxError {
    fn from(fault: Fault) -> Self {
        Self::No(fault)
    }
}

impl Database {
    /// Reads as of one commit.
    pub(super) async fn look<T>(
        self: &Arc<Self>,
        look: impl for<'a> Fn(&'a mut OwnTx) -> TxFuture<'a, T>,
    ) -> Result<T, StoreError> {
        let mut tries = Retries::new(self.patience);
        loop {
            match self.look_once(&look).await {
                Ok(seen) => return Ok(seen),
                Err(Fault::Sql(error)) if tries.may_go_on(&error) => tries.wait().await,
                Err(fault) => return Err(not_done(fault)),
            }
        }
    }

    async fn look_once<T>(
        self: &Arc<Self>,
        look: &impl for<'a> Fn(&'a mut OwnTx) -> TxFuture<'a, T>,
    ) -> Step<T> {
        let mut tx = OwnTx::begin(self, Access::Read).await?;
        let seen = look(&mut tx).await;
        tx.roll_back().await;
        seen
    }

    /// Writes something, in one commit. One whose COMMIT was not answered is repeated; if the first one happened, its
    /// answer is returned. If the outcome is still unknown when patience ends, the error says so.
    pub(super) async fn write<T>(
        self: &Arc<Self>,
        run: impl for<'a> Fn(&'a mut OwnTx) -> TxFuture<'a, T>,
    ) -> Result<T, StoreError> {
        self.write_or_leave(run).await.map_err(|(error, _)| error)
    }

    /// The same; the error comes with the tries that may still have been committed.
    pub(super) async fn write_or_leave<T>(
        self: &Arc<Self>,
        run: impl for<'a> Fn(&'a mut OwnTx) -> TxFuture<'a, T>,
    ) -> Result<T, (StoreError, Vec<Earlier<T>>)> {
        let mut earlier = Vec::new();
        let mut tries = Retries::new(self.patience);
        loop {
            let fault = match self.write_as(&run, &mut earlier).await {
                Ok(done) => return Ok(done),
                Err(TxError::No(fault)) => fault,
                Err(TxError::Unknown(error)) => Fault::Sql(error),
            };
            let goes_on = match &fault {
                Fault::Sql(error) => tries.may_go_on(error) || (!earlier.is_empty() && tries.may_ask(error)),
                Fault::Void => tries.count < TRIES_MAX,
                Fault::Refused(_) => false,
            };
            if goes_on {
                tries.wait().await;
                continue;
            }
            // The present answer counts only if none of the earlier tries can be committed any more.
            return match self.find_out(&numbers(&earlier)).await {
                Ok(Some(at)) => Ok(earlier.swap_remove(at).did),
                Ok(None) => Err((not_done(fault), Vec::new())),
                Err(_) => Err((undecided(fault), earlier)),
            };
        }
    }

    /// A try with a number, after the earlier ones.
    async fn write_as<T>(
        self: &Arc<Self>,
        run: &impl for<'a> Fn(&'a mut OwnTx) -> TxFuture<'a, T>,
        earlier: &mut Vec<Earlier<T>>,
    ) -> Result<T, TxError> {
        let mut tx = OwnTx::begin(self, Access::Write).await?;
        match tx.recognise(&numbers(earlier)).await {
            Ok(None) => {}
            Ok(Some(at)) => {
                tx.roll_back().await;
                return Ok(earlier.swap_remove(at).did);
            }
            Err(fault) => {
                tx.roll_back().await;
                return Err(fault.into());
            }
        }
        let did = match run(&mut tx).await {
            Ok(did) => tx.finish().await.map(|()| did),
            Err(fault) => Err(fault),
        };
        match did {
            Ok(did) => {
                let number = self.commit_ids.next();
                match self.commit(&mut tx, Some(number)).await {
                    Ok(()) => {
                        self.commit_ids.answered(earlier.drain(..).map(|one| one.number));
                        Ok(did)
                    }
                    Err(trouble) => {
                        if matches!(trouble, TxError::Unknown(_)) {
                            earlier.push(Earlier { number, did });
                        }
                        Err(trouble)
                    }
                }
            }
            Err(fault) => {
                tx.roll_back().await;
                Err(fault.into())
            }
        }
    }

    /// Finds out which of these tries was committed, if one was; none of the others ever will be.
    pub(super) async fn find_out(
        self: &Arc<Self>,
        earlier: &[CommitId],
    ) -> Result<Option<usize>, StoreError> {
        if earlier.is_empty() {
            return Ok(None);
        }
        let mut tx = OwnTx::begin(self, Access::Write).await.map_err(not_done)?;
        let found = tx.recognise(earlier).await.map_err(not_done)?;
        match found {
            Some(_) => tx.roll_back().await,
            // If this is not answered, it is asked again.
            None => tx.commit().await.map_err(rolled_back)?,
        }
        Ok(found)
    }

    /// The same, for a caller that handles an unknown outcome itself.
    pub(super) async fn try_to_write<T>(
        self: &Arc<Self>,
        run: impl for<'a> Fn(&'a mut OwnTx) -> TxFuture<'a, T>,
    ) -> Result<T, TxError> {
        let mut tries = Retries::new(self.patience);
        loop {
            match self.write_once(&run).await {
                Err(TxError::No(Fault::Sql(error))) if tries.may_go_on(&error) => tries.wait().await,
                // A shard changed hands: determine anew what this process still owns.
                Err(TxError::No(Fault::Void)) if tries.count < TRIES_MAX => tries.wait().await,
                done => return done,
            }
        }
    }

    async fn write_once<T>(
        self: &Arc<Self>,
        run: &impl for<'a> Fn(&'a mut OwnTx) -> TxFuture<'a, T>,
    ) -> Result<T, TxError> {
        let mut tx = OwnTx::begin(self, Access::Write).await?;
        let did = match run(&mut tx).await {
            Ok(did) => tx.finish().await.map(|()| did),
            Err(fault) => Err(fault),
        };
        match did {
            Ok(did) => self.commit(&mut tx, None).await.map(|()| did),
            Err(fault) => {
                tx.roll_back().await;
                Err(fault.into())
            }
        }
    }

    /// Commits a transaction, and notifies the watcher before the call is answered.
    pub(super) async fn commit(&self, tx: &mut OwnTx, number: Option<CommitId>) -> Result<(), TxError> {
        let open = self.notifier.pending.begin();
        let committed = match number {
            Some(number) => tx.commit_as(number).await,
            None => tx.commit().await,
        };
        let is_unknown = match &committed {
            Ok(()) => false,
            Err(error) if kind(error) == Kind::Cut => true,
            Err(_) => return committed.map_err(|error| Fault::Sql(error).into()),
        };
        let mut news = CommitNews {
            arrived: std::mem::take(&mut tx.arrived),
            missed: std::mem::take(&mut tx.missed),
            recall: tx.recall,
            number: tx.number,
            is_near: false,
        };
        let freed = std::mem::take(&mut tx.freed);
        if is_unknown {
            news.missed.extend(freed.into_iter().map(|((id, _), stream)| (id, stream)));
            news = news.in_doubt();
        } else {
            let _ = self.tell_heads(&mut tx.conn, freed, &mut news, |_| true).await;
        }
        self.tell_of(open, news);
        committed.map_err(TxError::Unknown)
    }

    /// Announces the news of a commit.
    pub(super) fn tell_of(&self, open: Open<'_>, news: CommitNews) {
        let CommitNews { arrived, missed, recall, number, is_near } = news;
        // Without a watcher there are no looks, and a new watcher looks at everything.
        if let Some(number) = number.filter(|_| self.is_watched()) {
            self.notifier.own.add(number);
        }
        let streams = missed.values().map(|stream| stream.named()).collect();
        let missed = !missed.is_empty();
        let is_near = is_near && !missed && !recall && !arrived.is_empty();
        let arrivals = Arrivals { entries: arrived, missed, recall, streams, ..Arrivals::default() };
        if is_near { self.tell_here(open, arrivals) } else { self.tell(open, arrivals) }
    }

    /// Notifies the watcher and the other processes.
    pub(super) fn tell(&self, open: Open<'_>, arrivals: Arrivals) {
        if arrivals.entries.is_empty() && !arrivals.missed && !arrivals.recall {
            return;
        }
        self.notifier.hint.notify_one();
        self.tell_here(open, arrivals);
    }

    /// Notifies the watcher.
    fn tell_here(&self, open: Open<'_>, arrivals: Arrivals) {
        let watcher = self.notifier.watcher.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if let Some(watcher) = watcher {
            open.tell(arrivals, &watcher);
        }
    }

    /// The rows of a statement that is a transaction by itself. Behind a pooler it is prepared and run in one, so that
    /// both meet the same session.
    pub(super) async fn alone_on(
        &self,
        conn: &mut PgConnection,
        query: Query<'_, sqlx::Postgres, PgArguments>,
    ) -> sqlx::Result<Vec<PgRow>> {
        if !self.pooled {
            return query.fetch_all(conn).await;
        }
        let mut tx = conn.begin().await?;
        let rows = query.persistent(false).fetch_all(&mut *tx).await?;
        tx.commit().await?;
        Ok(rows)
    }

    /// The same on a connection of a pool.
    pub(super) async fn alone(
        &self,
        pool: &PgPool,
        query: Query<'_, sqlx::Postgres, PgArguments>,
    ) -> sqlx::Result<Vec<PgRow>> {
        let mut conn = pool.acquire().await?;
        self.alone_on(&mut conn, query).await
    }

    /// Fails if the store is closed.
    pub(super) fn check(&self) -> Result<(), StoreError> {
        if self.is_closed.load(Relaxed) { Err(StoreError::Closed) } else { Ok(()) }
    }
}

/// How often a call was tried, and for how long.
pub(super) struct Retries {
    began: Instant,
    patience: Duration,
    count: u32,
}

impl Retries {
    pub(super) fn new(patience: Duration) -> Self {
        Self { began: Instant::now(), patience, count: 0 }
    }

    pub(super) fn may_go_on(&self, error: &sqlx::Error) -> bool {
        match kind(error) {
            Kind::Again => self.count < TRIES_MAX,
            Kind::Cut | Kind::Busy => self.began.elapsed() < self.patience,
            Kind::Passing | Kind::Other => false,
        }
    }

    /// Whether to keep asking about a try of unknown outcome: also if the first try itself is in the way.
    fn may_ask(&self, error: &sqlx::Error) -> bool {
        kind(error) != Kind::Other && self.began.elapsed() < self.patience
    }

    pub(super) async fn wait(&mut self) {
        let wait = WAIT.saturating_mul(1 << self.count.min(16)).min(WAIT_MAX);
        self.count += 1;
        tokio::time::sleep(jittered(wait)).await;
    }
}

/// A random part of a wait, at least half of it: two transactions that conflicted must not conflict again.
pub(super) fn jittered(wait: Duration) -> Duration {
    // Each state has keys of its own, which makes the hash a random number.
    let random = RandomState::new().hash_one(()) >> 32;
    #[expect(clippy::cast_precision_loss, reason = "32 bits fit")]
    let part = random as f64 / (1_u64 << 32) as f64;
    wait.mul_f64(0.5 + part / 2.0)
}

/// The error of a step that was taken outside a transaction.
pub(super) fn autocommit(error: sqlx::Error) -> StoreError {
    rolled_back(error)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_after_a_conflict_differ_and_keep_their_bounds() {
        let wait = Duration::from_millis(20);
        let waits: std::collections::BTreeSet<_> = (0..100).map(|_| jittered(wait)).collect();
        assert!(waits.len() > 90, "{}", waits.len());
        assert!(waits.iter().all(|one| *one >= wait / 2 && *one <= wait), "{waits:?}");
    }
}
