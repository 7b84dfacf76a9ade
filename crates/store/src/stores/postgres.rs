//! In a PostgreSQL database: many processes, one database.
//!
//! Everything is in a schema of its own, by default `redrive`; the rest of the database is the user's, and
//! [`SettleStore::transact`] writes to both in one commit. Events are split into shards by their key, and each shard
//! has one owner at a time, which hands out its events from memory. Any process may publish, read and issue commands.
//!
//! An owner is a row with a lease, by the database's clock. Its settles are fenced by the shard's epoch in the commit
//! itself, so an owner that was replaced changes nothing. Each statement that hands events out determines the head of
//! a key and the arrivals anew, because publishers commit in any order.
//!
//! ```no_run
//! # use redrive_store::{DeclaredBy, Postgres, QueueSpec, postgres::PostgresSettings, prelude::*};
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let store = Postgres::open("postgres://redrive@localhost/shop", PostgresSettings::default()).await?;
//! store.declare(QueueSpec { name: "orders".into(), ordered: true, ..QueueSpec::default() }, DeclaredBy::Runner).await?;
//! store.close().await?;
//! # Ok(())
//! # }
//! ```
//!
//! Costs and guarantees are in `docs/guides/postgres.md`.

use std::fmt;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use redrive_core::Moment;
use redrive_core::queue_entry::{FencingToken, Seq, SettleRequest, SettleResult};
use redrive_core::triage::{self, ActiveRules, Filter, JobId};
use tokio::runtime::{Builder, Runtime};

use crate::error::{PublishError, StoreError};
use crate::event_status::{EventCount, EventPage, EventQuery, EventStatus, FilterMatches, Named};
use crate::lease::{self, LeaseRequest, LeaseSettle, LeaseSettleResult, LeasedEvents};
use crate::nodes::{NodeLease, NodeList};
use crate::operate::{
    AuditLine, CommandResult, FailingGroup, FailingQuery, Group, GroupQuery, JobAdvance, OperatorCommand,
    Retrying,
};
use crate::store::{
    DeclaredBy, Domain, EventStore, LoadRequest, LoadedEvents, NewEvent, OperatorStore, Published, QueueSpec,
    SettleStore, ShardStore, Store, StoreFuture, TakenShard, Watcher,
};
use crate::transaction::{TxJob, TxOutcome};

mod open;

mod database;

mod tx;

mod rows;

mod writer;

mod publish;

mod load;

mod settle;

mod keys;

mod nodes;

mod leases;

mod transact;

mod operate;

mod ledger;

mod read;

mod forget;

mod events;

pub(super) mod moving;

mod faults;

pub use open::settings::PostgresSettings;
#[cfg(feature = "planted")]
#[doc(hidden)]
pub use open::test_hooks::FutureSchemaStep;
/// The driver, for work in the same transaction.
pub use sqlx;
pub use transact::caller_tx::{Wakeup, commit, spoil};
pub use transact::{run_again, with};

use database::{Database, TxFuture};
use faults::broken;
use open::schema::STEPS;
use tx::OwnTx;
use writer::CommitQueue;
use writer::batch::BatchItem;

/// How many threads drive the connections. They wait nearly all of the time.
const THREADS: usize = 2;

/// A store in a PostgreSQL database.
pub struct Postgres {
    db: Arc<Database>,
    publishes: CommitQueue<NewEvent, Result<Published, PublishError>>,
    settles: CommitQueue<SettleRequest, SettleResult>,
    /// Connections need a runtime that lives as long as they do, whichever runtime calls.
    runtime: Option<Runtime>,
}

impl Postgres {
    /// Opens a database, and creates the tables if there are none.
    ///
    /// # Errors
    /// [`StoreError::Open`] with what to do about it, and [`StoreError::Newer`] if a newer program made the tables.
    pub async fn open(url: &str, settings: PostgresSettings) -> Result<Self, StoreError> {
        Self::open_by(url, settings, STEPS).await
    }

    async fn open_by(
        url: &str,
        settings: PostgresSettings,
        steps: &'static [open::schema::Step],
    ) -> Result<Self, StoreError> {
        let no_threads = |error: std::io::Error| StoreError::Open {
            path: "the database".into(),
            why: format!("cannot start threads: {error}"),
            source: Some(Arc::new(error)),
        };
        let runtime = Builder::new_multi_thread()
            .worker_threads(THREADS)
            .thread_name("redrive-postgres")
            .enable_all()
            .build()
            .map_err(no_threads)?;
        let (publishes, to_publish) = CommitQueue::new();
        let (settles, to_settle) = CommitQueue::new();
        let url = url.to_owned();
        let opening = runtime.spawn(async move { open::open(&url, &settings, steps).await });
        let opened = match opening.await {
            Ok(opened) => opened,
            Err(_) => Err(broken("opening the database ended early")),
        };
        let (db, options) = match opened {
            Ok((db, options)) => (Arc::new(db), options),
            Err(error) => {
                runtime.shutdown_background();
                return Err(error);
            }
        };
        runtime.spawn(writer::write_all(Arc::clone(&db), to_publish));
        runtime.spawn(writer::write_all(Arc::clone(&db), to_settle));
        runtime.spawn(database::arrivals::look_around(Arc::clone(&db)));
        runtime.spawn(database::arrivals::send_hints(Arc::clone(&db)));
        runtime.spawn(nodes::beat(Arc::clone(&db), options));
        Ok(Self { db, publishes, settles, runtime: Some(runtime) })
    }

    /// Runs a call on the store's own threads.
    fn call<T: Send + 'static>(
        &self,
        doing: impl Future<Output = Result<T, StoreError>> + Send + 'static,
    ) -> StoreFuture<T> {
        let closed = || -> StoreFuture<T> { Box::pin(std::future::ready(Err(StoreError::Closed))) };
        let Some(runtime) = &self.runtime else { return closed() };
        if self.db.check().is_err() {
            return closed();
        }
        let gate = Arc::clone(&self.db.gate);
        let task = runtime.spawn(async move {
            let _open = gate.read_owned().await;
            doing.await
        });
        Box::pin(async move {
            match task.await {
                Ok(answer) => answer,
                Err(error) if error.is_panic() => Err(broken("a call to the database panicked")),
                Err(_) => Err(StoreError::Closed),
            }
        })
    }

    /// Writes items together with the other calls in the commit queue.
    fn put<W: BatchItem>(
        &self,
        line: &CommitQueue<W, W::Answer>,
        what: Vec<W>,
    ) -> StoreFuture<Vec<W::Answer>> {
        if self.db.check().is_err() {
            return Box::pin(std::future::ready(Err(StoreError::Closed)));
        }
        match line.write_now(what, &self.db.gate) {
            Ok(told) => Box::pin(async move { told.await.unwrap_or(Err(StoreError::Closed)) }),
            Err(what) => {
                let line = line.clone();
                self.call(async move { line.write(what).await })
            }
        }
    }

    /// Writes in one commit.
    fn write<T: Send + 'static>(
        &self,
        run: impl for<'a> Fn(&'a mut OwnTx) -> TxFuture<'a, T> + Send + Sync + 'static,
    ) -> StoreFuture<T> {
        let db = Arc::clone(&self.db);
        self.call(async move { db.write(run).await })
    }

    /// Reads as of one commit.
    fn look<T: Send + 'static>(
        &self,
        look: impl for<'a> Fn(&'a mut OwnTx) -> TxFuture<'a, T> + Send + Sync + 'static,
    ) -> StoreFuture<T> {
        let db = Arc::clone(&self.db);
        self.call(async move { db.look(look).await })
    }
}

impl Store for Postgres {
    fn domain(&self) -> Domain {
        Domain::Database(self.db.place.clone())
    }

    /// A database is copied by its own tools.
    fn backup(&self, _: std::path::PathBuf) -> StoreFuture<()> {
        let what = format!(
            "a database is copied with its own tools: `pg_dump --schema={schema}`, or a backup of the whole server. After a restore, and before anything starts, run `SELECT {schema}.begin_new_life()` in it",
            schema = self.db.schema.name()
        );
        Box::pin(std::future::ready(Err(StoreError::Broken { what, source: None })))
    }

    fn forget(&self, now: Moment) -> StoreFuture<usize> {
        let db = Arc::clone(&self.db);
        self.call(async move { db.forget(now).await })
    }

    fn close(&self) -> StoreFuture<()> {
        let db = Arc::clone(&self.db);
        db.is_closed.store(true, Relaxed);
        db.notifier.hint.notify_one();
        let Some(runtime) = &self.runtime else { return Box::pin(std::future::ready(Ok(()))) };
        let task = runtime.spawn(async move {
            // All calls that have begun are done before this lock is granted.
            let _all = Arc::clone(&db.gate).write_owned().await;
            let _ = tokio::time::timeout(Duration::from_secs(5), db.leave()).await;
            db.autocommit.clear();
            db.pool.close().await;
            db.side.close().await;
        });
        Box::pin(async move {
            let _ = task.await;
            Ok(())
        })
    }
}

impl EventStore for Postgres {
    fn declare(&self, queue: QueueSpec, by: DeclaredBy) -> StoreFuture<()> {
        let db = Arc::clone(&self.db);
        self.call(async move { db.declare(queue, by).await })
    }

    fn publish(&self, events: Vec<NewEvent>) -> StoreFuture<Vec<Result<Published, PublishError>>> {
        self.put(&self.publishes, events)
    }

    fn load(&self, load: LoadRequest) -> StoreFuture<LoadedEvents> {
        let db = Arc::clone(&self.db);
        self.call(async move { db.load(load).await })
    }

    fn watch(&self, watcher: Watcher) {
        *self.db.notifier.watcher.lock().unwrap_or_else(PoisonError::into_inner) = Some(watcher);
    }

    fn find(&self, tenant: &str, queue: &str, id: &str) -> StoreFuture<Option<EventStatus>> {
        let named = Arc::new([tenant.to_owned(), queue.to_owned(), id.to_owned()]);
        self.look(move |tx| {
            let named = Arc::clone(&named);
            Box::pin(async move { tx.find(&named[0], &named[1], &named[2]).await })
        })
    }

    fn find_by_id(&self, id: &str) -> StoreFuture<Vec<Named>> {
        let id: Arc<str> = id.into();
        self.look(move |tx| {
            let id = Arc::clone(&id);
            Box::pin(async move { tx.find_by_id(&id).await })
        })
    }

    fn queue_names(&self) -> StoreFuture<Vec<String>> {
        self.look(|tx| Box::pin(async move { Ok(tx.queue_names().await?) }))
    }

    fn list(&self, query: EventQuery) -> StoreFuture<EventPage> {
        let query = Arc::new(query);
        self.look(move |tx| {
            let query = Arc::clone(&query);
            Box::pin(async move { tx.list(&query).await })
        })
    }

    fn count(&self, now: Moment) -> StoreFuture<Vec<EventCount>> {
        self.db.clock.advance(now);
        self.look(|tx| Box::pin(tx.count()))
    }

    fn oldest_due(&self, now: Moment) -> StoreFuture<Vec<(String, Moment)>> {
        self.db.clock.advance(now);
        self.look(|tx| Box::pin(tx.oldest_due()))
    }
}

impl SettleStore for Postgres {
    fn settle(&self, settles: Vec<SettleRequest>) -> StoreFuture<Vec<SettleResult>> {
        self.put(&self.settles, settles)
    }

    fn note(&self, token: FencingToken, under_way: Vec<Seq>) -> StoreFuture<()> {
        let under_way = Arc::new(under_way);
        self.write(move |tx| {
            let under_way = Arc::clone(&under_way);
            Box::pin(async move { tx.note(token, &under_way).await })
        })
    }

    fn transact(&self, job: TxJob) -> StoreFuture<TxOutcome> {
        let db = Arc::clone(&self.db);
        self.call(async move { db.transact(job).await })
    }

    fn lease(&self, lease: LeaseRequest) -> StoreFuture<LeasedEvents> {
        // It decides the outcome of expired leases, and may be asked again.
        let lease = Arc::new(tokio::sync::Mutex::new(lease));
        self.write(move |tx| {
            let lease = Arc::clone(&lease);
            Box::pin(async move { tx.lease(&mut *lease.lock().await).await })
        })
    }

    fn extend(
        &self,
        leases: Vec<lease::LeaseRef>,
        at: Moment,
        until: Moment,
    ) -> StoreFuture<Vec<LeaseSettleResult>> {
        let leases = Arc::new(leases);
        self.write(move |tx| {
            let leases = Arc::clone(&leases);
            Box::pin(async move { tx.extend(&leases, at, until).await })
        })
    }

    fn settle_leased(&self, settles: Vec<LeaseSettle>) -> StoreFuture<Vec<LeaseSettleResult>> {
        let settles = Arc::new(tokio::sync::Mutex::new(settles));
        self.write(move |tx| {
            let settles = Arc::clone(&settles);
            Box::pin(async move { tx.settle_leased(&mut settles.lock().await).await })
        })
    }
}

impl OperatorStore for Postgres {
    fn operate(&self, order: OperatorCommand) -> StoreFuture<CommandResult> {
        let order = Arc::new(order);
        self.write(move |tx| {
            let order = Arc::clone(&order);
            Box::pin(async move { tx.operate(&order).await })
        })
    }

    fn advance(&self, step: JobAdvance) -> StoreFuture<Option<triage::Job>> {
        self.write(move |tx| Box::pin(async move { tx.advance(&step).await }))
    }

    fn jobs(&self, id: Option<JobId>) -> StoreFuture<Vec<triage::Job>> {
        self.look(move |tx| Box::pin(tx.jobs(id)))
    }

    fn controls(&self) -> StoreFuture<ActiveRules> {
        self.look(|tx| Box::pin(tx.controls()))
    }

    fn groups(&self, query: GroupQuery) -> StoreFuture<Vec<Group>> {
        let query = Arc::new(query);
        self.look(move |tx| {
            let query = Arc::clone(&query);
            Box::pin(async move { tx.groups(&query).await })
        })
    }

    fn failing(&self, query: FailingQuery) -> StoreFuture<Vec<FailingGroup>> {
        let query = Arc::new(query);
        self.look(move |tx| {
            let query = Arc::clone(&query);
            Box::pin(async move { tx.failing(&query).await })
        })
    }

    fn retrying(&self) -> StoreFuture<Vec<Retrying>> {
        self.look(|tx| Box::pin(tx.retrying()))
    }

    fn matching(&self, filter: Filter) -> StoreFuture<FilterMatches> {
        let filter = Arc::new(filter);
        self.look(move |tx| {
            let filter = Arc::clone(&filter);
            Box::pin(async move { tx.matching(&filter).await })
        })
    }

    fn audit(&self, before: Option<u64>, limit: usize) -> StoreFuture<Vec<AuditLine>> {
        self.look(move |tx| Box::pin(tx.lines(before, limit)))
    }
}

impl ShardStore for Postgres {
    fn shards(&self) -> u32 {
        self.db.shards
    }

    fn take(&self, shard: u32, now: Moment) -> StoreFuture<TakenShard> {
        self.write(move |tx| Box::pin(tx.take(shard, now)))
    }

    fn release(&self, token: FencingToken) -> StoreFuture<()> {
        let db = Arc::clone(&self.db);
        self.call(async move { db.give_back(token, true).await })
    }

    fn abandon(&self, token: FencingToken) -> StoreFuture<()> {
        let db = Arc::clone(&self.db);
        self.call(async move { db.give_back(token, false).await })
    }

    fn node_lease(&self) -> Option<Arc<NodeLease>> {
        Some(Arc::clone(&self.db.node_lease))
    }

    fn enlist(&self, runs: bool) -> StoreFuture<()> {
        let db = Arc::clone(&self.db);
        self.call(async move { db.enlist(runs).await })
    }

    fn nodes(&self) -> StoreFuture<Option<NodeList>> {
        let db = Arc::clone(&self.db);
        self.call(async move { db.nodes().await.map(Some) })
    }
}

impl Drop for Postgres {
    /// Dropping the store without closing it is like the death of a process: answered calls are durable, and its
    /// shards count as uncleanly stopped.
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

impl fmt::Debug for Postgres {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Postgres").field("place", &self.db.place).finish_non_exhaustive()
    }
}
