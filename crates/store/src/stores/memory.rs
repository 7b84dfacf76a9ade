//! In memory: the reference implementation of the contract.
//!
//! Plain maps behind one mutex. Every call is done when it is made, and its future is ready when it is polled. Each
//! map has a journal, so that a failed call leaves nothing behind. Nothing outlives the process, but everything
//! outlives the owner: clones share the same data, and [`Memory::reopen`] corresponds to opening the file again in
//! other stores.
//!
//! Its price: one lock for all calls, and a copy of the user's table for each transaction that writes to it. A watcher
//! is called under the lock, and must not call the store. The store is for tests, and for work that may be lost.

use std::fmt;
use std::future::ready;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use redrive_core::Moment;
use redrive_core::planted::{PlantedBug, has};
use redrive_core::queue_entry::{FencingToken, Seq, SettleRequest, SettleResult};
use redrive_core::triage::{self, ActiveRules, Filter, JobId};

use crate::error::{PublishError, StoreError};
use crate::event_status::{EventCount, EventPage, EventQuery, EventStatus, FilterMatches, Named};
use crate::lease::{LeaseRef, LeaseRequest, LeaseSettle, LeaseSettleResult, LeasedEvents};
use crate::operate::{
    AuditLine, CommandResult, FailingGroup, FailingQuery, Group, GroupQuery, JobAdvance, OperatorCommand,
    Retrying,
};
use crate::store::{
    Arrivals, DeclaredBy, Domain, EventStore, LoadRequest, LoadedEvents, NewEvent, OperatorStore, Published,
    QueueSpec, SettleStore, ShardStore, Store, StoreFuture, TakenShard, Watcher,
};
use crate::transaction::{TxJob, TxOutcome};

mod state;

mod row;

mod journal;

mod order;

mod publish;

mod shards;

mod load;

mod settle;

mod transact;

mod read;

mod operate;

mod death;

mod leases;

mod ledger;

mod forget;

mod faults;

pub use faults::InjectedFault;
pub use transact::table;

use faults::World;
use row::Identity;
use state::{CommitNotice, State, Table};

/// A store in memory. Clones share it.
///
/// ```
/// use redrive_core::{Event, Moment};
/// use redrive_store::{DeclaredBy, Memory, NewEvent, Published, QueueSpec, prelude::*};
/// use std::time::Duration;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let (window, horizon) = (Duration::from_secs(60), Duration::from_secs(60));
/// let store = Memory::new();
/// store.declare(QueueSpec { name: "orders".to_owned(), ordered: true, window, horizon, ..QueueSpec::default() }, DeclaredBy::Runner).await?;
///
/// let order = || NewEvent::at(Event::new("orders", "order-17"), Moment::default());
/// let answers = store.publish(vec![order(), order()]).await?;
/// assert!(matches!(&answers[..], [Ok(Published::Accepted(_)), Ok(Published::Duplicate(_))]));
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Memory {
    data: Arc<Data>,
    session: Arc<Session>,
}

struct Data {
    shards: u32,
    world: Mutex<World>,
    sessions: Mutex<Vec<Weak<Session>>>,
}

/// One opening of the store, as by a process.
#[derive(Default)]
struct Session {
    closed: AtomicBool,
    watcher: Mutex<Option<Watcher>>,
}

impl Memory {
    /// An empty store with one shard.
    #[must_use]
    pub fn new() -> Self {
        Self::with_shards(1)
    }

    /// An empty store with this many shards, at least one.
    #[must_use]
    pub fn with_shards(shards: u32) -> Self {
        let shards = shards.max(1);
        let world = Mutex::new(World::with_shards(shards));
        let data = Data { shards, world, sessions: Mutex::default() };
        Self::open(Arc::new(data))
    }

    /// Opens the same data again, as after the death of a process: there is no watcher yet, and the outcome of a
    /// failed sync is decided. Handles that were opened before stay open, and all watchers are notified of all
    /// arrivals.
    #[must_use]
    pub fn reopen(&self) -> Self {
        self.recover();
        Self::open(Arc::clone(&self.data))
    }

    fn open(data: Arc<Data>) -> Self {
        let session = Arc::new(Session::default());
        let mut sessions = lock(&data.sessions);
        sessions.retain(|session| session.strong_count() > 0);
        sessions.push(Arc::downgrade(&session));
        drop(sessions);
        Self { data, session }
    }

    /// The contents of the user's own table.
    #[must_use]
    pub fn table_snapshot(&self) -> Table {
        Table::clone(&lock(&self.data.world).state.table)
    }

    /// Draws the number of an event that is [published later](Self::publish_late), perhaps after events with larger
    /// numbers are visible: as in a store with several open transactions.
    ///
    /// # Errors
    ///
    /// If a sync failed.
    #[doc(hidden)]
    pub fn draw(&self, queue: &str, tenant: &str) -> Result<Seq, StoreError> {
        let mut world = self.world()?;
        let drawn = world.state.next_seq(queue, tenant)?;
        world.state.keep();
        Ok(drawn.1)
    }

    /// Publishes under a number that was drawn before.
    #[doc(hidden)]
    pub fn publish_late(
        &self,
        events: Vec<NewEvent>,
        drawn: Seq,
    ) -> StoreFuture<Vec<Result<Published, PublishError>>> {
        self.commit(|state| {
            state.drawn = Some(drawn);
            let said = events.iter().map(|new| state.publish(new)).collect();
            state.drawn = None;
            Ok(said)
        })
    }

    /// Makes the next commit that changes something fail. Several faults are queued.
    #[doc(hidden)]
    pub fn fail_next(&self, fault: InjectedFault) {
        lock(&self.data.world).faults.push_back(fault);
    }

    /// Ends the time after a failed sync: its change is there, or it is not.
    #[doc(hidden)]
    pub fn recover(&self) {
        lock(&self.data.world).recover();
    }

    fn data_if_open(&self) -> Result<MutexGuard<'_, World>, StoreError> {
        if self.session.closed.load(Ordering::Acquire) {
            return Err(StoreError::Closed);
        }
        Ok(lock(&self.data.world))
    }

    fn world(&self) -> Result<MutexGuard<'_, World>, StoreError> {
        let world = self.data_if_open()?;
        world.check()?;
        Ok(world)
    }

    /// Reads without changing anything.
    fn look<T: Send + 'static>(
        &self,
        look: impl FnOnce(&mut World) -> Result<T, StoreError>,
    ) -> StoreFuture<T> {
        answer(self.world().and_then(|mut world| look(&mut world)))
    }

    /// Runs a change, commits it, and notifies the watchers. A failed change leaves nothing behind.
    fn commit<T: Send + 'static>(
        &self,
        verb: impl FnOnce(&mut State) -> Result<T, StoreError>,
    ) -> StoreFuture<T> {
        self.change(|world| match verb(&mut world.state) {
            Ok(done) => {
                let (arrived, told) = world.commit();
                (arrived, told.map(|()| done))
            }
            Err(error) => {
                world.state.undo();
                (CommitNotice::default(), Err(error))
            }
        })
    }

    fn change<T: Send + 'static>(
        &self,
        change: impl FnOnce(&mut World) -> (CommitNotice, Result<T, StoreError>),
    ) -> StoreFuture<T> {
        answer(self.world().and_then(|mut world| {
            let (arrived, done) = change(&mut world);
            // Under the lock, so that a watcher never learns of an event after its end.
            self.tell(&arrived);
            done
        }))
    }

    fn tell(&self, told: &CommitNotice) {
        let CommitNotice { entries, recall } = told;
        if entries.is_empty() && !recall {
            return;
        }
        for session in lock(&self.data.sessions).iter().filter_map(Weak::upgrade) {
            let watcher = lock(&session.watcher).clone();
            if let Some(watcher) = watcher {
                watcher(Arrivals { entries: entries.clone(), recall: *recall, ..Arrivals::default() });
            }
        }
    }
}

impl Store for Memory {
    fn domain(&self) -> Domain {
        Domain::Memory
    }

    fn forget(&self, now: Moment) -> StoreFuture<usize> {
        self.commit(|state| {
            state.see(now);
            Ok(state.forget(now))
        })
    }

    fn close(&self) -> StoreFuture<()> {
        self.session.closed.store(true, Ordering::Release);
        *lock(&self.session.watcher) = None;
        answer(Ok(()))
    }
}

impl EventStore for Memory {
    fn declare(&self, queue: QueueSpec, by: DeclaredBy) -> StoreFuture<()> {
        self.commit(|state| {
            if by == DeclaredBy::Runner || state.queues.get(&queue.name).is_none() {
                state.queues.put(queue.name.clone(), queue);
            }
            Ok(())
        })
    }

    fn publish(&self, events: Vec<NewEvent>) -> StoreFuture<Vec<Result<Published, PublishError>>> {
        self.commit(|state| Ok(events.iter().map(|new| state.publish(new)).collect()))
    }

    fn load(&self, load: LoadRequest) -> StoreFuture<LoadedEvents> {
        self.look(|world| world.state.load(&load, &mut world.cursors))
    }

    fn watch(&self, watcher: Watcher) {
        *lock(&self.session.watcher) = Some(watcher);
    }

    fn find(&self, tenant: &str, queue: &str, id: &str) -> StoreFuture<Option<EventStatus>> {
        let identity = Identity { tenant: tenant.to_owned(), queue: queue.to_owned(), id: id.to_owned() };
        answer(self.data_if_open().and_then(|world| {
            if !has(PlantedBug::LookUpAfterFailedSync) {
                world.check()?;
            }
            Ok(world.state.find(&identity))
        }))
    }

    fn find_by_id(&self, id: &str) -> StoreFuture<Vec<Named>> {
        self.look(|world| Ok(world.state.find_by_id(id)))
    }

    fn queue_names(&self) -> StoreFuture<Vec<String>> {
        self.look(|world| Ok(world.state.queues.iter().map(|(name, _)| name.clone()).collect()))
    }

    fn list(&self, query: EventQuery) -> StoreFuture<EventPage> {
        self.look(|world| Ok(world.state.list(&query)))
    }

    fn count(&self, now: Moment) -> StoreFuture<Vec<EventCount>> {
        self.look(|world| Ok(world.state.count(now)))
    }

    fn oldest_due(&self, now: Moment) -> StoreFuture<Vec<(String, Moment)>> {
        self.look(|world| Ok(world.state.oldest_due(now)))
    }
}

impl SettleStore for Memory {
    fn settle(&self, settles: Vec<SettleRequest>) -> StoreFuture<Vec<SettleResult>> {
        self.commit(|state| Ok(settles.into_iter().map(|settle| state.settle(settle)).collect()))
    }

    fn note(&self, token: FencingToken, under_way: Vec<Seq>) -> StoreFuture<()> {
        self.commit(|state| state.note(token, under_way))
    }

    fn transact(&self, job: TxJob) -> StoreFuture<TxOutcome> {
        self.change(|world| world.transact(job))
    }

    fn lease(&self, lease: LeaseRequest) -> StoreFuture<LeasedEvents> {
        self.commit(|state| state.lease(lease))
    }

    fn extend(
        &self,
        leases: Vec<LeaseRef>,
        at: Moment,
        until: Moment,
    ) -> StoreFuture<Vec<LeaseSettleResult>> {
        self.commit(|state| {
            state.see(at);
            Ok(leases.iter().map(|held| state.extend(held, until)).collect())
        })
    }

    fn settle_leased(&self, settles: Vec<LeaseSettle>) -> StoreFuture<Vec<LeaseSettleResult>> {
        self.commit(|state| Ok(settles.into_iter().map(|settle| state.settle_leased(settle)).collect()))
    }
}

impl OperatorStore for Memory {
    fn operate(&self, order: OperatorCommand) -> StoreFuture<CommandResult> {
        self.commit(|state| Ok(state.operate(order)))
    }

    fn advance(&self, step: JobAdvance) -> StoreFuture<Option<triage::Job>> {
        self.commit(|state| Ok(state.advance(step)))
    }

    fn jobs(&self, id: Option<JobId>) -> StoreFuture<Vec<triage::Job>> {
        self.look(|world| Ok(world.state.jobs(id)))
    }

    fn controls(&self) -> StoreFuture<ActiveRules> {
        self.look(|world| Ok(world.state.controls()))
    }

    fn groups(&self, query: GroupQuery) -> StoreFuture<Vec<Group>> {
        self.look(|world| Ok(world.state.groups(&query)))
    }

    fn failing(&self, query: FailingQuery) -> StoreFuture<Vec<FailingGroup>> {
        self.look(|world| Ok(world.state.failing(&query)))
    }

    fn retrying(&self) -> StoreFuture<Vec<Retrying>> {
        self.look(|world| Ok(world.state.retrying()))
    }

    fn matching(&self, filter: Filter) -> StoreFuture<FilterMatches> {
        self.look(|world| Ok(world.state.matching(&filter)))
    }

    fn audit(&self, before: Option<u64>, limit: usize) -> StoreFuture<Vec<AuditLine>> {
        self.look(|world| Ok(world.state.lines(before, limit)))
    }
}

impl ShardStore for Memory {
    fn shards(&self) -> u32 {
        self.data.shards
    }

    fn take(&self, shard: u32, now: Moment) -> StoreFuture<TakenShard> {
        self.commit(|state| {
            state.see(now);
            state.take(shard)
        })
    }

    fn release(&self, token: FencingToken) -> StoreFuture<()> {
        self.commit(|state| state.release(token))
    }
}

impl Default for Memory {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Memory").field("shards", &self.data.shards).finish_non_exhaustive()
    }
}

fn answer<T: Send + 'static>(done: Result<T, StoreError>) -> StoreFuture<T> {
    Box::pin(ready(done))
}

/// Locks. A panic of the user's work is caught before it can reach a lock, and a watcher is called after the commit,
/// so the data behind a poisoned lock is intact.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
