//! In a PostgreSQL database: many processes, one database.
//!
//! Everything is in a schema of its own, by default `redrive`; the rest of the database is the user's, and
//! [`Store::transact`] writes to both in one commit. Events are split in shards by their key, and each shard has one
//! owner at a time, which hands out its events from memory. Any process may publish, look and give orders.
//!
//! An owner is known by a row with a lease, by the database's clock; what it settles is fenced by the shard's epoch in
//! the commit itself, so one that was replaced changes nothing. Who is the head of a key, and what arrived, is asked
//! anew by whoever hands something out, because publishers commit in any order.
//!
//! ```no_run
//! # use redrive_store::{By, Postgres, QueueSpec, Store, postgres::Settings};
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let store = Postgres::open("postgres://redrive@localhost/shop", Settings::default()).await?;
//! store.declare(QueueSpec { name: "orders".into(), ordered: true, ..QueueSpec::default() }, By::Runner).await?;
//! store.close().await?;
//! # Ok(())
//! # }
//! ```
//!
//! What it costs and promises is in `docs/postgres.md`.

use std::fmt;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use redrive_core::Moment;
use redrive_core::entry::{Grant, Seq, Settle, Settled};
use redrive_core::triage::{self, Controls, Filter, JobId};
use tokio::runtime::{Builder, Runtime};

use crate::error::{PublishError, StoreError};
use crate::found::{Count, Found, Listed, Matching, Query};
use crate::lease::{self, Lease, LeaseSettle, LeaseSettled, Leased};
use crate::nodes::{Nodes, Tenure};
use crate::operate::{Advance, AuditLine, Group, GroupQuery, Operated, Order};
use crate::store::{Answer, By, Domain, Load, Loaded, New, Published, QueueSpec, Store, Taken, Watcher};
use crate::transaction::{Job, Transacted};

mod settings;

mod url;

mod open;

mod schema;

mod office;

mod once;

mod desk;

mod writer;

mod batch;

mod at_once;

mod aside;

mod places;

mod heads;

mod publish;

mod keys;

mod take;

mod nodes;

mod load;

mod load_plainly;

mod arrivals;

mod telling;

mod settle;

mod settle_at_once;

mod transact;

mod lent;

mod values;

mod kept;

mod operate;

mod act;

mod edit;

mod rules;

mod jobs;

mod advance;

mod letters;

mod group;

mod ledger;

mod audit;

mod leases;

mod record;

mod find;

mod list;

mod count;

mod oldest;

mod forget;

mod keep;

pub(super) mod moving;

mod rows;

mod held;

mod receipt;

mod names;

mod faults;

#[cfg(feature = "planted")]
mod meddle;

pub use lent::{Wakeup, commit, spoil};
#[cfg(feature = "planted")]
#[doc(hidden)]
pub use meddle::Step;
pub use settings::Settings;
/// The driver, for whoever works in the same transaction.
pub use sqlx;
pub use transact::{run_again, with};

use batch::Piece;
use desk::Desk;
use faults::broken;
use office::{Doing, Office};
use schema::STEPS;
use writer::Line;

/// How many threads drive the connections. They wait nearly all of the time.
const THREADS: usize = 2;

/// A store in a PostgreSQL database.
pub struct Postgres {
    office: Arc<Office>,
    publishes: Line<New, Result<Published, PublishError>>,
    settles: Line<Settle, Settled>,
    /// Connections need a runtime that lives as long as they do, whoever calls from wherever.
    runtime: Option<Runtime>,
}

impl Postgres {
    /// Opens a database, and makes the tables if there are none.
    ///
    /// # Errors
    /// [`StoreError::Open`] with what to do about it, and [`StoreError::Newer`] where a newer program made the tables.
    pub async fn open(url: &str, settings: Settings) -> Result<Self, StoreError> {
        Self::open_by(url, settings, STEPS).await
    }

    async fn open_by(
        url: &str,
        settings: Settings,
        steps: &'static [schema::Step],
    ) -> Result<Self, StoreError> {
        let no_threads = |error: std::io::Error| StoreError::Open {
            path: "the database".into(),
            why: format!("no threads could be started: {error}"),
            source: Some(Arc::new(error)),
        };
        let runtime = Builder::new_multi_thread()
            .worker_threads(THREADS)
            .thread_name("redrive-postgres")
            .enable_all()
            .build()
            .map_err(no_threads)?;
        let (publishes, to_publish) = Line::new();
        let (settles, to_settle) = Line::new();
        let url = url.to_owned();
        let opening = runtime.spawn(async move { open::open(&url, &settings, steps).await });
        let opened = match opening.await {
            Ok(opened) => opened,
            Err(_) => Err(broken("opening the database ended early")),
        };
        let (office, options) = match opened {
            Ok((office, options)) => (Arc::new(office), options),
            Err(error) => {
                runtime.shutdown_background();
                return Err(error);
            }
        };
        runtime.spawn(writer::write_all(Arc::clone(&office), to_publish));
        runtime.spawn(writer::write_all(Arc::clone(&office), to_settle));
        runtime.spawn(arrivals::look_around(Arc::clone(&office)));
        runtime.spawn(arrivals::send_hints(Arc::clone(&office)));
        runtime.spawn(nodes::beat(Arc::clone(&office), options));
        Ok(Self { office, publishes, settles, runtime: Some(runtime) })
    }

    /// Does something on the store's own threads.
    fn call<T: Send + 'static>(
        &self,
        doing: impl Future<Output = Result<T, StoreError>> + Send + 'static,
    ) -> Answer<T> {
        let closed = || -> Answer<T> { Box::pin(std::future::ready(Err(StoreError::Closed))) };
        let Some(runtime) = &self.runtime else { return closed() };
        if self.office.check().is_err() {
            return closed();
        }
        let gate = Arc::clone(&self.office.gate);
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

    /// Writes things with whatever else waits in the line.
    fn put<W: Piece>(&self, line: &Line<W, W::Answer>, what: Vec<W>) -> Answer<Vec<W::Answer>> {
        if self.office.check().is_err() {
            return Box::pin(std::future::ready(Err(StoreError::Closed)));
        }
        match line.write_now(what, &self.office.gate) {
            Ok(told) => Box::pin(async move { told.await.unwrap_or(Err(StoreError::Closed)) }),
            Err(what) => {
                let line = line.clone();
                self.call(async move { line.write(what).await })
            }
        }
    }

    /// Writes something, in one commit.
    fn write<T: Send + 'static>(
        &self,
        run: impl for<'a> Fn(&'a mut Desk) -> Doing<'a, T> + Send + Sync + 'static,
    ) -> Answer<T> {
        let office = Arc::clone(&self.office);
        self.call(async move { office.write(run).await })
    }

    /// Looks at something, as of one commit.
    fn look<T: Send + 'static>(
        &self,
        look: impl for<'a> Fn(&'a mut Desk) -> Doing<'a, T> + Send + Sync + 'static,
    ) -> Answer<T> {
        let office = Arc::clone(&self.office);
        self.call(async move { office.look(look).await })
    }
}

impl Store for Postgres {
    fn domain(&self) -> Domain {
        Domain::Database(self.office.place.clone())
    }

    fn shards(&self) -> u32 {
        self.office.shards
    }

    fn declare(&self, queue: QueueSpec, by: By) -> Answer<()> {
        let office = Arc::clone(&self.office);
        self.call(async move { office.declare(queue, by).await })
    }

    fn publish(&self, events: Vec<New>) -> Answer<Vec<Result<Published, PublishError>>> {
        self.put(&self.publishes, events)
    }

    fn take(&self, shard: u32, now: Moment) -> Answer<Taken> {
        self.write(move |desk| Box::pin(desk.take(shard, now)))
    }

    fn release(&self, grant: Grant) -> Answer<()> {
        let office = Arc::clone(&self.office);
        self.call(async move { office.give_back(grant, true).await })
    }

    fn abandon(&self, grant: Grant) -> Answer<()> {
        let office = Arc::clone(&self.office);
        self.call(async move { office.give_back(grant, false).await })
    }

    fn tenure(&self) -> Option<Arc<Tenure>> {
        Some(Arc::clone(&self.office.tenure))
    }

    fn enlist(&self, runs: bool) -> Answer<()> {
        let office = Arc::clone(&self.office);
        self.call(async move { office.enlist(runs).await })
    }

    fn nodes(&self) -> Answer<Option<Nodes>> {
        let office = Arc::clone(&self.office);
        self.call(async move { office.nodes().await.map(Some) })
    }

    fn load(&self, load: Load) -> Answer<Loaded> {
        let office = Arc::clone(&self.office);
        self.call(async move { office.load(load).await })
    }

    fn settle(&self, settles: Vec<Settle>) -> Answer<Vec<Settled>> {
        self.put(&self.settles, settles)
    }

    fn note(&self, grant: Grant, under_way: Vec<Seq>) -> Answer<()> {
        let under_way = Arc::new(under_way);
        self.write(move |desk| {
            let under_way = Arc::clone(&under_way);
            Box::pin(async move { desk.note(grant, &under_way).await })
        })
    }

    fn transact(&self, job: Job) -> Answer<Transacted> {
        let office = Arc::clone(&self.office);
        self.call(async move { office.transact(job).await })
    }

    fn find(&self, tenant: &str, queue: &str, id: &str) -> Answer<Option<Found>> {
        let named = Arc::new([tenant.to_owned(), queue.to_owned(), id.to_owned()]);
        self.look(move |desk| {
            let named = Arc::clone(&named);
            Box::pin(async move { desk.find(&named[0], &named[1], &named[2]).await })
        })
    }

    fn list(&self, query: Query) -> Answer<Listed> {
        let query = Arc::new(query);
        self.look(move |desk| {
            let query = Arc::clone(&query);
            Box::pin(async move { desk.list(&query).await })
        })
    }

    fn count(&self, now: Moment) -> Answer<Vec<Count>> {
        self.office.seen.see(now);
        self.look(|desk| Box::pin(desk.count()))
    }

    fn oldest_due(&self, now: Moment) -> Answer<Vec<(String, Moment)>> {
        self.office.seen.see(now);
        self.look(|desk| Box::pin(desk.oldest_due()))
    }

    /// A database is copied by its own tools.
    fn backup(&self, _: std::path::PathBuf) -> Answer<()> {
        let what = format!(
            "a database is copied with its own tools: `pg_dump --schema={schema}`, or a backup of the whole server. After a \
             restore, and before anything starts, say `SELECT {schema}.begin_new_life()` in it",
            schema = self.office.schema.name()
        );
        Box::pin(std::future::ready(Err(StoreError::Broken { what, source: None })))
    }

    fn forget(&self, now: Moment) -> Answer<usize> {
        let office = Arc::clone(&self.office);
        self.call(async move { office.forget(now).await })
    }

    fn operate(&self, order: Order) -> Answer<Operated> {
        let order = Arc::new(order);
        self.write(move |desk| {
            let order = Arc::clone(&order);
            Box::pin(async move { desk.operate(&order).await })
        })
    }

    fn advance(&self, step: Advance) -> Answer<Option<triage::Job>> {
        self.write(move |desk| Box::pin(async move { desk.advance(&step).await }))
    }

    fn jobs(&self, id: Option<JobId>) -> Answer<Vec<triage::Job>> {
        self.look(move |desk| Box::pin(desk.jobs(id)))
    }

    fn controls(&self) -> Answer<Controls> {
        self.look(|desk| Box::pin(desk.controls()))
    }

    fn groups(&self, query: GroupQuery) -> Answer<Vec<Group>> {
        let query = Arc::new(query);
        self.look(move |desk| {
            let query = Arc::clone(&query);
            Box::pin(async move { desk.groups(&query).await })
        })
    }

    fn matching(&self, filter: Filter) -> Answer<Matching> {
        let filter = Arc::new(filter);
        self.look(move |desk| {
            let filter = Arc::clone(&filter);
            Box::pin(async move { desk.matching(&filter).await })
        })
    }

    fn audit(&self, before: Option<u64>, limit: usize) -> Answer<Vec<AuditLine>> {
        self.look(move |desk| Box::pin(desk.lines(before, limit)))
    }

    fn lease(&self, lease: Lease) -> Answer<Leased> {
        // It decides what becomes of leases that are over, and may be asked again.
        let lease = Arc::new(tokio::sync::Mutex::new(lease));
        self.write(move |desk| {
            let lease = Arc::clone(&lease);
            Box::pin(async move { desk.lease(&mut *lease.lock().await).await })
        })
    }

    fn extend(&self, leases: Vec<lease::Held>, at: Moment, until: Moment) -> Answer<Vec<LeaseSettled>> {
        let leases = Arc::new(leases);
        self.write(move |desk| {
            let leases = Arc::clone(&leases);
            Box::pin(async move { desk.extend(&leases, at, until).await })
        })
    }

    fn settle_leased(&self, settles: Vec<LeaseSettle>) -> Answer<Vec<LeaseSettled>> {
        let settles = Arc::new(tokio::sync::Mutex::new(settles));
        self.write(move |desk| {
            let settles = Arc::clone(&settles);
            Box::pin(async move { desk.settle_leased(&mut settles.lock().await).await })
        })
    }

    fn watch(&self, watcher: Watcher) {
        *self.office.watcher.lock().unwrap_or_else(PoisonError::into_inner) = Some(watcher);
    }

    fn close(&self) -> Answer<()> {
        let office = Arc::clone(&self.office);
        office.is_closed.store(true, Relaxed);
        office.hint.notify_one();
        let Some(runtime) = &self.runtime else { return Box::pin(std::future::ready(Ok(()))) };
        let task = runtime.spawn(async move {
            // Everybody who has begun is done before this is ours.
            let _all = Arc::clone(&office.gate).write_owned().await;
            let _ = tokio::time::timeout(Duration::from_secs(5), office.leave()).await;
            office.at_hand.clear();
            office.pool.close().await;
            office.side.close().await;
        });
        Box::pin(async move {
            let _ = task.await;
            Ok(())
        })
    }
}

impl Drop for Postgres {
    /// Whoever drops it without closing it leaves as a process does that dies: what was answered is there, and its
    /// shards count as uncleanly stopped.
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

impl fmt::Debug for Postgres {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Postgres").field("place", &self.office.place).finish_non_exhaustive()
    }
}
