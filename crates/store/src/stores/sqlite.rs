//! In a SQLite file: one process, one file, no service.
//!
//! Events, receipts and markers are in tables that begin with `redrive_`; the rest of the file is the user's,
//! and [`Store::transact`] writes to both in one commit. That is what makes an effect happen exactly once: the
//! effect, the marker and the settle are in the file together, or not at all.
//!
//! One process owns the file and runs handlers; others may open it too, publish and look. The owner is who holds
//! a lock of the operating system on a side file. Every answer with `Ok` is on the disk: `synchronous` is `FULL`,
//! and the writer shares its commits among all who call at the same time.
//!
//! ```
//! # use redrive_store::{By, New, Published, QueueSpec, Sqlite, Store, sqlite::Settings};
//! # use redrive_core::{Event, Moment};
//! # use std::time::Duration;
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let folder = tempfile::tempdir()?;
//! # let path = folder.path().join("orders.db");
//! let store = Sqlite::open(&path, Settings::default())?;
//! let day = Duration::from_secs(24 * 60 * 60);
//! let queue = QueueSpec { name: "orders".into(), ordered: true, window: 7 * day, horizon: day, ..QueueSpec::default() };
//! store.declare(queue, By::Runner).await?;
//!
//! let event = New::at(Event::new("orders", "order-17").payload(*b"17 euro"), Moment::from_nanos(0));
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
use redrive_core::entry::{Grant, Seq, Settle, Settled};
use redrive_core::triage::{self, Controls, Filter, JobId};
use tokio::sync::{oneshot, watch};

use crate::error::{PublishError, StoreError};
use crate::figures::{Commits, Figures, Room};
use crate::found::{Count, Found, Listed, Matching, Query};
use crate::lease::{self, Lease, LeaseSettle, LeaseSettled, Leased};
use crate::operate::{Advance, AuditLine, Group, GroupQuery, Operated, Order};
use crate::store::{Answer, By, Domain, Load, Loaded, New, Published, QueueSpec, Store, Taken, Watcher};
use crate::transaction::{Job, Transacted};

mod settings;

mod open;

mod lock;

mod schema;

mod queue;

mod writer;

mod work;

mod desk;

mod publish;

mod together;

mod keys;

mod take;

mod notes;

mod reader;

mod load;

mod settle;

mod runs;

mod transact;

mod guard;

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

mod copy;

mod restore;

pub(super) mod moving;

mod forget;

mod keep;

mod rows;

mod held;

mod columns;

mod receipt;

mod ends;

mod names;

mod disk;

mod faults;

mod crash;

#[cfg(feature = "planted")]
mod meddle;

pub(crate) mod window;

pub use copy::copy;
#[doc(hidden)]
pub use crash::crash_points;
pub use restore::{Restored, restore};
pub use settings::{Role, Settings};
pub use transact::connection;

use super::shared::{numbers, stories};
use desk::Desk;
use disk::Disk;
use faults::{Health, Step, not_seen};
use guard::Guard;
use names::Seen;
use notes::Notes;
use queue::Queue;
use reader::{Eye, Look, Readers, see};
use rules::View;
use together::Publishing;
use work::Work;
use writer::{Call, Calls, Member, Writer};

/// A store in a SQLite file.
pub struct Sqlite {
    path: PathBuf,
    calls: Arc<Calls>,
    looks: Arc<Queue<Look>>,
    health: Arc<Health>,
    watcher: Arc<Mutex<Option<Watcher>>>,
    notes: Arc<Notes>,
    seen: Arc<Seen>,
    work: Arc<Work>,
    disk_least: u64,
    ended: watch::Receiver<bool>,
    thread: Option<JoinHandle<()>>,
}

impl Sqlite {
    /// Opens a file, and makes it if there is none. Blocks for as long as it takes to recover from an unclean
    /// stop.
    ///
    /// # Errors
    /// [`StoreError::Open`] with what to do about it, and [`StoreError::Newer`] where a newer program wrote it.
    pub fn open(path: impl AsRef<Path>, settings: Settings) -> Result<Self, StoreError> {
        let path = path.as_ref().to_owned();
        let mut opened = open::open(&path, &settings, reader::READERS)?;
        let failed = |error: rusqlite::Error| faults::rolled_back(error);
        let guard = Guard::install(&mut opened.writer).map_err(failed)?;
        let log_pages = Arc::new(AtomicI32::new(0));
        let counted = Arc::clone(&log_pages);
        let count = move |_: &mut rusqlite::hooks::Wal, pages| {
            counted.store(pages, Relaxed);
            Ok(())
        };
        opened.writer.wal_hook(Some(count)).map_err(failed)?;

        let (notes, seen) = (Arc::new(Notes::of(&path)), Arc::new(Seen::default()));
        let disk = Disk::new(&path, settings.disk_least);
        let desk = Desk::new(
            (opened.writer, guard),
            (path.clone(), disk),
            (opened.ownership, Arc::clone(&notes)),
            Arc::clone(&seen),
        );
        let calls = Arc::new(Queue::new(writer::QUEUED_KIB_MAX));
        let looks = Arc::new(Queue::new(reader::LOOKS_MAX));
        let (health, watcher) = (Arc::<Health>::default(), Arc::default());
        let no_thread = |error: std::io::Error| StoreError::Open {
            path: path.clone(),
            why: format!("no thread could be started: {error}"),
            source: Some(Arc::new(error)),
        };
        let readers = Readers::start(Arc::clone(&looks), opened.readers).map_err(no_thread)?;
        let (told, ended) = watch::channel(false);
        let work = Arc::<Work>::default();
        let writer = Writer {
            desk,
            calls: Arc::clone(&calls),
            health: Arc::clone(&health),
            watcher: Arc::clone(&watcher),
            readers,
            work: Arc::clone(&work),
            log_pages,
            log_pages_max: 0,
            named: None,
            owed: std::collections::VecDeque::new(),
            ended: told,
        };
        let write = std::thread::Builder::new().name("redrive-write".to_owned());
        let thread = write.spawn(move || writer.run()).map_err(no_thread)?;
        let (disk_least, thread) = (settings.disk_least, Some(thread));
        Ok(Self { path, calls, looks, health, watcher, notes, seen, work, disk_least, ended, thread })
    }

    /// How many commits this handle made, and how many publishes, settles and other changes were in them.
    #[must_use]
    pub fn commits(&self) -> (u64, u64) {
        self.work.done()
    }

    /// Has the writer do something to so many events.
    fn write<T: Send + 'static>(
        &self,
        bytes: usize,
        events: usize,
        run: impl FnMut(&mut Desk) -> Step<T> + Send + 'static,
    ) -> Answer<T> {
        let (tell, told) = oneshot::channel();
        let call = Call { alone: false, events, run, committed: |_, _| {}, got: None, tell };
        self.call(Box::new(call), bytes, told)
    }

    /// Has the writer do something in a commit of its own, and something else after it.
    fn write_alone<T: Send + 'static>(
        &self,
        run: impl FnMut(&mut Desk) -> Step<T> + Send + 'static,
        committed: fn(&mut Desk, &mut T),
    ) -> Answer<T> {
        let (tell, told) = oneshot::channel();
        self.call(Box::new(Call { alone: true, events: 1, run, committed, got: None, tell }), 0, told)
    }

    fn call<T: Send + 'static>(
        &self,
        member: Box<dyn Member>,
        bytes: usize,
        told: oneshot::Receiver<Result<T, StoreError>>,
    ) -> Answer<T> {
        let kib = u32::try_from(bytes / 1024 + 1).unwrap_or(u32::MAX);
        let entered = self.calls.push((member, kib), kib);
        self.wait(entered, told)
    }

    /// Has a reader look at something.
    fn look<T: Send + 'static>(&self, look: impl FnOnce(&mut Eye) -> Step<T> + Send + 'static) -> Answer<T> {
        let (tell, told) = oneshot::channel();
        let health = Arc::clone(&self.health);
        let look: Look = Box::new(move |eye: &mut Eye| {
            let answer = health.check().and_then(|()| {
                let seen = see(eye, look).map_err(not_seen);
                // What was seen while a commit failed is not to be trusted.
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
    ) -> Answer<T> {
        let health = Arc::clone(&self.health);
        Box::pin(async move {
            if let Err(entering) = entered {
                entering.await;
            }
            match told.await {
                Ok(answer) => answer,
                // Nobody answers any more.
                Err(_) => Err(health.check().err().unwrap_or(StoreError::Closed)),
            }
        })
    }
}

impl Store for Sqlite {
    fn domain(&self) -> Domain {
        Domain::File(self.path.clone())
    }

    fn shards(&self) -> u32 {
        1
    }

    fn declare(&self, queue: QueueSpec, by: By) -> Answer<()> {
        self.write(0, 1, move |desk| desk.declare(&queue, by))
    }

    fn publish(&self, events: Vec<New>) -> Answer<Vec<Result<Published, PublishError>>> {
        let bytes = events.iter().map(|new| new.event.payload.len() + 512).sum();
        let (tell, told) = oneshot::channel();
        self.call(Box::new(Publishing::new(events, tell)), bytes, told)
    }

    fn take(&self, shard: u32, now: Moment) -> Answer<Taken> {
        self.write_alone(move |desk| desk.take(shard, now), |desk, taken| desk.taken(taken))
    }

    fn release(&self, grant: Grant) -> Answer<()> {
        let released = self.write_alone(move |desk| desk.release(grant), |_, _| {});
        let notes = Arc::clone(&self.notes);
        Box::pin(async move {
            released.await?;
            notes.end(grant);
            Ok(())
        })
    }

    fn load(&self, load: Load) -> Answer<Loaded> {
        let path = self.path.clone();
        self.look(move |eye| load::load(&eye.conn, &mut eye.names, &load, &path))
    }

    fn settle(&self, settles: Vec<Settle>) -> Answer<Vec<Settled>> {
        let mut answers = Vec::with_capacity(settles.len());
        self.write(settles.len() * 64, settles.len(), move |desk| {
            desk.settle_all(&settles, &mut answers)?;
            Ok(std::mem::take(&mut answers))
        })
    }

    fn note(&self, grant: Grant, under_way: Vec<Seq>) -> Answer<()> {
        let noted = self.health.check().and_then(|()| self.notes.write(grant, &under_way, &self.path));
        Box::pin(std::future::ready(noted))
    }

    fn transact(&self, job: Job) -> Answer<Transacted> {
        let (tell, told) = oneshot::channel();
        self.call(Box::new(transact::Work::new(job, tell)), 0, told)
    }

    fn find(&self, tenant: &str, queue: &str, id: &str) -> Answer<Option<Found>> {
        let (tenant, queue, id) = (tenant.to_owned(), queue.to_owned(), id.to_owned());
        let seen = Arc::clone(&self.seen);
        self.look(move |eye| {
            let view = View::of(&eye.conn, seen.now())?;
            find::find(&eye.conn, &mut eye.names, (&tenant, &queue, &id), &view)
        })
    }

    fn list(&self, query: Query) -> Answer<Listed> {
        let seen = Arc::clone(&self.seen);
        self.look(move |eye| {
            let view = View::of(&eye.conn, seen.now())?;
            list::list(&eye.conn, &mut eye.names, &query, &view)
        })
    }

    fn count(&self, now: Moment) -> Answer<Vec<Count>> {
        self.look(move |eye| count::count(&eye.conn, &mut eye.names, &View::of(&eye.conn, now)?))
    }

    fn oldest_due(&self, now: Moment) -> Answer<Vec<(String, Moment)>> {
        self.look(move |eye| oldest::oldest_due(&eye.conn, &View::of(&eye.conn, now)?))
    }

    fn figures(&self) -> Figures {
        let free = disk::free(&disk::folder_of(&self.path));
        let disk = free.map(|free| Room { free, least: self.disk_least });
        let (count, batch, sync) = (self.work.done().0, self.work.batch(), self.work.sync());
        Figures { commits: Some(Commits { count, batch, sync }), disk }
    }

    fn backup(&self, to: PathBuf) -> Answer<()> {
        copy::start(self.path.clone(), to)
    }

    fn forget(&self, now: Moment) -> Answer<usize> {
        self.write(0, 0, move |desk| desk.forget(now))
    }

    fn operate(&self, order: Order) -> Answer<Operated> {
        let (bytes, events) = operate::weight(&order.what);
        self.write(bytes, events, move |desk| desk.operate(&order))
    }

    fn advance(&self, step: Advance) -> Answer<Option<triage::Job>> {
        self.write(step.most as usize * 256, step.most as usize, move |desk| desk.advance(&step))
    }

    fn jobs(&self, id: Option<JobId>) -> Answer<Vec<triage::Job>> {
        self.look(move |eye| jobs::jobs(&eye.conn, id))
    }

    fn controls(&self) -> Answer<Controls> {
        self.look(|eye| rules::controls(&eye.conn))
    }

    fn groups(&self, query: GroupQuery) -> Answer<Vec<Group>> {
        self.look(move |eye| group::groups(&eye.conn, &mut eye.names, &query))
    }

    fn matching(&self, filter: Filter) -> Answer<Matching> {
        self.look(move |eye| letters::matching(&eye.conn, &mut eye.names, &filter))
    }

    fn audit(&self, before: Option<u64>, limit: usize) -> Answer<Vec<AuditLine>> {
        self.look(move |eye| audit::lines(&eye.conn, before, limit))
    }

    fn lease(&self, mut lease: Lease) -> Answer<Leased> {
        let events = lease.tokens.len();
        self.write(events * 64, events, move |desk| desk.lease(&mut lease))
    }

    fn extend(&self, leases: Vec<lease::Held>, at: Moment, until: Moment) -> Answer<Vec<LeaseSettled>> {
        self.write(leases.len() * 64, leases.len(), move |desk| desk.extend(&leases, at, until))
    }

    fn settle_leased(&self, mut settles: Vec<LeaseSettle>) -> Answer<Vec<LeaseSettled>> {
        self.write(settles.len() * 64, settles.len(), move |desk| desk.settle_leased(&mut settles))
    }

    fn watch(&self, watcher: Watcher) {
        *self.watcher.lock().unwrap_or_else(PoisonError::into_inner) = Some(watcher);
    }

    fn close(&self) -> Answer<()> {
        self.calls.close();
        let mut ended = self.ended.clone();
        Box::pin(async move {
            // The other side is gone only when the thread is.
            let _ = ended.wait_for(|ended| *ended).await;
            Ok(())
        })
    }
}

impl Drop for Sqlite {
    /// Writes what was accepted, and closes the files. A store that was not released counts as uncleanly
    /// stopped.
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
