//! Events: publishing, loading and reading them.

use redrive_core::Moment;
use redrive_core::queue_entry::{LoadRequest, LoadedEvents};

use super::{DeclaredBy, NewEvent, Published, QueueSpec, StoreFuture, Watcher};
use crate::error::PublishError;
use crate::event_status::{EventCount, EventPage, EventQuery, EventStatus, Named};

/// The part of a [`Store`](super::Store) that takes events in, hands them to the owner of their shard, and shows them.
pub trait EventStore {
    /// Declares a queue, or changes its declaration, as far as `by` may.
    fn declare(&self, queue: QueueSpec, by: DeclaredBy) -> StoreFuture<()>;

    /// Publishes events: each with its dedupe record, in one commit. The order of the list is the order of seqs.
    ///
    /// Each item has an answer of its own; the outer error applies to all of them.
    fn publish(&self, events: Vec<NewEvent>) -> StoreFuture<Vec<Result<Published, PublishError>>>;

    /// Loads the due events of a stream, for the owner of its shard: only the heads of keys.
    fn load(&self, load: LoadRequest) -> StoreFuture<LoadedEvents>;

    /// Sets the watcher, which is notified of arrivals. There is one at a time: a new one replaces the last.
    fn watch(&self, watcher: Watcher);

    /// Finds an event by its identity.
    fn find(&self, tenant: &str, queue: &str, id: &str) -> StoreFuture<Option<EventStatus>>;

    /// Finds all events with an id, of all tenants and queues, including events that are done; the first hundred.
    fn find_by_id(&self, id: &str) -> StoreFuture<Vec<Named>>;

    /// The names of all declared queues.
    fn queue_names(&self) -> StoreFuture<Vec<String>>;

    /// Lists events by state, a page at a time.
    fn list(&self, query: EventQuery) -> StoreFuture<EventPage>;

    /// Counts events by queue and state.
    fn count(&self, now: Moment) -> StoreFuture<Vec<EventCount>>;

    /// Since when the oldest unfinished event of each queue is due. Running events count, and events of a paused queue;
    /// leased and quarantined ones do not.
    fn oldest_due(&self, now: Moment) -> StoreFuture<Vec<(String, Moment)>>;
}
