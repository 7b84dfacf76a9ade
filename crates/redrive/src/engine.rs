//! The engine: durable events, attempted until they succeed or become dead letters.
//!
//! A [`Redrive`] is a store with queues on it. Publishing writes an event and its dedupe record in one commit. From
//! then on the handler of its queue attempts the event until it is done, dropped, expired, or a dead letter with its
//! whole attempt history. The scheduler in `redrive-core` makes every decision; this module waits, calls handlers and
//! writes.
//!
//! ```
//! use redrive::prelude::*;
//! use redrive::{Event, Redrive};
//!
//! # async fn charge(_: &[u8], _: String) -> Result<(), std::io::Error> { Ok(()) }
//! # async fn run() -> Result<(), Box<dyn std::error::Error>> {
//! # let url = "memory:";
//! let redrive = Redrive::open(url).await?; // "sqlite:orders.db", "postgres://localhost/shop"
//! redrive
//!     .queue("orders")
//!     .concurrency(8)
//!     .handle_with(classify::io, |order| async move {
//!         charge(order.payload(), order.idempotency_key()).await
//!     })
//!     .await?;
//! redrive.start().await?;
//! redrive.publish(Event::new("orders", "order-17").payload(*b"17 EUR")).await?;
//! # redrive.shutdown(std::time::Duration::from_secs(5)).await?;
//! # Ok(())
//! # }
//! # tokio::runtime::Runtime::new().unwrap().block_on(run()).unwrap();
//! ```
//!
//! # Guarantees, and where they hold
//!
//! *In the store's domain* (this SQLite file, this PostgreSQL database) the effect of a transactional handler happens
//! once: effect and settle are one commit. *Outside of it* an attempt may run more than once: after a crash, a
//! timeout, a lost answer. Every attempt therefore carries [`Delivery::idempotency_key`], the same over all attempts,
//! and [`Delivery::fence`] `(epoch, start)`, with which a receiver can refuse calls that are older than what it has
//! seen.

use std::collections::BTreeMap;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use redrive_core::event::State;
use redrive_core::local_slots::LocalSlots;
use redrive_core::queue_entry::{QueueEntry, Seq};
use redrive_core::triage::{Filter, FilterSubject};
use redrive_core::{Event, Moment};
use redrive_store::{
    EventPage, EventQuery, EventStatus, Named, NewEvent, PublishError, Published, Store, StoreError,
};

mod handling;

pub mod blocking;
#[cfg(feature = "postgres")]
mod caller_tx;
mod clock;
mod context;
pub mod desk;
mod driver;
mod error;
mod gauges;
mod job_runner;
pub mod lease;
mod observe;
mod open;
mod queue;
pub(crate) mod queue_builder;
mod run;

use driver::{attempt_batch, control, local_slots, perform};
use handling::{delivery, handler, lineage, reply, sqlstate, transaction};

pub use crate::address::shown;
#[cfg(feature = "postgres")]
pub use caller_tx::Inbox;
pub use clock::EventClock;
pub use delivery::Delivery;
pub use desk::Desk;
pub use error::{QueueError, StartError, TransactError};
pub use gauges::DownstreamLoad;
pub use open::OpenOptions;
pub use queue_builder::QueueBuilder;
pub use redrive_core::scheduler::AfterDead;
pub use redrive_store::Memory;
pub use reply::{Failure, IntoReply, Reply};
pub use run::StopReport;
pub use transaction::Transaction;

use control::DriverHandle;
use queue::Queues;

/// An open store with its queues. Clones share it.
#[derive(Clone, Debug)]
pub struct Redrive(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    store: Arc<dyn Store>,
    clock: Arc<EventClock>,
    seed: Option<u64>,
    queues: Arc<Queues>,
    /// Whether it was started, or is about to be.
    starting: AtomicBool,
    driver: OnceLock<DriverHandle>,
    /// The free slots of this process, if the store is shared with other processes.
    local_slots: OnceLock<Arc<LocalSlots>>,
    /// Wakes the job runner when a job was started or changed.
    clerk: Arc<tokio::sync::Notify>,
    /// How long a shard may stand still though it has work, if configured; and how many shards do.
    stall_after: Option<Duration>,
    stalled: Arc<std::sync::atomic::AtomicUsize>,
}

impl Redrive {
    /// Opens a store, and creates it if it does not exist.
    ///
    /// | address | is |
    /// |---|---|
    /// | `sqlite:orders.db` | a file, durable; its directory must exist |
    /// | `postgres://user@host/shop` | a PostgreSQL database, in a schema of its own, for many processes; the `PG…` variables fill in what the URL leaves out |
    /// | `memory:` | this process' memory, for tests |
    ///
    /// # Errors
    /// If it cannot be opened: no such directory or database, a wrong password, a newer schema.
    pub async fn open(address: &str) -> Result<Self, StoreError> {
        OpenOptions::new().open(address).await
    }

    pub(crate) fn over(
        store: Arc<dyn Store>,
        clock: EventClock,
        seed: Option<u64>,
        stall_after: Option<Duration>,
    ) -> Self {
        let queues = Arc::default();
        let clock = Arc::new(clock);
        Self(Arc::new(Inner {
            store,
            clock,
            seed,
            queues,
            starting: AtomicBool::new(false),
            driver: OnceLock::new(),
            local_slots: OnceLock::new(),
            clerk: Arc::default(),
            stall_after,
            stalled: Arc::default(),
        }))
    }

    /// The domain in which effect and settle commit together, as text.
    #[must_use]
    pub fn domain(&self) -> String {
        self.0.store.domain().to_string()
    }

    /// Begins to set up a queue. It exists once [`handle`](QueueBuilder::handle) or [`declare`](QueueBuilder::declare)
    /// is awaited.
    pub fn queue(&self, name: impl Into<String>) -> QueueBuilder {
        QueueBuilder::new(self.clone(), name.into())
    }

    /// Publishes an event. When this returns, the event is durable.
    ///
    /// A repeated identity gives [`Published::Duplicate`] with the outcome of the first event.
    ///
    /// # Errors
    /// [`PublishError::IdReused`] for the same id with another payload; [`PublishError::is_transient`] says which
    /// errors may be tried again. After [`StoreError::Unknown`] publish the same id again to find out.
    pub async fn publish(&self, event: Event) -> Result<Published, PublishError> {
        let (queue, new) = self.prepare_alone(event, self.now());
        let answer = match new {
            Ok(mut new) => {
                let place = self.0.slot(&mut new);
                let answers = self.0.store.publish(vec![new]).await;
                let answer = answers.map_err(PublishError::from).and_then(only);
                local_slots::answered(place, &answer);
                answer
            }
            Err(error) => Err(error),
        };
        observe::published(&queue, &answer);
        answer
    }

    /// Publishes several events in order, with an answer for each.
    ///
    /// # Errors
    /// If the outcome of none of them can be reported.
    pub async fn publish_all(
        &self,
        events: impl IntoIterator<Item = Event>,
    ) -> Result<Vec<Result<Published, PublishError>>, StoreError> {
        let now = self.now();
        let prepared: Vec<_> = events.into_iter().map(|event| self.prepare_alone(event, now)).collect();
        let mut good: Vec<NewEvent> =
            prepared.iter().filter_map(|(_, new)| new.as_ref().ok().cloned()).collect();
        let places: Vec<_> = good.iter_mut().map(|new| self.0.slot(new)).collect();
        let mut answers = match self.0.store.publish(good).await {
            Ok(answers) => {
                places
                    .into_iter()
                    .zip(&answers)
                    .for_each(|(place, answer)| local_slots::answered(place, answer));
                answers.into_iter()
            }
            Err(error) => {
                let refused = Err(PublishError::Store(error.clone()));
                prepared.iter().for_each(|(queue, _)| observe::published(queue, &refused));
                return Err(error);
            }
        };
        let answer = |(queue, new): (observe::Name, Result<NewEvent, PublishError>)| {
            let closed = || Err(PublishError::Store(StoreError::Closed));
            let answer = new.and_then(|_| answers.next().unwrap_or_else(closed));
            observe::published(&queue, &answer);
            answer
        };
        Ok(prepared.into_iter().map(answer).collect())
    }

    /// Runs work in a transaction of the store's own domain: the caller's own tables, publishes and markers commit
    /// together or not at all.
    ///
    /// The work is synchronous and does database work only: every other commit waits for it, and it may run more than
    /// once.
    ///
    /// # Errors
    /// The work's own error, with everything rolled back; or if the store operation fails.
    pub async fn transact<T, E>(
        &self,
        work: impl FnMut(&mut Transaction<'_>) -> Result<T, E> + Send + 'static,
    ) -> Result<T, TransactError>
    where
        T: Send + 'static,
        E: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        transaction::transact(self, work).await
    }

    /// The state and the attempt history of an event, as long as its dedupe record is kept. `None`: the store never
    /// had it, or has forgotten it.
    ///
    /// # Errors
    /// If the store cannot be read.
    pub async fn event(
        &self,
        tenant: &str,
        queue: &str,
        id: &str,
    ) -> Result<Option<EventStatus>, StoreError> {
        let mut found = self.0.store.find(tenant, queue, id).await?;
        if let Some(found) = &mut found {
            self.mark_running(found).await;
        }
        Ok(found)
    }

    /// All events with an id, of all tenants and queues, including events that are done; the first hundred.
    ///
    /// # Errors
    /// If the store cannot be read.
    pub async fn events_by_id(&self, id: &str) -> Result<Vec<Named>, StoreError> {
        let mut all = self.0.store.find_by_id(id).await?;
        for named in &mut all {
            self.mark_running(&mut named.found).await;
        }
        Ok(all)
    }

    /// The names of all queues that the store knows.
    ///
    /// # Errors
    /// If the store cannot be read.
    pub async fn queue_names(&self) -> Result<Vec<String>, StoreError> {
        self.0.store.queue_names().await
    }

    /// Only the owner of a shard knows that an event runs.
    async fn mark_running(&self, found: &mut EventStatus) {
        if !found.state.is_ended() && found.state != State::Dead && self.is_running(found.seq).await {
            found.state = State::Running;
        }
    }

    /// A page of events, by state and filter. Events that run in this process say so. A query for running events lists
    /// them on the first page, before leased events.
    ///
    /// # Errors
    /// If the store cannot be read.
    pub async fn events(&self, query: EventQuery) -> Result<EventPage, StoreError> {
        let running = self.running().await;
        let mut listed = self.0.store.list(query.clone()).await?;
        if query.state == Some(State::Running) && query.after.is_none() {
            let fits = |entry: &&QueueEntry| query.filter.matches(subject(entry));
            let found = running.iter().filter(fits).map(|entry| (entry.event.clone(), running_found(entry)));
            listed.events.splice(0..0, found);
            return Ok(listed);
        }
        for (_, found) in &mut listed.events {
            let runs = running.iter().any(|entry| (entry.seq, entry.rev) == (found.seq, found.rev));
            if runs && matches!(found.state, State::Ready | State::Waiting) {
                found.state = State::Running;
            }
        }
        if let Some(state) = query.state {
            listed.events.retain(|(_, found)| found.state == state);
        }
        Ok(listed)
    }

    /// The first hundred dead letters of a queue: tenant by tenant, oldest first within a tenant. For more, call
    /// [`events`](Self::events) with [`EventQuery::after`].
    ///
    /// # Errors
    /// If the store cannot be read.
    pub async fn dead_letters(&self, queue: &str) -> Result<EventPage, StoreError> {
        let query =
            EventQuery { filter: Filter::queue(queue), state: Some(State::Dead), ..EventQuery::default() };
        self.events(query).await
    }

    /// How many events there are, by queue and state.
    ///
    /// # Errors
    /// If the store cannot be read.
    pub async fn counts(&self) -> Result<Vec<redrive_store::EventCount>, StoreError> {
        let mut running: BTreeMap<String, u64> = BTreeMap::new();
        for entry in self.running().await {
            *running.entry(entry.event.queue.clone()).or_default() += 1;
        }
        let mut counts = self.0.store.count(self.now()).await?;
        // The store counts events that run here among the ready ones.
        for (queue, mut runs) in running {
            for count in counts.iter_mut().filter(|count| count.queue == queue && count.state == State::Ready)
            {
                runs = runs.min(count.events);
                count.events -= runs;
            }
            match counts.iter_mut().find(|count| count.queue == queue && count.state == State::Running) {
                Some(count) => count.events += runs,
                None => counts.push(redrive_store::EventCount { queue, state: State::Running, events: runs }),
            }
        }
        counts.retain(|count| count.events > 0);
        counts.sort_by(|a, b| (&a.queue, a.state).cmp(&(&b.queue, b.state)));
        Ok(counts)
    }

    /// Takes ownership of the shards and begins to run handlers. Publishing works without it.
    ///
    /// # Errors
    /// [`StoreError::NotOwner`] if another process runs the handlers.
    pub async fn start(&self) -> Result<(), StartError> {
        driver::start(self).await
    }

    /// Stops: no new attempts start, running ones get `grace`, the rest are abandoned without being charged, and the
    /// store is closed. Unfinished events continue after the next start.
    ///
    /// # Errors
    /// If the store could not be closed cleanly. Nothing is lost in that case either.
    pub async fn shutdown(&self, grace: Duration) -> Result<StopReport, StoreError> {
        run::shutdown(self, grace).await
    }

    /// The first half of a [`shutdown`](Self::shutdown): no new attempts start, and running ones get `grace`. The
    /// store stays open, so publishers and workers with leases go on.
    pub async fn drain(&self, grace: Duration) -> StopReport {
        run::drain(self, grace).await
    }

    /// Starts if necessary, runs until Ctrl-C or SIGTERM, then shuts down with `grace`. A second signal stops at once.
    ///
    /// # Errors
    /// As [`start`](Self::start) and [`shutdown`](Self::shutdown), and if the store failed meanwhile.
    pub async fn run_until_signal(&self, grace: Duration) -> Result<StopReport, StartError> {
        run::until_signal(self, grace).await
    }

    /// Waits until nothing is due: no attempt is running, nothing is to be written or loaded. Events that wait for a
    /// later time, such as a retry, do not count. Returns at once before the start.
    pub async fn idle(&self) {
        if let Some(driver) = self.0.driver.get() {
            driver.idle().await;
        }
    }

    /// How many shards had an event to run, stood still, and have started nothing since. Above zero is a bug: the
    /// engine logs it and takes the shard again.
    #[must_use]
    pub fn stalled_shards(&self) -> usize {
        self.0.stalled.load(std::sync::atomic::Ordering::Acquire)
    }

    /// Makes all shards forget their work, as a bug would. For tests of the watchdog.
    #[doc(hidden)]
    pub async fn stall(&self) {
        let Some(driver) = self.0.driver.get() else { return };
        // The driver answers after all arrivals that were there before.
        driver.running().await;
        for shard in 0..self.0.store.shards() {
            let _ = driver.commands.send(control::Command::Stall(shard));
        }
    }

    /// Waits until the engine stops by itself, which happens only if the store fails.
    pub async fn failed(&self) -> StoreError {
        match self.0.driver.get() {
            Some(driver) => driver.failed().await,
            None => std::future::pending().await,
        }
    }

    /// Prepares an event for the store, with the lineage of the handler that publishes it, if any.
    fn prepare(&self, mut event: Event, now: Moment) -> (observe::Name, Result<NewEvent, PublishError>) {
        lineage::inherit(&mut event);
        (observe::name_of(&event), self.0.queues.prepare(event, now))
    }

    pub(crate) fn is_started(&self) -> bool {
        self.0.driver.get().is_some()
    }

    /// The present moment by the clock of events: the time of day, or the store's own clock if several processes share
    /// the store.
    #[must_use]
    pub fn now(&self) -> Moment {
        self.0.clock.now()
    }

    #[cfg(feature = "api")]
    pub(crate) fn follow(&self) {
        self.0.clock.follow();
    }

    pub(crate) fn pass(&self, time: Duration) {
        self.0.clock.pass(time);
    }

    pub(crate) fn store(&self) -> &Arc<dyn Store> {
        &self.0.store
    }

    /// The events that run in this process.
    async fn running(&self) -> Vec<QueueEntry> {
        match self.0.driver.get() {
            Some(driver) => driver.running().await,
            None => Vec::new(),
        }
    }

    /// Waits until this process follows all earlier commands.
    async fn heed(&self) {
        if let Some(driver) = self.0.driver.get() {
            driver.heed().await;
        }
    }

    async fn is_running(&self, seq: Seq) -> bool {
        match self.0.driver.get() {
            Some(driver) => driver.is_running(seq).await,
            None => false,
        }
    }
}

fn subject(entry: &QueueEntry) -> FilterSubject<'_> {
    let QueueEntry { event, published, progress, .. } = entry;
    let history = progress.history.as_deref();
    FilterSubject { event, at: *published, attempts: progress.attempts, cause: None, reason: None, history }
}

/// The status of an event that runs in this process.
fn running_found(entry: &QueueEntry) -> EventStatus {
    let QueueEntry { seq, rev, published, progress, .. } = entry;
    EventStatus {
        rev: *rev,
        due: Some(progress.due),
        attempts: progress.attempts,
        history: progress.history.clone(),
        route: progress.route.as_deref().map(str::to_owned),
        ..EventStatus::new(*seq, State::Running, *published)
    }
}

/// The answer to a publish of one event.
fn only(answers: Vec<Result<Published, PublishError>>) -> Result<Published, PublishError> {
    answers.into_iter().next().unwrap_or(Err(PublishError::Store(StoreError::Closed)))
}

/// Decodes a payload as JSON; for [`QueueBuilder::handle_typed`].
///
/// # Errors
/// If the payload is not JSON, or not of that shape.
pub fn json<T: serde::de::DeserializeOwned>(event: &Event) -> Result<T, serde_json::Error> {
    serde_json::from_slice(&event.payload)
}
