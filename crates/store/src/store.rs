//! The contract of a store, and what passes between a store and its callers.
//!
//! # The parts
//!
//! | part | a store with it can |
//! |---|---|
//! | [`EventStore`] | take events in, hand them to the owner of their shard, show them |
//! | [`SettleStore`] | commit the outcomes of attempts, in the engine, in a transaction, under a lease |
//! | [`ShardStore`] | say which process owns which shard |
//! | [`OperatorStore`] | show operators dead letters, and carry out their commands |
//! | [`LedgerStore`] | keep the idempotency records of an HTTP API |
//!
//! [`Store`] is all of them. `redrive_testkit::conformance` has a function for every promise below. The guide for a new
//! store is `docs/internals/new-store.md`.
//!
//! # Guarantees of every store
//!
//! **Identity.** `(tenant, queue, id)` is unique over all identities that the store remembers, at publish, under
//! concurrency. Publishing an identity again returns what happened to the first event, and never makes a second one;
//! with another payload it is refused. The store remembers an identity at least until the later of *published + horizon
//! + window* and *settled + window*, and as long as its event lives.
//!
//! **Durability.** A change that was answered with `Ok` survives a crash of the process and of the machine, as far as
//! the [`Domain`] does. After [`StoreError::Unknown`] the outcome is unknown.
//!
//! **Order.** The head of `(tenant, queue, key)` is its smallest living seq, whatever its due time; a dead letter
//! counts while it parks its key. [`EventStore::load`] and [`Arrivals`] hand out a keyed event only if it is the head.
//! The next event of a key is handed out only by the commit that settled the one before, or by a load whose snapshot
//! includes that commit.
//!
//! **Fence.** A settle changes an event only while the event has the `rev` that the settle names, and in the same
//! commit the shard has the epoch and incarnation of the settle's [`FencingToken`].
//!
//! **Arrivals.** After every commit that made events runnable, the store reports them to its watcher, or reports that
//! the watcher missed some. It reports an arrival before it answers any settle that commits later, so an engine never
//! learns of an event after its end. A load finds every runnable event, whatever its seq.
//!
//! **Commands.** An operator's command commits with its line in the audit. The identity of an event never changes: a
//! redrive keeps it, a reroute keeps queue, order and dedupe record, an edit replaces the original in the same commit.
//! If a command takes an event from an owner, the store notifies the owner with a *recall*.
//!
//! **Leases** are settled by attempt; see [`LeaseSettleResult`](crate::lease::LeaseSettleResult).
//!
//! **Atomicity.** Each item of a call is one commit. A store may split a batch, but never an item.

use std::any::Any;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use redrive_core::event::{Fingerprint, identity};
use redrive_core::planted::{PlantedBug, has};
#[cfg(doc)]
use redrive_core::queue_entry::FencingToken;
pub use redrive_core::queue_entry::{LoadRequest, LoadedEvents, OverdueDeadLetter, TakenShard};
use redrive_core::queue_entry::{QueueEntry, Seq, StreamId};
use redrive_core::{Event, Moment};

use crate::error::StoreError;
use crate::event_status::EventStatus;
use crate::ledger::LedgerStore;
use crate::stats::CommitAndDiskStats;

mod events;

mod settle;

mod shards;

mod operate;

pub use events::EventStore;
pub use operate::OperatorStore;
pub use settle::SettleStore;
pub use shards::ShardStore;

/// The future that a method of a store returns. It needs no particular runtime. Work begins when it is first polled at
/// the latest, and dropping it does not undo the work.
pub type StoreFuture<T> = Pin<Box<dyn Future<Output = Result<T, StoreError>> + Send>>;

/// The domain in which a marker and its effect commit together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Domain {
    /// This process; nothing outlives it.
    Memory,
    /// This SQLite file.
    File(std::path::PathBuf),
    /// This PostgreSQL database: its address, and the schema in it.
    Database(String),
}

impl fmt::Display for Domain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Memory => f.write_str("this process"),
            Self::File(path) => write!(f, "the SQLite file {}", path.display()),
            Self::Database(place) => write!(f, "the PostgreSQL database {place}"),
        }
    }
}

/// A queue's declaration in the store. Durable: processes that publish read it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct QueueSpec {
    /// Its name.
    pub name: String,
    /// Whether events of one ordering key keep their order. Otherwise keys are stored, and have no effect.
    pub ordered: bool,
    /// How long an identity is remembered after its event ended.
    pub window: Duration,
    /// The longest time until the policy's last retry can still start.
    pub horizon: Duration,
    /// Whether its events are leased to workers outside the engine, and run by no handler here.
    pub pull: bool,
    /// How long and how many of its dead letters are kept.
    pub keep: DeadLetterRetention,
}

/// How long and how many dead letters are kept. A dead letter that blocks its key is always kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct DeadLetterRetention {
    /// How long after its death. `None`: until an operator resolves it.
    pub time: Option<Duration>,
    /// How many in a queue, oldest removed first. `None`: any number.
    pub count: Option<u64>,
}

/// Which process declares a queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeclaredBy {
    /// The process that runs it: its declaration counts.
    Runner,
    /// A process that only publishes: its declaration counts if there is none yet.
    Publisher,
}

/// An event to publish.
#[derive(Debug, Clone)]
pub struct NewEvent {
    /// The event.
    pub event: Arc<Event>,
    /// The fingerprint of its content.
    pub fingerprint: Fingerprint,
    /// The moment of publishing.
    pub at: Moment,
    /// The policy's horizon for this event, if it has a policy override. Ignored if it is shorter than the queue's.
    pub horizon: Option<Duration>,
    /// A shard in which it would run at once, if its publisher knows one. A hint; see [`NewEvent::shard`].
    pub local_shard: Option<u32>,
}

impl NewEvent {
    /// An event, published at `at`.
    #[must_use]
    pub fn at(event: Event, at: Moment) -> Self {
        let fingerprint = Fingerprint::of(&event);
        Self { event: Arc::new(event), fingerprint, at, horizon: None, local_shard: None }
    }

    /// The shard in which it is stored, of `shards`.
    ///
    /// The order of a key needs the shard of its hash: one owner must see all events of the key. An event without a
    /// key may be in any shard: its identity is unique over all of them, its row names its shard, and the owner of
    /// that shard hands it out. So it goes where its publisher prefers. If the shard has changed owners meanwhile, the
    /// event runs there.
    #[must_use]
    pub fn shard(&self, shards: u32) -> u32 {
        let is_free = self.event.key.is_none() || has(PlantedBug::KeysGoNear);
        let local_shard = self.local_shard.filter(|local_shard| is_free && *local_shard < shards);
        local_shard.unwrap_or_else(|| identity::shard(&self.event, shards))
    }
}

/// The answer to a publish.
#[derive(Debug, Clone, PartialEq)]
pub enum Published {
    /// It is stored, and will be attempted.
    Accepted(Seq),
    /// It was published before: this is its present state.
    Duplicate(Box<EventStatus>),
}

/// Answers to publishers that wait for a commit. They are given when this is dropped.
///
/// A store has a thread of its own. Waking tasks from there one by one costs more than the tasks do: each time a
/// worker of the runtime wakes up, finds one task, and goes to sleep again. The watcher is a task of the runtime: it
/// is woken once for the whole commit, and wakes the others from within.
#[derive(Default)]
pub struct PendingReplies(Option<Box<dyn FnOnce() + Send>>);

impl PendingReplies {
    /// Answers that `give` gives.
    pub fn new(give: impl FnOnce() + Send + 'static) -> Self {
        Self(Some(Box::new(give)))
    }

    /// Whether there are none.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.0.is_none()
    }
}

impl Drop for PendingReplies {
    fn drop(&mut self) {
        if let Some(give) = self.0.take() {
            give();
        }
    }
}

impl fmt::Debug for PendingReplies {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.is_empty() { "Answers(none)" } else { "Answers(some)" })
    }
}

/// Events that became runnable.
#[derive(Debug, Default)]
pub struct Arrivals {
    /// Events that may run, now or when they are due.
    pub entries: Vec<QueueEntry>,
    /// Whether there are more, from this process or another, that are not in `entries`.
    pub missed: bool,
    /// Whether a command may have taken events from the owner: it must read the rules again, and reload events that
    /// are in memory and have not started.
    pub recall: bool,
    /// Streams with missed events, with their queues' names and tenants: one of them may be new.
    pub streams: Vec<(StreamId, String, String)>,
    /// Answers to publishers that wait for the commit: drop them soon.
    pub answers: PendingReplies,
}

/// Notified of arrivals. The store's own thread calls it after the commit: it must be quick and must not block.
pub type Watcher = Arc<dyn Fn(Arrivals) + Send + Sync>;

/// A store of events, dedupe records and idempotency records.
///
/// The contract comes in parts, so that a new store can be written and tested part by part: first [`EventStore`] and
/// [`SettleStore`] with the shards of one owner ([`ShardStore`]), then [`OperatorStore`], then the [`LedgerStore`].
pub trait Store:
    EventStore + SettleStore + OperatorStore + ShardStore + LedgerStore + Any + fmt::Debug + Send + Sync
{
    /// The domain in which marker and effect commit together.
    fn domain(&self) -> Domain;

    /// The latest moment that an earlier process is known to have reached, to within half a minute. A clock behind it
    /// has been set back, or was never set. `None` if the store has a clock of its own, or is new.
    fn newest(&self) -> Option<Moment> {
        None
    }

    /// Statistics since the store was opened, if it has any. Costs nothing.
    fn figures(&self) -> CommitAndDiskStats {
        CommitAndDiskStats::default()
    }

    /// Writes a copy as of one moment to a file that does not exist yet, while calls go on. The copy is a store of its
    /// own, with an incarnation of its own.
    ///
    /// # Errors
    /// If the file exists, or the store does not support backups.
    fn backup(&self, to: std::path::PathBuf) -> StoreFuture<()> {
        let what = format!("{} cannot be copied to {}", self.domain(), to.display());
        Box::pin(std::future::ready(Err(StoreError::Broken { what, source: None })))
    }

    /// Deletes a bounded number of expired rows; returns how many. Call it now and then. It deletes expired dedupe
    /// records and markers, discarded events with their dedupe records, dead letters beyond what their queue
    /// [keeps](DeadLetterRetention) (their dedupe records then say `discarded`), expired rules, and requests whose answers have
    /// expired.
    fn forget(&self, now: Moment) -> StoreFuture<usize>;

    /// Closes the store: accepted calls are written, then files are closed. Later calls fail with
    /// [`StoreError::Closed`].
    fn close(&self) -> StoreFuture<()>;
}
