//! The contract of a store.
//!
//! # What every store promises
//!
//! **Identity.** `(tenant, queue, id)` is unique over everything that is remembered, at publish, under
//! concurrency. Publishing it again gives what happened to the first, never a second event; with another
//! payload it is refused. An identity is remembered at least until the later of *published + horizon + window*
//! and *settled + window*, and as long as its event lives.
//!
//! **Durability.** What was answered with `Ok` is there after a crash of the process and of the machine (as
//! far as the [`Domain`] says). [`StoreError::Unknown`] means that it may or may not be.
//!
//! **Order.** The head of `(tenant, queue, key)` is its smallest living seq, whatever its due time; a dead
//! letter counts while it parks. [`Store::load`] and [`Arrivals`] hand out a keyed event only if it is the
//! head. The next of a key is handed out only by the commit that settled the one before, or by a load whose
//! snapshot has that commit in it.
//!
//! **Fence.** A settle changes something only while the event has the `rev` that it names, and in the same
//! commit the shard has the epoch and incarnation of its [`Grant`].
//!
//! **Arrivals.** After every commit that made events runnable, the watcher is told of them, or that something
//! was missed, but never nothing. An arrival is told before the answer to any settle that commits after it,
//! so that whoever hears both hears of no event after its end. A load finds everything runnable, whatever its
//! seq.
//!
//! **Orders.** What an operator does is committed with its line in the audit. The identity of an event never
//! changes: a redrive keeps it, a reroute keeps queue, order and receipt where they are, an edit takes the place
//! of the original in the same commit. What an order takes away from the owner is told as a *recall*.
//!
//! **Leases** are judged by their attempt; see [`LeaseSettled`].
//!
//! **Whole or not at all.** Each verb is one commit for each of its items; a batch may be split, an item is
//! not.

use std::any::Any;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use redrive_core::entry::{Entry, Grant, Seq, Settle, Settled, StreamId};
pub use redrive_core::entry::{Load, Loaded, Overdue, Taken};
use redrive_core::event::{Fingerprint, identity};
use redrive_core::planted::{Flaw, has};
use redrive_core::triage::{self, Controls, Filter, JobId};
use redrive_core::{Event, Moment};

use crate::error::{PublishError, StoreError};
use crate::figures::Figures;
use crate::found::{Count, Found, Listed, Matching, Query};
use crate::lease::{self, Lease, LeaseSettle, LeaseSettled, Leased};
use crate::ledger::Ledger;
use crate::nodes::{Nodes, Tenure};
use crate::operate::{Advance, AuditLine, Group, GroupQuery, Operated, Order};
use crate::transaction::{Job, Transacted};

/// What a verb gives: a future that needs no particular runtime. Work begins when it is first polled at the
/// latest, and dropping it does not undo it.
pub type Answer<T> = Pin<Box<dyn Future<Output = Result<T, StoreError>> + Send>>;

/// Where marker and effect commit together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Domain {
    /// This process; nothing outlives it.
    Memory,
    /// This SQLite file.
    File(std::path::PathBuf),
    /// This PostgreSQL database: where it is, and the schema in it.
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

/// What a store has to know of a queue. Durable: another process that publishes reads it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct QueueSpec {
    /// Its name.
    pub name: String,
    /// Whether events of one key keep their order. Otherwise keys are kept, and mean nothing.
    pub ordered: bool,
    /// How long an identity is remembered after its event ended.
    pub window: Duration,
    /// The longest time until the policy's last retry can still start.
    pub horizon: Duration,
    /// Whether its events are leased to workers outside the engine, and run by no handler here.
    pub pull: bool,
    /// How long and how many of its dead letters are kept.
    pub keep: Keep,
}

/// How long and how many dead letters are kept. One that holds up its key is kept whatever this says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Keep {
    /// How long after its death; until somebody has dealt with it where it is none.
    pub time: Option<Duration>,
    /// How many of a queue, the oldest going first; any number where it is none.
    pub count: Option<u64>,
}

/// Who declares a queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum By {
    /// Who runs it: its word counts.
    Runner,
    /// Who only publishes: its word counts where nobody has said anything.
    Publisher,
}

/// An event to publish.
#[derive(Debug, Clone)]
pub struct New {
    /// What.
    pub event: Arc<Event>,
    /// The fingerprint of what it says.
    pub fingerprint: Fingerprint,
    /// The moment of publishing.
    pub at: Moment,
    /// The policy's horizon for this event, where it has a tuning of its own. A shorter one than the queue's counts
    /// for nothing.
    pub horizon: Option<Duration>,
    /// A shard in which it would run at once, where its publisher knows of one. A wish; see [`New::shard`].
    pub near: Option<u32>,
}

impl New {
    /// An event, published at `at`.
    #[must_use]
    pub fn at(event: Event, at: Moment) -> Self {
        let fingerprint = Fingerprint::of(&event);
        Self { event: Arc::new(event), fingerprint, at, horizon: None, near: None }
    }

    /// The shard in which it is kept, of so many.
    ///
    /// What needs the shard of the hash is the order of a key: one owner must see all of it. An event without a key is
    /// found by no rule but by being in some shard: its identity is unique over all of them, whoever owns the shard
    /// hands it out, and its row says where it is. So it goes where its publisher wishes. That this owner is another
    /// one by now does no harm: the event runs there.
    #[must_use]
    pub fn shard(&self, shards: u32) -> u32 {
        let is_free = self.event.key.is_none() || has(Flaw::KeysGoNear);
        let near = self.near.filter(|near| is_free && *near < shards);
        near.unwrap_or_else(|| identity::shard(&self.event, shards))
    }
}

/// What became of a publish.
#[derive(Debug, Clone, PartialEq)]
pub enum Published {
    /// It is kept, and will be attempted.
    Accepted(Seq),
    /// It was published before: here is what became of it.
    Duplicate(Box<Found>),
}

/// Answers to those who wait for a commit. They are given when this is dropped.
///
/// A store has a thread of its own, and waking a task from there, one by one, costs more than the task does: each
/// time a worker of the runtime wakes up, finds one thing to do, and goes to sleep again. Whoever watches is a task
/// of the runtime, is woken once for the whole commit, and wakes the others from within.
#[derive(Default)]
pub struct Answers(Option<Box<dyn FnOnce() + Send>>);

impl Answers {
    /// Answers that this gives.
    pub fn new(give: impl FnOnce() + Send + 'static) -> Self {
        Self(Some(Box::new(give)))
    }

    /// Whether there are none.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.0.is_none()
    }
}

impl Drop for Answers {
    fn drop(&mut self) {
        if let Some(give) = self.0.take() {
            give();
        }
    }
}

impl fmt::Debug for Answers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.is_empty() { "Answers(none)" } else { "Answers(some)" })
    }
}

/// Events that became runnable.
#[derive(Debug, Default)]
pub struct Arrivals {
    /// Events that may run, now or when they are due.
    pub entries: Vec<Entry>,
    /// Whether there is more, from this process or another, that is not in `entries`.
    pub missed: bool,
    /// Whether an order may have taken something out of the owner's hands: rules are to be read again, and what
    /// is in memory and has not started is to be loaded again.
    pub recall: bool,
    /// Streams with their queues' names and tenants, where something was missed: one of them may be new.
    pub streams: Vec<(StreamId, String, String)>,
    /// Answers to those who wait for the commit: to be dropped soon.
    pub answers: Answers,
}

/// Told of arrivals. Called by the store's own thread after the commit: it must be quick and must not block.
pub type Watcher = Arc<dyn Fn(Arrivals) + Send + Sync>;

/// Where events and receipts are kept.
pub trait Store: Any + Ledger + fmt::Debug + Send + Sync {
    /// Where marker and effect commit together.
    fn domain(&self) -> Domain;

    /// How many shards there are. Fixed when the store is made.
    fn shards(&self) -> u32;

    /// Makes a queue known, or changes what is known of it, as far as that is the caller's to say.
    fn declare(&self, queue: QueueSpec, by: By) -> Answer<()>;

    /// Keeps events: receipt and event in one commit each. The order of the list is the order of seqs.
    ///
    /// Each item has an answer of its own; the outer error means that the fate of all is the same.
    fn publish(&self, events: Vec<New>) -> Answer<Vec<Result<Published, PublishError>>>;

    /// Takes a shard, raising its epoch: whatever the owner before still settles changes nothing.
    ///
    /// # Errors
    /// [`StoreError::NotOwner`] where another process owns it.
    fn take(&self, shard: u32, now: Moment) -> Answer<Taken>;

    /// Gives a shard back. Only what is released so counts as cleanly stopped; nothing may be under way.
    fn release(&self, grant: Grant) -> Answer<()>;

    /// Gives a shard back to whoever shares the store, and not as cleanly stopped: the next owner is to be careful.
    /// Where nobody shares it, nothing is to be said.
    fn abandon(&self, grant: Grant) -> Answer<()> {
        let _ = grant;
        Box::pin(std::future::ready(Ok(())))
    }

    /// This process among those that share the store; none where there is one owner at a time.
    fn tenure(&self) -> Option<Arc<Tenure>> {
        None
    }

    /// Tells those that share the store whether this process runs handlers, and wants a share of the shards.
    fn enlist(&self, runs: bool) -> Answer<()> {
        let _ = runs;
        Box::pin(std::future::ready(Ok(())))
    }

    /// Those that share the store, and who owns what; none where there is one owner at a time.
    fn nodes(&self) -> Answer<Option<Nodes>> {
        Box::pin(std::future::ready(Ok(None)))
    }

    /// Finds what is due in a stream: heads of their keys alone.
    fn load(&self, load: Load) -> Answer<Loaded>;

    /// Writes what became of events, each under the fence. Answers are in the order of the settles.
    fn settle(&self, settles: Vec<Settle>) -> Answer<Vec<Settled>>;

    /// Notes all that is under way in a shard, so that the next owner knows if this one dies. Survives the
    /// death of the process, not that of the machine, and costs no sync.
    fn note(&self, grant: Grant, under_way: Vec<Seq>) -> Answer<()>;

    /// Runs a job in a transaction of the store's own domain.
    fn transact(&self, job: Job) -> Answer<Transacted>;

    /// What is known of an identity.
    fn find(&self, tenant: &str, queue: &str, id: &str) -> Answer<Option<Found>>;

    /// A page of events by state.
    fn list(&self, query: Query) -> Answer<Listed>;

    /// How many events there are, by queue and state.
    fn count(&self, now: Moment) -> Answer<Vec<Count>>;

    /// Since when the oldest event of each queue could run and did not end, where there is one. One that runs counts,
    /// and so does one of a queue that is paused; what is leased or in quarantine does not.
    fn oldest_due(&self, now: Moment) -> Answer<Vec<(String, Moment)>>;

    /// Figures since it was opened, as far as it has some. Costs nothing.
    fn figures(&self) -> Figures {
        Figures::default()
    }

    /// Writes a copy to a file that is not there yet, as of one moment, while everything goes on. The copy is a
    /// store of its own, with an incarnation of its own.
    ///
    /// # Errors
    /// Where there is such a file, or the store is none that can be copied so.
    fn backup(&self, to: std::path::PathBuf) -> Answer<()> {
        let what = format!("{} cannot be copied to {}", self.domain(), to.display());
        Box::pin(std::future::ready(Err(StoreError::Broken { what, source: None })))
    }

    /// Forgets what is over, a bounded slice of it; gives how much. To be called now and then. Over are receipts
    /// and markers whose time has come, discarded events with their receipts, dead letters beyond what their queue
    /// [keeps](Keep) (their receipts then say `discarded`), rules with an end that has passed, and requests whose
    /// answers are kept no longer.
    fn forget(&self, now: Moment) -> Answer<usize>;

    /// Does what an operator orders.
    fn operate(&self, order: Order) -> Answer<Operated>;

    /// Takes a job a step further, if it runs and is where the step says; gives the job as it is then.
    fn advance(&self, step: Advance) -> Answer<Option<triage::Job>>;

    /// The jobs, the latest first: the last hundred and all that are not over, or the one that is asked for.
    fn jobs(&self, id: Option<JobId>) -> Answer<Vec<triage::Job>>;

    /// The rules that hold.
    fn controls(&self) -> Answer<Controls>;

    /// Dead letters, put together.
    fn groups(&self, query: GroupQuery) -> Answer<Vec<Group>>;

    /// How many dead letters a filter means.
    fn matching(&self, filter: Filter) -> Answer<Matching>;

    /// The audit, the latest first, before the line with this number.
    fn audit(&self, before: Option<u64>, limit: usize) -> Answer<Vec<AuditLine>>;

    /// Hands out events to somebody outside, and deals with those that were not settled in time. Without tokens only
    /// the latter, also for a queue that is not pulled from any more.
    fn lease(&self, lease: Lease) -> Answer<Leased>;

    /// Makes leases good until then.
    fn extend(&self, leases: Vec<lease::Held>, at: Moment, until: Moment) -> Answer<Vec<LeaseSettled>>;

    /// Writes what became of leased events.
    fn settle_leased(&self, settles: Vec<LeaseSettle>) -> Answer<Vec<LeaseSettled>>;

    /// Who is told of arrivals. One at a time: the last one stays.
    fn watch(&self, watcher: Watcher);

    /// Ends the store: what was accepted is written, then files are closed. Later calls fail with
    /// [`StoreError::Closed`].
    fn close(&self) -> Answer<()>;
}
