//! The engine without async: the same words, and each call waits.
//!
//! It brings a runtime of its own, with two threads, that ends with it. Handlers are plain functions on threads
//! that may block ([`QueueBuilder::handle_blocking`]) or run in the store's transaction
//! ([`QueueBuilder::handle_in`]). Not to be called from async code, which would wait on its own thread: use
//! [`engine::Redrive`](super::Redrive) there.
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
use redrive_store::{Count, Found, Listed, PublishError, Published, Query, StoreError};
use tokio::runtime::Runtime;

use super::{QueueBuilder, StartError, Stopping, TransactError, Transaction};

/// An open store with its queues, without async. Clones are the same one.
#[derive(Debug, Clone)]
pub struct Redrive {
    runtime: Arc<Runtime>,
    inner: super::Redrive,
}

impl Redrive {
    /// As [`engine::Redrive::open`](super::Redrive::open).
    ///
    /// # Errors
    /// With what is in the way.
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

    /// Waits for anything that is async: what the end of a queue's set-up is.
    pub fn wait<F: Future>(&self, future: F) -> F::Output {
        self.runtime.block_on(future)
    }

    /// A queue to set up; hand what its last word gives to [`wait`](Self::wait).
    pub fn queue(&self, name: impl Into<String>) -> QueueBuilder {
        self.inner.queue(name)
    }

    /// Publishes an event. When this returns, it is kept.
    ///
    /// # Errors
    /// As [`engine::Redrive::publish`](super::Redrive::publish).
    pub fn publish(&self, event: Event) -> Result<Published, PublishError> {
        self.wait(self.inner.publish(event))
    }

    /// Publishes several events, in their order, with an answer for each.
    ///
    /// # Errors
    /// Where nothing can be said of any of them.
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

    /// Where an event is and what happened to it.
    ///
    /// # Errors
    /// Where the store cannot be read.
    pub fn event(&self, tenant: &str, queue: &str, id: &str) -> Result<Option<Found>, StoreError> {
        self.wait(self.inner.event(tenant, queue, id))
    }

    /// A page of events, by queue, tenant and state.
    ///
    /// # Errors
    /// Where the store cannot be read.
    pub fn events(&self, query: Query) -> Result<Listed, StoreError> {
        self.wait(self.inner.events(query))
    }

    /// A page of the dead letters of a queue.
    ///
    /// # Errors
    /// Where the store cannot be read.
    pub fn dead_letters(&self, queue: &str) -> Result<Listed, StoreError> {
        self.wait(self.inner.dead_letters(queue))
    }

    /// How many events there are, by queue and state.
    ///
    /// # Errors
    /// Where the store cannot be read.
    pub fn counts(&self) -> Result<Vec<Count>, StoreError> {
        self.wait(self.inner.counts())
    }

    /// Takes ownership and begins to run handlers.
    ///
    /// # Errors
    /// Where another process runs them.
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
    pub fn run_until_signal(&self, grace: Duration) -> Result<Stopping, StartError> {
        self.wait(self.inner.run_until_signal(grace))
    }

    /// Stops: no new attempts, those under way get `grace`.
    ///
    /// # Errors
    /// Where the store could not be closed cleanly.
    pub fn shutdown(&self, grace: Duration) -> Result<Stopping, StoreError> {
        self.wait(self.inner.shutdown(grace))
    }

    /// The same one, for async code.
    #[must_use]
    pub const fn inner(&self) -> &super::Redrive {
        &self.inner
    }
}
