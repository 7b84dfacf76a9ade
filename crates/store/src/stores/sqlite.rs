//! In a SQLite file: one process, one file, no service.
//!
//! Events, dedupe records and markers are in tables that begin with `redrive_`; the rest of the file is the user's,
//! and [`SettleStore::transact`] writes to both in one commit. That is what makes an effect happen exactly once: the
//! effect, the marker and the settle are in the file together, or not at all.
//!
//! One process owns the file and runs handlers; others may open it too, publish and read. The owner holds a lock of
//! the operating system on a side file. Every answer with `Ok` is on the disk: `synchronous` is `FULL`, and concurrent
//! calls share the writer's commits.
//!
//! ```
//! # use redrive_store::{DeclaredBy, NewEvent, Published, QueueSpec, Sqlite, prelude::*, sqlite::SqliteSettings};
//! # use redrive_core::{Event, Moment};
//! # use std::time::Duration;
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let folder = tempfile::tempdir()?;
//! # let path = folder.path().join("orders.db");
//! let store = Sqlite::open(&path, SqliteSettings::default())?;
//! let day = Duration::from_secs(24 * 60 * 60);
//! let queue = QueueSpec { name: "orders".into(), ordered: true, window: 7 * day, horizon: day, ..QueueSpec::default() };
//! store.declare(queue, DeclaredBy::Runner).await?;
//!
//! let event = NewEvent::at(Event::new("orders", "order-17").payload(*b"17 euro"), Moment::from_nanos(0));
//! let published = store.publish(vec![event.clone(), event]).await?;
//! assert!(matches!(published[0], Ok(Published::Accepted(_))));
//! assert!(matches!(published[1], Ok(Published::Duplicate(_))));
//! store.close().await?;
//! # Ok(())
//! # }
//! ```

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicI32, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use redrive_core::Moment;
use redrive_core::queue_entry::{FencingToken, Seq, SettleRequest, SettleResult};
use redrive_core::triage::{self, ActiveRules, Filter, JobId};
use tokio::sync::{oneshot, watch};

use crate::error::{PublishError, StoreError};
use crate::event_status::{EventCount, EventPage, EventQuery, EventStatus, FilterMatches, Named};
use crate::lease::{self, LeaseRequest, LeaseSettle, LeaseSettleResult, LeasedEvents};
use crate::operate::{
    AuditLine, CommandResult, FailingGroup, FailingQuery, Group, GroupQuery, JobAdvance, OperatorCommand,
    Retrying,
};
use crate::stats::{CommitAndDiskStats, Commits, DiskSpace};
use crate::store::{
    DeclaredBy, Domain, EventStore, LoadRequest, LoadedEvents, NewEvent, OperatorStore, Published, QueueSpec,
    SettleStore, ShardStore, Store, StoreFuture, TakenShard, Watcher,
};
use crate::transaction::{TxJob, TxOutcome};

mod open;

mod writer;

mod reader;

mod rows;

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

mod backup;

pub(super) mod moving;

mod faults;

pub(crate) mod window;

pub use backup::copy::copy;
pub use backup::restore::{Restored, restore};
pub use open::settings::{FileRole, SqliteSettings};
pub use transact::connection;
#[doc(hidden)]
pub use writer::crash::crash_points;

use super::rows::advance::advance;
use super::rows::now;
use super::rows::operate::{operate as carry_out, weight};
use super::shared::rules::StoreClock;
use faults::{Health, Step, not_seen};
use nodes::notes::InFlightNotes;
use operate::rules::View;
use publish::batch::PublishCall;
use reader::{Look, Reader, Readers, see};
use transact::guard::Guard;
use writer::disk::{self, Disk};
use writer::queue::Queue;
use writer::stats::CommitStats;
use writer::tx::WriterTx;
use writer::{Call, Calls, GroupMember, Writer};

/// A store in a SQLite file.
pub struct Sqlite {
    path: PathBuf,
    calls: Arc<Calls>,
    looks: Arc<Queue<Look>>,
    health: Arc<Health>,
    watcher: Arc<Mutex<Option<Watcher>>>,
    notes: Arc<InFlightNotes>,
    clock: Arc<StoreClock>,
    /// The latest moment of an earlier process.
    newest: Option<Moment>,
    stats: Arc<CommitStats>,
    disk_least: u64,
    ended: watch::Receiver<bool>,
    thread: Option<JoinHandle<()>>,
}

impl Sqlite {
    /// Opens a file, and creates it if there is none. Blocks while it recovers from an unclean stop.
    ///
    /// # Errors
    /// [`StoreError::Open`] with what to do about it, and [`StoreError::Newer`] if a newer program wrote it.
    pub fn open(path: impl AsRef<Path>, settings: SqliteSettings) -> Result<Self, StoreError> {
        let path = path.as_ref().to_owned();
        let mut opened = open::open(&path, &settings, reader::READERS)?;
        let failed = |error: rusqlite::Error| faults::rolled_back(error);
        let guard = Guard::install(&mut opened.writer).map_err(failed)?;
        let newest = writer::clock_mark::read(&opened.writer).map_err(failed)?;
        let log_pages = Arc::new(AtomicI32::new(0));
        let counted = Arc::clone(&log_pages);
        let count = move |_: &mut rusqlite::hooks::Wal, pages| {
            counted.store(pages, Relaxed);
            Ok(())
        };
        opened.writer.wal_hook(Some(count)).map_err(failed)?;

        let (notes, clock) = (Arc::new(InFlightNotes::of(&path)), Arc::new(StoreClock::default()));
        let disk = Disk::new(&path, settings.disk_least);
        let tx = WriterTx::new(
            (opened.writer, guard),
            (path.clone(), disk),
            (opened.ownership, Arc::clone(&notes)),
            Arc::clone(&clock),
        );
        let calls = Arc::new(Queue::new(writer::QUEUED_KIB_MAX));
        let looks = Arc::new(Queue::new(reader::LOOKS_MAX));
        let (health, watcher) = (Arc::<Health>::default(), Arc::default());
        let no_thread = |error: std::io::Error| StoreError::Open {
            path: path.clone(),
            why: format!("cannot start a thread: {error}"),
            source: Some(Arc::new(error)),
        };
        let readers = Readers::start(Arc::clone(&looks), opened.readers).map_err(no_thread)?;
        let (told, ended) = watch::channel(false);
        let stats = Arc::<CommitStats>::default();
        let writer = Writer {
            tx,
            calls: Arc::clone(&calls),
            health: Arc::clone(&health),
            watcher: Arc::clone(&watcher),
            readers,
            stats: Arc::clone(&stats),
            log_pages,
            log_pages_max: 0,
            named: None,
            owed: std::collections::VecDeque::new(),
            ended: told,
        };
        let write = std::thread::Builder::new().name("redrive-write".to_owned());
        let thread = write.spawn(move || writer.run()).map_err(no_thread)?;
        let (disk_least, thread) = (settings.disk_least, Some(thread));
        Ok(Self {
            path,
            calls,
            looks,
            health,
            watcher,
            notes,
            clock,
            newest,
            stats,
            disk_least,
            ended,
            thread,
        })
    }

    /// How many commits this handle made, and how many publishes, settles and other changes were in them.
    #[must_use]
    pub fn commits(&self) -> (u64, u64) {
        self.stats.done()
    }

    /// Runs a step on the writer that changes this many events.
    fn write<T: Send + 'static>(
        &self,
        bytes: usize,
        events: usize,
        run: impl FnMut(&mut WriterTx) -> Step<T> + Send + 'static,
    ) -> StoreFuture<T> {
        let (tell, told) = oneshot::channel();
        let call = Call { alone: false, events, run, committed: |_, _| {}, got: None, tell };
        self.call(Box::new(call), bytes, told)
    }

    /// Runs a step on the writer in a commit of its own, and another one after it.
    fn write_alone<T: Send + 'static>(
        &self,
        run: impl FnMut(&mut WriterTx) -> Step<T> + Send + 'static,
        committed: fn(&mut WriterTx, &mut T),
    ) -> StoreFuture<T> {
        let (tell, told) = oneshot::channel();
        self.call(Box::new(Call { alone: true, events: 1, run, committed, got: None, tell }), 0, told)
    }

    fn call<T: Send + 'static>(
        &self,
        member: Box<dyn GroupMember>,
        bytes: usize,
        told: oneshot::Receiver<Result<T, StoreError>>,
    ) -> StoreFuture<T> {
        let kib = u32::try_from(bytes / 1024 + 1).unwrap_or(u32::MAX);
        let entered = self.calls.push((member, kib), kib);
        self.wait(entered, told)
    }

    /// Runs a query on a reader.
    fn look<T: Send + 'static>(
        &self,
        look: impl FnOnce(&mut Reader) -> Step<T> + Send + 'static,
    ) -> StoreFuture<T> {
        let (tell, told) = oneshot::channel();
        let health = Arc::clone(&self.health);
        let look: Look = Box::new(move |reader: &mut Reader| {
            let answer = health.check().and_then(|()| {
                let seen = see(reader, look).map_err(not_seen);
                // A result that was read during a failed commit is not to be trusted.
                health.check().and(seen)
            });
            let _ = tell.send(answer);
        });
        let entered = self.looks.push(look, 1);
        self.wait(entered, told)
    }

    fn wait<T: Send + 'static>(
        &self,
        entered: Result<(), impl Future<Output = ()> + Send + 'static>,
        told: oneshot::Receiver<Result<T, StoreError>>,
    ) -> StoreFuture<T> {
        let health = Arc::clone(&self.health);
        Box::pin(async move {
            if let Err(entering) = entered {
                entering.await;
            }
            match told.await {
                Ok(answer) => answer,
                // The writer is gone, and will not answer.
                Err(_) => Err(health.check().err().unwrap_or(StoreError::Closed)),
            }
        })
    }
}

impl Store for Sqlite {
    fn domain(&self) -> Domain {
        Domain::File(self.path.clone())
    }

    fn newest(&self) -> Option<Moment> {
        self.newest
    }

    fn figures(&self) -> CommitAndDiskStats {
        let free = disk::free(&disk::folder_of(&self.path));
        let disk = free.map(|free| DiskSpace { free, least: self.disk_least });
        let (count, batch, sync) = (self.stats.done().0, self.stats.batch(), self.stats.sync());
        CommitAndDiskStats { commits: Some(Commits { count, batch, sync }), disk }
    }

    fn backup(&self, to: PathBuf) -> StoreFuture<()> {
        backup::copy::start(self.path.clone(), to)
    }

    fn forget(&self, now: Moment) -> StoreFuture<usize> {
        self.write(0, 0, move |tx| tx.forget(now))
    }

    fn close(&self) -> StoreFuture<()> {
        self.calls.close();
        let mut ended = self.ended.clone();
        Box::pin(async move {
            // The other side is gone only when the thread is.
            let _ = ended.wait_for(|ended| *ended).await;
            Ok(())
        })
    }
}

impl EventStore for Sqlite {
    fn declare(&self, queue: QueueSpec, by: DeclaredBy) -> StoreFuture<()> {
        self.write(0, 1, move |tx| tx.declare(&queue, by))
    }

    fn publish(&self, events: Vec<NewEvent>) -> StoreFuture<Vec<Result<Published, PublishError>>> {
        let bytes = events.iter().map(|new| new.event.payload.len() + 512).sum();
        let (tell, told) = oneshot::channel();
        self.call(Box::new(PublishCall::new(events, tell)), bytes, told)
    }

    fn load(&self, load: LoadRequest) -> StoreFuture<LoadedEvents> {
        let path = self.path.clone();
        self.look(move |reader| load::load(&reader.conn, &mut reader.names, &load, &path))
    }

    fn watch(&self, watcher: Watcher) {
        *self.watcher.lock().unwrap_or_else(PoisonError::into_inner) = Some(watcher);
    }

    fn find(&self, tenant: &str, queue: &str, id: &str) -> StoreFuture<Option<EventStatus>> {
        let (tenant, queue, id) = (tenant.to_owned(), queue.to_owned(), id.to_owned());
        let clock = Arc::clone(&self.clock);
        self.look(move |reader| {
            let view = View::of(&reader.conn, clock.now())?;
            read::find::find(&reader.conn, &mut reader.names, (&tenant, &queue, &id), &view)
        })
    }

    fn find_by_id(&self, id: &str) -> StoreFuture<Vec<Named>> {
        let (id, clock) = (id.to_owned(), Arc::clone(&self.clock));
        self.look(move |reader| {
            let view = View::of(&reader.conn, clock.now())?;
            read::find::find_by_id(&reader.conn, &mut reader.names, &id, &view)
        })
    }

    fn queue_names(&self) -> StoreFuture<Vec<String>> {
        self.look(|reader| read::find::queue_names(&reader.conn))
    }

    fn list(&self, query: EventQuery) -> StoreFuture<EventPage> {
        let clock = Arc::clone(&self.clock);
        self.look(move |reader| {
            let view = View::of(&reader.conn, clock.now())?;
            read::list::list(&reader.conn, &mut reader.names, &query, &view)
        })
    }

    fn count(&self, now: Moment) -> StoreFuture<Vec<EventCount>> {
        self.look(move |reader| {
            read::count::count(&reader.conn, &mut reader.names, &View::of(&reader.conn, now)?)
        })
    }

    fn oldest_due(&self, now: Moment) -> StoreFuture<Vec<(String, Moment)>> {
        self.look(move |reader| read::oldest::oldest_due(&reader.conn, &View::of(&reader.conn, now)?))
    }
}

impl SettleStore for Sqlite {
    fn settle(&self, settles: Vec<SettleRequest>) -> StoreFuture<Vec<SettleResult>> {
        let mut answers = Vec::with_capacity(settles.len());
        self.write(settles.len() * 64, settles.len(), move |tx| {
            tx.settle_all(&settles, &mut answers)?;
            Ok(std::mem::take(&mut answers))
        })
    }

    fn note(&self, token: FencingToken, under_way: Vec<Seq>) -> StoreFuture<()> {
        let noted = self.health.check().and_then(|()| self.notes.write(token, &under_way, &self.path));
        Box::pin(std::future::ready(noted))
    }

    fn transact(&self, job: TxJob) -> StoreFuture<TxOutcome> {
        let (tell, told) = oneshot::channel();
        self.call(Box::new(transact::WorkCall::new(job, tell)), 0, told)
    }

    fn lease(&self, mut lease: LeaseRequest) -> StoreFuture<LeasedEvents> {
        let events = lease.tokens.len();
        self.write(events * 64, events, move |tx| tx.lease(&mut lease))
    }

    fn extend(
        &self,
        leases: Vec<lease::LeaseRef>,
        at: Moment,
        until: Moment,
    ) -> StoreFuture<Vec<LeaseSettleResult>> {
        self.write(leases.len() * 64, leases.len(), move |tx| tx.extend(&leases, at, until))
    }

    fn settle_leased(&self, mut settles: Vec<LeaseSettle>) -> StoreFuture<Vec<LeaseSettleResult>> {
        self.write(settles.len() * 64, settles.len(), move |tx| tx.settle_leased(&mut settles))
    }
}

impl OperatorStore for Sqlite {
    fn operate(&self, order: OperatorCommand) -> StoreFuture<CommandResult> {
        let (bytes, events) = weight(&order.what);
        self.write(bytes, events, move |tx| now(carry_out(tx, &order)))
    }

    fn advance(&self, step: JobAdvance) -> StoreFuture<Option<triage::Job>> {
        self.write(step.most as usize * 256, step.most as usize, move |tx| now(advance(tx, &step)))
    }

    fn jobs(&self, id: Option<JobId>) -> StoreFuture<Vec<triage::Job>> {
        self.look(move |reader| operate::jobs::jobs(&reader.conn, id))
    }

    fn controls(&self) -> StoreFuture<ActiveRules> {
        self.look(|reader| operate::rules::controls(&reader.conn))
    }

    fn groups(&self, query: GroupQuery) -> StoreFuture<Vec<Group>> {
        self.look(move |reader| operate::groups::groups(&reader.conn, &mut reader.names, &query))
    }

    fn failing(&self, query: FailingQuery) -> StoreFuture<Vec<FailingGroup>> {
        self.look(move |reader| operate::failing::failing(&reader.conn, &mut reader.names, &query))
    }

    fn retrying(&self) -> StoreFuture<Vec<Retrying>> {
        self.look(|reader| operate::failing::retrying(&reader.conn, &mut reader.names))
    }

    fn matching(&self, filter: Filter) -> StoreFuture<FilterMatches> {
        self.look(move |reader| operate::letters::matching(&reader.conn, &mut reader.names, &filter))
    }

    fn audit(&self, before: Option<u64>, limit: usize) -> StoreFuture<Vec<AuditLine>> {
        self.look(move |reader| operate::audit::lines(&reader.conn, before, limit))
    }
}

impl ShardStore for Sqlite {
    fn shards(&self) -> u32 {
        1
    }

    fn take(&self, shard: u32, now: Moment) -> StoreFuture<TakenShard> {
        self.write_alone(move |tx| tx.take(shard, now), |tx, taken| tx.taken(taken))
    }

    fn release(&self, token: FencingToken) -> StoreFuture<()> {
        let released = self.write_alone(move |tx| tx.release(token), |_, _| {});
        let notes = Arc::clone(&self.notes);
        Box::pin(async move {
            released.await?;
            notes.end(token);
            Ok(())
        })
    }
}

impl Drop for Sqlite {
    /// Writes accepted calls, and closes the files. A store that was not released counts as uncleanly stopped.
    fn drop(&mut self) {
        self.calls.close();
        // A watcher may hold the store, and then the writer is the last one to drop it.
        if let Some(thread) = self.thread.take()
            && thread.thread().id() != std::thread::current().id()
        {
            let _ = thread.join();
        }
    }
}

impl fmt::Debug for Sqlite {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sqlite").field("path", &self.path).finish_non_exhaustive()
    }
}
