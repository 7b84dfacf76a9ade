//! The messages between the scheduler and the store.
//!
//! An [`QueueEntry`] is a stored event with its progress. A [`SettleRequest`] is the outcome of an attempt. The store
//! writes it only if the event still has the same [`rev`](QueueEntry::rev) and its shard still has the same owner
//! ([`FencingToken`]).

use std::sync::Arc;
use std::time::Duration;

use crate::disposition::Executed;
use crate::event::{AttemptHistory, AttemptRecord, Cause, DeadReason, Event, Mode};
use crate::moment::Moment;

/// The sequence number of an event: unique in its store, and growing in publish order within one stream. A
/// larger number does not mean that all smaller ones are visible: publishers commit in any order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Seq(pub u64);

/// One tenant's part of one queue, as the store numbers it. The events of one stream are loaded together.
/// Tenants share a queue fairly because each has a stream of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StreamId(pub u32);

/// The fencing token of a shard's owner: it may settle the shard's events until another owner takes the
/// shard.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct FencingToken {
    /// The shard.
    pub shard: u32,
    /// The epoch: it grows with every change of owner.
    pub epoch: u64,
    /// A random number that identifies this database; a restored backup gets a new one.
    pub incarnation: u64,
}

/// An event in the store.
#[derive(Debug, Clone, PartialEq)]
pub struct QueueEntry {
    /// Its sequence number.
    pub seq: Seq,
    /// Its revision, which grows with every change; a settle for an older revision is refused.
    pub rev: u32,
    /// The stream it belongs to.
    pub stream: StreamId,
    /// The shard it belongs to.
    pub shard: u32,
    /// When it was published.
    pub published: Moment,
    /// When it expires: after this moment it does not run any more.
    pub expires: Option<Moment>,
    /// The event as published.
    pub event: Arc<Event>,
    /// Its attempts so far and when it runs next.
    pub progress: EventProgress,
}

/// The state of an event between attempts.
#[derive(Debug, Clone, PartialEq)]
pub struct EventProgress {
    /// When it may run next.
    pub due: Moment,
    /// The attempts that are settled.
    pub attempts: u32,
    /// Why its next attempt runs.
    pub mode: Mode,
    /// When the first attempt began.
    pub started: Option<Moment>,
    /// The last wait that the policy chose.
    pub previous: Duration,
    /// Its crash count: how often the process died while this event ran alone.
    pub crash_count: u8,
    /// Whether it was running when a process with the crash guard on died.
    pub suspect: bool,
    /// Its attempt history.
    pub history: Option<Arc<AttemptHistory>>,
    /// The queue whose handler runs it, if an operator rerouted it.
    pub route: Option<Arc<str>>,
    /// Whether later events of its key may have run before it, because an operator redrove it out of order.
    pub out_of_order: bool,
}

impl EventProgress {
    /// An event that has not run yet.
    #[must_use]
    pub const fn fresh(due: Moment) -> Self {
        Self {
            due,
            attempts: 0,
            mode: Mode::Live,
            started: None,
            previous: Duration::ZERO,
            crash_count: 0,
            suspect: false,
            history: None,
            route: None,
            out_of_order: false,
        }
    }
}

impl EventProgress {
    /// The progress before this attempt was counted. Its lease ran out and the attempt was recorded with an
    /// unknown outcome; now the worker has reported the outcome after all.
    #[must_use]
    pub fn before(&self, attempt: u32) -> Self {
        if self.attempts != attempt || attempt == 0 {
            return self.clone();
        }
        let history = self.history.as_deref().map(|history| Arc::new(history.clone().without(attempt)));
        let history = history.filter(|history| history.records().next().is_some());
        Self { attempts: attempt - 1, history, ..self.clone() }
    }
}

impl EventProgress {
    /// The progress with one more attempt, of unknown outcome: an operator took the event while a worker had
    /// it leased.
    #[must_use]
    pub fn taken_away(&self, at: Moment) -> Self {
        let cause = Cause::new("lease", "an operator took it from the worker that had leased it");
        let attempt = self.attempts + 1;
        Self { attempts: attempt, ..self.with_record(attempt, at, "timeout", Some(Executed::Unknown), cause) }
    }

    /// The progress with one more attempt record that no handler reported.
    pub(crate) fn with_record(
        &self,
        attempt: u32,
        at: Moment,
        disposition: &str,
        executed: Option<Executed>,
        cause: Cause,
    ) -> Self {
        let record = AttemptRecord {
            attempt,
            mode: self.mode.as_str().to_owned(),
            at_ms: at.as_nanos() / 1_000_000,
            took_ms: 0,
            disposition: disposition.to_owned(),
            executed,
            cause: Some(cause),
            delay_ms: None,
        };
        let history = self.history.as_deref().cloned().unwrap_or_default().with(record);
        Self { history: Some(Arc::new(history)), ..self.clone() }
    }
}

/// The outcome of an attempt, which the store writes under the fencing token.
#[derive(Debug, Clone, PartialEq)]
pub struct SettleRequest {
    /// The fencing token it ran under.
    pub token: FencingToken,
    /// The event.
    pub seq: Seq,
    /// The event's revision when the attempt began.
    pub rev: u32,
    /// When the scheduler decided.
    pub at: Moment,
    /// The change to write.
    pub change: EventChange,
}

/// What a settle changes about an event.
#[derive(Debug, Clone, PartialEq)]
pub enum EventChange {
    /// The event took effect at its first attempt and left no result: the event is deleted, its dedupe record
    /// stays.
    Done,
    /// The event took effect and there is more to keep: the handler's result, or the attempts before.
    DoneWith {
        /// The handler's result, returned to publishers that repeat the identity.
        result: Option<Vec<u8>>,
        /// The number of attempts.
        attempts: u32,
        /// Its attempt history, if some attempts failed.
        history: Option<Arc<AttemptHistory>>,
    },
    /// Its handler dropped it as not needed.
    Dropped {
        /// The number of attempts.
        attempts: u32,
        /// Its attempt history, including the last attempt.
        history: Option<Arc<AttemptHistory>>,
    },
    /// It expired.
    Expired {
        /// The number of attempts.
        attempts: u32,
        /// Its attempt history.
        history: Option<Arc<AttemptHistory>>,
    },
    /// It runs again at the progress's `due`.
    Retry(EventProgress),
    /// It becomes a dead letter: it will not be retried by itself.
    Dead {
        /// Why it died.
        reason: DeadReason,
        /// Its progress until then.
        progress: EventProgress,
        /// What happens to later events of its key.
        park: ParkFollowers,
    },
    /// It is about to run alone. If the process dies now, this event is the cause, so its crash count grows
    /// first.
    CountCrash,
    /// Unparks the events behind a dead letter.
    Unpark,
}

/// What happens to the events that follow a dead letter of the same key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ParkFollowers {
    /// They run without it.
    #[default]
    No,
    /// They stay parked until an operator has dealt with the dead letter.
    UntilResolved,
    /// They stay parked until a moment or up to a number of parked events.
    UpTo {
        /// When they are unparked.
        until: Option<Moment>,
        /// The number of parked events above which they are unparked.
        count: Option<u32>,
    },
}

/// The store's reply to a settle.
#[derive(Debug, Clone, PartialEq)]
pub enum SettleResult {
    /// The settle is written.
    Applied {
        /// The event's new revision, if it still exists.
        rev: u32,
        /// The event of the same key that may run now.
        next: Option<QueueEntry>,
    },
    /// The event has another revision or is gone: the store changed nothing.
    Stale,
    /// The shard has another owner: the store changed nothing.
    Fenced,
}

/// A shard that this node has taken over.
#[derive(Debug, Clone, PartialEq)]
pub struct TakenShard {
    /// The fencing token of this owner.
    pub token: FencingToken,
    /// Whether the previous owner died: its attempts may have had effects, and one of them may have crashed
    /// it.
    pub unclean: bool,
    /// Events in the dispatch note when an owner with the crash guard on died; they become
    /// suspects.
    pub suspects: Vec<QueueEntry>,
    /// The streams that have events in this shard, with the names of their queues and their tenants.
    pub streams: Vec<(StreamId, String, String)>,
}

/// A request to load events.
#[derive(Debug, Clone, PartialEq)]
pub struct LoadRequest {
    /// The owner's fencing token.
    pub token: FencingToken,
    /// The stream.
    pub stream: StreamId,
    /// Load the events that are due at this moment.
    pub until: Moment,
    /// The most events to load that have not run yet.
    pub live_max: usize,
    /// The most other events to load.
    pub retry_max: usize,
    /// The approximate limit on payload bytes in all: the event that exceeds it is the last.
    pub bytes_max: usize,
    /// The events that the owner already has in memory, in order. The store skips them and does not count
    /// them.
    pub except: Vec<Seq>,
}

/// The loaded events.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct LoadedEvents {
    /// The first event of each key, by due time within each flow.
    pub entries: Vec<QueueEntry>,
    /// Whether more events that have not run yet are due.
    pub more_live: bool,
    /// Whether more of the other events are due.
    pub more_retry: bool,
    /// The earliest moment after `until` at which an event becomes due or a dead letter's parking time ends,
    /// if any.
    pub next_due: Option<Moment>,
    /// Dead letters whose parking time is over.
    pub overdue: Vec<OverdueDeadLetter>,
    /// Rows that could not be read because their checksum was wrong. The load skips them and names them here.
    pub damaged: Vec<String>,
}

/// A dead letter whose parking time is over: the events behind it can run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OverdueDeadLetter {
    /// The dead letter.
    pub seq: Seq,
    /// Its revision.
    pub rev: u32,
}
