//! The engine: durable events, attempted until they succeed or die.
//!
//! A [`Redrive`] is a store with queues on it. Publishing writes an event and its receipt in one commit; from
//! then on the event is attempted by its queue's handler until it is done, dropped, expired, or a dead letter
//! with its whole story. Everything is decided by the scheduler in `redrive-core`; what is here waits, calls
//! and writes.
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
//! # What is promised, and where
//!
//! *In the store's domain* (this SQLite file, this PostgreSQL database) the effect of a transactional handler happens once: effect and
//! settle are one commit. *Outside of it* an attempt may run more than once: after a crash, a time-out, a lost
//! answer. Every attempt therefore carries [`Delivery::idempotency_key`], the same over all attempts, and
//! [`Delivery::token`] `(epoch, seq)`, by which a receiver can refuse what is older than what it has seen.

use std::sync::atomic::AtomicBool;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use redrive_core::entry::{Entry, Seq};
use redrive_core::event::State;
use redrive_core::near::Near;
use redrive_core::triage::{Filter, Subject};
use redrive_core::{Event, Moment};
use redrive_store::{Found, Listed, New, PublishError, Published, Query, Store, StoreError};

mod baton;
pub mod blocking;
mod builder;
mod clerk;
mod clock;
mod conductor;
mod context;
mod delivery;
pub mod desk;
mod error;
mod gauge;
mod giving;
mod handler;
pub mod lease;
#[cfg(feature = "postgres")]
mod lent;
mod line;
mod lineage;
mod missed;
mod near;
mod observe;
mod open;
mod perform;
mod queue;
mod reply;
mod run;
mod sqlstate;
mod transaction;

pub use crate::address::shown;
pub use builder::QueueBuilder;
pub use clock::Timepiece;
pub use delivery::Delivery;
pub use desk::Desk;
pub use error::{QueueError, StartError, TransactError};
pub use gauge::Pressure;
#[cfg(feature = "postgres")]
pub use lent::Inbox;
pub use open::Options;
pub use redrive_core::scheduler::AfterDead;
pub use redrive_store::Memory;
pub use reply::{Failure, IntoReply, Reply};
pub use run::Stopping;
pub use transaction::Transaction;

use baton::Conductor;
use queue::Queues;

/// An open store with its queues. Clones are the same one.
#[derive(Clone, Debug)]
pub struct Redrive(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    store: Arc<dyn Store>,
    clock: Arc<Timepiece>,
    seed: Option<u64>,
    queues: Arc<Queues>,
    /// Whether it was started, or is about to be.
    starting: AtomicBool,
    conductor: OnceLock<Conductor>,
    /// What could run here at once, where the store is shared with other processes.
    near: OnceLock<Arc<Near>>,
    /// Tells the clerk that there is something new about a job.
    clerk: Arc<tokio::sync::Notify>,
}

impl Redrive {
    /// Opens a store, and makes it if it is not there.
    ///
    /// | address | is |
    /// |---|---|
    /// | `sqlite:orders.db` | a file, durable; its directory must exist |
    /// | `postgres://user@host/shop` | a PostgreSQL database, in a schema of its own, for many processes; what the URL does not say is from the `PG…` variables |
    /// | `memory:` | this process' memory, for tests |
    ///
    /// # Errors
    /// With what is in the way: no such directory or database, a wrong password, a newer schema.
    pub async fn open(address: &str) -> Result<Self, StoreError> {
        Options::new().open(address).await
    }

    pub(crate) fn over(store: Arc<dyn Store>, clock: Timepiece, seed: Option<u64>) -> Self {
        let queues = Arc::default();
        let clock = Arc::new(clock);
        Self(Arc::new(Inner {
            store,
            clock,
            seed,
            queues,
            starting: AtomicBool::new(false),
            conductor: OnceLock::new(),
            near: OnceLock::new(),
            clerk: Arc::default(),
        }))
    }

    /// Where effect and settle commit together, in words.
    #[must_use]
    pub fn domain(&self) -> String {
        self.0.store.domain().to_string()
    }

    /// A queue to set up. It exists once [`handle`](QueueBuilder::handle) or
    /// [`declare`](QueueBuilder::declare) is awaited.
    pub fn queue(&self, name: impl Into<String>) -> QueueBuilder {
        QueueBuilder::new(self.clone(), name.into())
    }

    /// Publishes an event. When this returns, it is kept.
    ///
    /// The same identity again gives [`Published::Duplicate`] with what became of the first.
    ///
    /// # Errors
    /// [`PublishError::IdReused`] for the same id with another payload; see [`PublishError::is_transient`]
    /// for what may be tried again. After [`StoreError::Unknown`] publish the same id again to find out.
    pub async fn publish(&self, event: Event) -> Result<Published, PublishError> {
        let (queue, new) = self.prepare(event, self.now());
        let answer = match new {
            Ok(mut new) => {
                let place = self.0.place(&mut new);
                let answers = self.0.store.publish(vec![new]).await;
                let answer = answers.map_err(PublishError::from).and_then(only);
                near::answered(place, &answer);
                answer
            }
            Err(error) => Err(error),
        };
        observe::published(&queue, &answer);
        answer
    }

    /// Publishes several events, in their order, with an answer for each.
    ///
    /// # Errors
    /// Where nothing can be said of any of them.
    pub async fn publish_all(
        &self,
        events: impl IntoIterator<Item = Event>,
    ) -> Result<Vec<Result<Published, PublishError>>, StoreError> {
        let now = self.now();
        let prepared: Vec<_> = events.into_iter().map(|event| self.prepare(event, now)).collect();
        let mut good: Vec<New> = prepared.iter().filter_map(|(_, new)| new.as_ref().ok().cloned()).collect();
        let places: Vec<_> = good.iter_mut().map(|new| self.0.place(new)).collect();
        let mut answers = match self.0.store.publish(good).await {
            Ok(answers) => {
                places.into_iter().zip(&answers).for_each(|(place, answer)| near::answered(place, answer));
                answers.into_iter()
            }
            Err(error) => {
                let refused = Err(PublishError::Store(error.clone()));
                prepared.iter().for_each(|(queue, _)| observe::published(queue, &refused));
                return Err(error);
            }
        };
        let answer = |(queue, new): (observe::Name, Result<New, PublishError>)| {
            let closed = || Err(PublishError::Store(StoreError::Closed));
            let answer = new.and_then(|_| answers.next().unwrap_or_else(closed));
            observe::published(&queue, &answer);
            answer
        };
        Ok(prepared.into_iter().map(answer).collect())
    }

    /// Runs work in a transaction of the store's own domain: the caller's own tables, publishes and markers
    /// commit together or not at all.
    ///
    /// The work is synchronous and does database work only: it holds up everybody's commit, and it may run
    /// more than once.
    ///
    /// # Errors
    /// With the work's own error, and everything rolled back; or where the store could not.
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

    /// Where an event is and what happened to it, for as long as its receipt lives. `None`: there never was
    /// one, or it is forgotten.
    ///
    /// # Errors
    /// Where the store cannot be read.
    pub async fn event(&self, tenant: &str, queue: &str, id: &str) -> Result<Option<Found>, StoreError> {
        let mut found = self.0.store.find(tenant, queue, id).await?;
        if let Some(found) = &mut found
            && !found.state.is_ended()
            && found.state != State::Dead
            && self.is_running(found.seq).await
        {
            found.state = State::Running;
        }
        Ok(found)
    }

    /// A page of events, by state and filter. Those that run here say so; asked for by that state, they are on the
    /// first page, before those that were leased.
    ///
    /// # Errors
    /// Where the store cannot be read.
    pub async fn events(&self, query: Query) -> Result<Listed, StoreError> {
        let running = self.running().await;
        let mut listed = self.0.store.list(query.clone()).await?;
        if query.state == Some(State::Running) && query.after.is_none() {
            let fits = |entry: &&Entry| query.filter.matches(subject(entry));
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

    /// The first hundred dead letters of a queue: tenant by tenant, each one's oldest first. For the next ones ask
    /// [`events`](Self::events) with [`Query::after`].
    ///
    /// # Errors
    /// Where the store cannot be read.
    pub async fn dead_letters(&self, queue: &str) -> Result<Listed, StoreError> {
        let query = Query { filter: Filter::queue(queue), state: Some(State::Dead), ..Query::default() };
        self.events(query).await
    }

    /// How many events there are, by queue and state.
    ///
    /// # Errors
    /// Where the store cannot be read.
    pub async fn counts(&self) -> Result<Vec<redrive_store::Count>, StoreError> {
        self.0.store.count(self.now()).await
    }

    /// Takes ownership and begins to run handlers. Publishing needs none of this.
    ///
    /// # Errors
    /// [`StoreError::NotOwner`] where another process runs them.
    pub async fn start(&self) -> Result<(), StartError> {
        conductor::start(self).await
    }

    /// Stops: no new attempts, those under way get `grace`, then what is left is given up without being
    /// charged, and the store is closed. What was published and not done goes on after the next start.
    ///
    /// # Errors
    /// Where the store could not be closed cleanly. Nothing is lost then either.
    pub async fn shutdown(&self, grace: Duration) -> Result<Stopping, StoreError> {
        run::shutdown(self, grace).await
    }

    /// The first half of a [`shutdown`](Self::shutdown): no new attempts, and those under way get `grace`. The store
    /// stays open, for whoever still publishes or leases.
    pub async fn drain(&self, grace: Duration) -> Stopping {
        run::drain(self, grace).await
    }

    /// Starts if that was not done, runs until Ctrl-C or SIGTERM, then shuts down with `grace`. A second
    /// signal stops at once.
    ///
    /// # Errors
    /// As [`start`](Self::start) and [`shutdown`](Self::shutdown), and where the store failed meanwhile.
    pub async fn run_until_signal(&self, grace: Duration) -> Result<Stopping, StartError> {
        run::until_signal(self, grace).await
    }

    /// Waits until nothing is due: no attempt under way, nothing to be written or loaded. Events that wait
    /// for a later time, a retry among them, do not count. Before the start there is nothing to wait for.
    pub async fn idle(&self) {
        if let Some(conductor) = self.0.conductor.get() {
            conductor.idle().await;
        }
    }

    /// Waits until the engine stops by itself, which it does only when the store failed.
    pub async fn failed(&self) -> StoreError {
        match self.0.conductor.get() {
            Some(conductor) => conductor.failed().await,
            None => std::future::pending().await,
        }
    }

    /// Makes an event ready for the store, with the lineage of the handler that publishes it, if one does.
    fn prepare(&self, mut event: Event, now: Moment) -> (observe::Name, Result<New, PublishError>) {
        lineage::inherit(&mut event);
        (observe::name_of(&event), self.0.queues.prepare(event, now))
    }

    pub(crate) fn is_started(&self) -> bool {
        self.0.conductor.get().is_some()
    }

    /// The present moment by the clock that events go by: the time of day, or the store's own where several processes
    /// share it.
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

    /// The events that run here.
    async fn running(&self) -> Vec<Entry> {
        match self.0.conductor.get() {
            Some(conductor) => conductor.running().await,
            None => Vec::new(),
        }
    }

    /// Waits until what was ordered before is heeded here.
    async fn heed(&self) {
        if let Some(conductor) = self.0.conductor.get() {
            conductor.heed().await;
        }
    }

    async fn is_running(&self, seq: Seq) -> bool {
        match self.0.conductor.get() {
            Some(conductor) => conductor.is_running(seq).await,
            None => false,
        }
    }
}

fn subject(entry: &Entry) -> Subject<'_> {
    let Entry { event, published, progress, .. } = entry;
    let story = progress.story.as_deref();
    Subject { event, at: *published, attempts: progress.attempts, cause: None, reason: None, story }
}

/// What is known of an event that runs here.
fn running_found(entry: &Entry) -> Found {
    let Entry { seq, rev, published, progress, .. } = entry;
    Found {
        rev: *rev,
        due: Some(progress.due),
        attempts: progress.attempts,
        story: progress.story.clone(),
        route: progress.route.as_deref().map(str::to_owned),
        ..Found::new(*seq, State::Running, *published)
    }
}

/// The answer where there is to be one.
fn only(answers: Vec<Result<Published, PublishError>>) -> Result<Published, PublishError> {
    answers.into_iter().next().unwrap_or(Err(PublishError::Store(StoreError::Closed)))
}

/// Decodes a payload as JSON; for [`QueueBuilder::handle_typed`].
///
/// # Errors
/// Where it is not JSON, or not of that shape.
pub fn json<T: serde::de::DeserializeOwned>(event: &Event) -> Result<T, serde_json::Error> {
    serde_json::from_slice(&event.payload)
}
