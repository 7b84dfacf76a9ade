//! In memory: the reference for what the words of the contract mean.
//!
//! Plain maps behind one mutex. Every verb is done when it is called, and its future is ready when it is
//! polled. Each map has a journal, so that a verb that fails leaves nothing behind. Nothing outlives the
//! process, but everything outlives the owner: clones share the same data, and [`Memory::reopen`] is what
//! opening a file again is to other stores.
//!
//! What it costs: one lock for everybody, and a copy of the user's table for each transaction that writes to
//! it. A watcher is called under the lock, and must not call the store. It is for tests, and for work that may
//! be lost.

use std::fmt;
use std::future::ready;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use redrive_core::Moment;
use redrive_core::entry::{Grant, Seq, Settle, Settled};
use redrive_core::planted::{Flaw, has};
use redrive_core::triage::{self, Controls, Filter, JobId};

use crate::error::{PublishError, StoreError};
use crate::found::{Count, Found, Listed, Matching, Query};
use crate::lease::{Held, Lease, LeaseSettle, LeaseSettled, Leased};
use crate::operate::{Advance, AuditLine, Group, GroupQuery, Operated, Order};
use crate::store::{
    Answer, Arrivals, By, Domain, Load, Loaded, New, Published, QueueSpec, Store, Taken, Watcher,
};
use crate::transaction::{Job, Transacted};

mod state;

mod row;

mod journal;

mod order;

mod publish;

mod shards;

mod load;

mod settle;

mod transact;

mod look;

mod operate;

mod death;

mod edit;

mod rule;

mod group;

mod job;

mod audit;

mod lease;

mod record;

mod forget;

mod fault;

pub use fault::Fault;
pub use transact::table;

use fault::World;
use row::Identity;
use state::{State, Table, Told};

/// A store in memory. Clones share it.
///
/// ```
/// use redrive_core::{Event, Moment};
/// use redrive_store::{By, Memory, New, Published, QueueSpec, Store};
/// use std::time::Duration;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let (window, horizon) = (Duration::from_secs(60), Duration::from_secs(60));
/// let store = Memory::new();
/// store.declare(QueueSpec { name: "orders".to_owned(), ordered: true, window, horizon, ..QueueSpec::default() }, By::Runner).await?;
///
/// let order = || New::at(Event::new("orders", "order-17"), Moment::default());
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

/// One opening of the store, as a process would be.
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

    /// An empty store with so many shards, at least one.
    #[must_use]
    pub fn with_shards(shards: u32) -> Self {
        let shards = shards.max(1);
        let world = Mutex::new(World::with_shards(shards));
        let data = Data { shards, world, sessions: Mutex::default() };
        Self::open(Arc::new(data))
    }

    /// Opens the same data again, as after the death of a process: nobody is told of arrivals yet, and what a
    /// failed sync left open is decided. Whoever has it open already goes on having it, and
    /// all of them hear of all arrivals.
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

    /// What is in the user's own table.
    #[must_use]
    pub fn table_snapshot(&self) -> Table {
        Table::clone(&lock(&self.data.world).state.table)
    }

    /// Draws the number of an event that is [published later](Self::publish_late), when others may have been seen that
    /// have larger ones: as in a store in which several transactions are open.
    ///
    /// # Errors
    ///
    /// Where a sync failed.
    #[doc(hidden)]
    pub fn draw(&self, queue: &str, tenant: &str) -> Result<Seq, StoreError> {
        let mut world = self.world()?;
        let drawn = world.state.next_seq(queue, tenant)?;
        world.state.keep();
        Ok(drawn.1)
    }

    /// Publishes under a number that was drawn before.
    #[doc(hidden)]
    pub fn publish_late(&self, events: Vec<New>, drawn: Seq) -> Answer<Vec<Result<Published, PublishError>>> {
        self.commit(|state| {
            state.drawn = Some(drawn);
            let said = events.iter().map(|new| state.publish(new)).collect();
            state.drawn = None;
            Ok(said)
        })
    }

    /// Makes the next commit that changes something fail. Several are queued.
    #[doc(hidden)]
    pub fn fail_next(&self, fault: Fault) {
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

    /// Looks, and changes nothing.
    fn look<T: Send + 'static>(&self, look: impl FnOnce(&mut World) -> Result<T, StoreError>) -> Answer<T> {
        answer(self.world().and_then(|mut world| look(&mut world)))
    }

    /// Changes something, commits, and tells who is to know. A verb that fails leaves nothing.
    fn commit<T: Send + 'static>(&self, verb: impl FnOnce(&mut State) -> Result<T, StoreError>) -> Answer<T> {
        self.change(|world| match verb(&mut world.state) {
            Ok(done) => {
                let (arrived, told) = world.commit();
                (arrived, told.map(|()| done))
            }
            Err(error) => {
                world.state.undo();
                (Told::default(), Err(error))
            }
        })
    }

    fn change<T: Send + 'static>(
        &self,
        change: impl FnOnce(&mut World) -> (Told, Result<T, StoreError>),
    ) -> Answer<T> {
        answer(self.world().and_then(|mut world| {
            let (arrived, done) = change(&mut world);
            // Under the lock, so that nobody hears of an event after its end.
            self.tell(&arrived);
            done
        }))
    }

    fn tell(&self, told: &Told) {
        let Told { entries, recall } = told;
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

    fn shards(&self) -> u32 {
        self.data.shards
    }

    fn declare(&self, queue: QueueSpec, by: By) -> Answer<()> {
        self.commit(|state| {
            if by == By::Runner || state.queues.get(&queue.name).is_none() {
                state.queues.put(queue.name.clone(), queue);
            }
            Ok(())
        })
    }

    fn publish(&self, events: Vec<New>) -> Answer<Vec<Result<Published, PublishError>>> {
        self.commit(|state| Ok(events.iter().map(|new| state.publish(new)).collect()))
    }

    fn take(&self, shard: u32, now: Moment) -> Answer<Taken> {
        self.commit(|state| {
            state.see(now);
            state.take(shard)
        })
    }

    fn release(&self, grant: Grant) -> Answer<()> {
        self.commit(|state| state.release(grant))
    }

    fn load(&self, load: Load) -> Answer<Loaded> {
        self.look(|world| world.state.load(&load, &mut world.cursors))
    }

    fn settle(&self, settles: Vec<Settle>) -> Answer<Vec<Settled>> {
        self.commit(|state| Ok(settles.into_iter().map(|settle| state.settle(settle)).collect()))
    }

    fn note(&self, grant: Grant, under_way: Vec<Seq>) -> Answer<()> {
        self.commit(|state| state.note(grant, under_way))
    }

    fn transact(&self, job: Job) -> Answer<Transacted> {
        self.change(|world| world.transact(job))
    }

    fn find(&self, tenant: &str, queue: &str, id: &str) -> Answer<Option<Found>> {
        let identity = Identity { tenant: tenant.to_owned(), queue: queue.to_owned(), id: id.to_owned() };
        answer(self.data_if_open().and_then(|world| {
            if !has(Flaw::LookUpAfterFailedSync) {
                world.check()?;
            }
            Ok(world.state.find(&identity))
        }))
    }

    fn list(&self, query: Query) -> Answer<Listed> {
        self.look(|world| Ok(world.state.list(&query)))
    }

    fn count(&self, now: Moment) -> Answer<Vec<Count>> {
        self.look(|world| Ok(world.state.count(now)))
    }

    fn oldest_due(&self, now: Moment) -> Answer<Vec<(String, Moment)>> {
        self.look(|world| Ok(world.state.oldest_due(now)))
    }

    fn forget(&self, now: Moment) -> Answer<usize> {
        self.commit(|state| {
            state.see(now);
            Ok(state.forget(now))
        })
    }

    fn operate(&self, order: Order) -> Answer<Operated> {
        self.commit(|state| Ok(state.operate(order)))
    }

    fn advance(&self, step: Advance) -> Answer<Option<triage::Job>> {
        self.commit(|state| Ok(state.advance(step)))
    }

    fn jobs(&self, id: Option<JobId>) -> Answer<Vec<triage::Job>> {
        self.look(|world| Ok(world.state.jobs(id)))
    }

    fn controls(&self) -> Answer<Controls> {
        self.look(|world| Ok(world.state.controls()))
    }

    fn groups(&self, query: GroupQuery) -> Answer<Vec<Group>> {
        self.look(|world| Ok(world.state.groups(&query)))
    }

    fn matching(&self, filter: Filter) -> Answer<Matching> {
        self.look(|world| Ok(world.state.matching(&filter)))
    }

    fn audit(&self, before: Option<u64>, limit: usize) -> Answer<Vec<AuditLine>> {
        self.look(|world| Ok(world.state.lines(before, limit)))
    }

    fn lease(&self, lease: Lease) -> Answer<Leased> {
        self.commit(|state| state.lease(lease))
    }

    fn extend(&self, leases: Vec<Held>, at: Moment, until: Moment) -> Answer<Vec<LeaseSettled>> {
        self.commit(|state| {
            state.see(at);
            Ok(leases.iter().map(|held| state.extend(held, until)).collect())
        })
    }

    fn settle_leased(&self, settles: Vec<LeaseSettle>) -> Answer<Vec<LeaseSettled>> {
        self.commit(|state| Ok(settles.into_iter().map(|settle| state.settle_leased(settle)).collect()))
    }

    fn watch(&self, watcher: Watcher) {
        *lock(&self.session.watcher) = Some(watcher);
    }

    fn close(&self) -> Answer<()> {
        self.session.closed.store(true, Ordering::Release);
        *lock(&self.session.watcher) = None;
        answer(Ok(()))
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

fn answer<T: Send + 'static>(done: Result<T, StoreError>) -> Answer<T> {
    Box::pin(ready(done))
}

/// Locks. A panic of the user's work is caught before it can reach a lock, and when a watcher is called all is
/// committed, so there is nothing to mistrust behind a lock that somebody panicked with.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
