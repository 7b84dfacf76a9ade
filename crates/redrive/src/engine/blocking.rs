//! The engine without async: the same API, and each call blocks.
//!
//! It has a runtime of its own with two threads, which ends with it. Handlers are plain functions on threads that may
//! block ([`QueueBuilder::handle_blocking`]) or run in the store's transaction ([`QueueBuilder::handle_in`]). Do not
//! call it from async code, which would block its own thread: use [`engine::Redrive`](super::Redrive) there.
//!
//! ```
//! use redrive::engine::blocking::Redrive;
//! use redrive::{Event, Failure};
//! use std::time::Duration;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let redrive = Redrive::open("memory:")?;
//! let queue = redrive.queue("orders");
//! redrive.wait(queue.handle_blocking(|order| {
//!     println!("{} is handled", order.id());
//!     Ok::<_, Failure>(())
//! }))?;
//! redrive.start()?;
//! redrive.publish(Event::new("orders", "order-17"))?;
//! redrive.idle();
//! redrive.shutdown(Duration::from_secs(5))?;
//! # Ok(())
//! # }
//! ```

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use redrive_core::Event;
use redrive_store::{EventCount, EventPage, EventQuery, EventStatus, PublishError, Published, StoreError};
use tokio::runtime::Runtime;

use super::{QueueBuilder, StartError, StopReport, TransactError, Transaction};

/// An open store with its queues, without async. Clones share it.
#[derive(Debug, Clone)]
pub struct Redrive {
    runtime: Arc<Runtime>,
    inner: super::Redrive,
}

impl Redrive {
    /// As [`engine::Redrive::open`](super::Redrive::open).
    ///
    /// # Errors
    /// If the store cannot be opened.
    pub fn open(address: &str) -> Result<Self, StoreError> {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .thread_name("redrive")
            .enable_all()
            .build()
            .map_err(|error| StoreError::Broken {
                what: "cannot start threads".to_owned(),
                source: Some(Arc::new(error)),
            })?;
        let inner = runtime.block_on(super::Redrive::open(address))?;
        Ok(Self { runtime: Arc::new(runtime), inner })
    }

    /// Blocks on a future, such as the last call of a queue's set-up.
    pub fn wait<F: Future>(&self, future: F) -> F::Output {
        self.runtime.block_on(future)
    }

    /// Begins to set up a queue; pass the future of its last call to [`wait`](Self::wait).
    pub fn queue(&self, name: impl Into<String>) -> QueueBuilder {
        self.inner.queue(name)
    }

    /// Publishes an event. When this returns, the event is durable.
    ///
    /// # Errors
    /// As [`engine::Redrive::publish`](super::Redrive::publish).
    pub fn publish(&self, event: Event) -> Result<Published, PublishError> {
        self.wait(self.inner.publish(event))
    }

    /// Publishes several events in order, with an answer for each.
    ///
    /// # Errors
    /// If the outcome of none of them can be reported.
    pub fn publish_all(
        &self,
        events: impl IntoIterator<Item = Event>,
    ) -> Result<Vec<Result<Published, PublishError>>, StoreError> {
        self.wait(self.inner.publish_all(events))
    }

    /// Runs work in a transaction of the store's own domain.
    ///
    /// # Errors
    /// As [`engine::Redrive::transact`](super::Redrive::transact).
    pub fn transact<T, E>(
        &self,
        work: impl FnMut(&mut Transaction<'_>) -> Result<T, E> + Send + 'static,
    ) -> Result<T, TransactError>
    where
        T: Send + 'static,
        E: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        self.wait(self.inner.transact(work))
    }

    /// The state and the attempt history of an event.
    ///
    /// # Errors
    /// If the store cannot be read.
    pub fn event(&self, tenant: &str, queue: &str, id: &str) -> Result<Option<EventStatus>, StoreError> {
        self.wait(self.inner.event(tenant, queue, id))
    }

    /// A page of events, by queue, tenant and state.
    ///
    /// # Errors
    /// If the store cannot be read.
    pub fn events(&self, query: EventQuery) -> Result<EventPage, StoreError> {
        self.wait(self.inner.events(query))
    }

    /// A page of the dead letters of a queue.
    ///
    /// # Errors
    /// If the store cannot be read.
    pub fn dead_letters(&self, queue: &str) -> Result<EventPage, StoreError> {
        self.wait(self.inner.dead_letters(queue))
    }

    /// How many events there are, by queue and state.
    ///
    /// # Errors
    /// If the store cannot be read.
    pub fn counts(&self) -> Result<Vec<EventCount>, StoreError> {
        self.wait(self.inner.counts())
    }

    /// Takes ownership of the shards and begins to run handlers.
    ///
    /// # Errors
    /// If another process runs the handlers.
    pub fn start(&self) -> Result<(), StartError> {
        self.wait(self.inner.start())
    }

    /// Waits until nothing is due.
    pub fn idle(&self) {
        self.wait(self.inner.idle());
    }

    /// Runs until Ctrl-C or SIGTERM, then shuts down with `grace`. A second signal stops at once.
    ///
    /// # Errors
    /// As [`engine::Redrive::run_until_signal`](super::Redrive::run_until_signal).
    pub fn run_until_signal(&self, grace: Duration) -> Result<StopReport, StartError> {
        self.wait(self.inner.run_until_signal(grace))
    }

    /// Stops: no new attempts start, running ones get `grace`.
    ///
    /// # Errors
    /// If the store could not be closed cleanly.
    pub fn shutdown(&self, grace: Duration) -> Result<StopReport, StoreError> {
        self.wait(self.inner.shutdown(grace))
    }

    /// The same engine, for async code.
    #[must_use]
    pub const fn inner(&self) -> &super::Redrive {
        &self.inner
    }
}
