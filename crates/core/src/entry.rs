//! What passes between the scheduler and the store.
//!
//! An [`Entry`] is an event that the store keeps, with how far it has come. A [`Settle`] is what became of
//! it, to be written under the fence: only while the event has still the same [`rev`](Entry::rev), and its
//! shard still the same owner ([`Grant`]).

use std::sync::Arc;
use std::time::Duration;

use crate::disposition::Executed;
use crate::event::{Cause, DeadReason, Event, Mode, Record, Story};
use crate::moment::Moment;

/// The place of an event: unique in its store, and growing in the order of publishing within one stream. A
/// larger one says nothing of what has been seen: two publishers commit in any order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Seq(pub u64);

/// One tenant's part of one queue, as the store numbers it. Events of one stream are loaded together; tenants
/// share a queue fairly because each has a stream of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StreamId(pub u32);

/// The right to settle the events of a shard, until somebody else takes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Grant {
    /// Which shard.
    pub shard: u32,
    /// Grows with every change of owner.
    pub epoch: u64,
    /// A random number for the life of this database; another one after a restore.
    pub incarnation: u64,
}

/// An event in the store.
#[derive(Debug, Clone, PartialEq)]
pub struct Entry {
    /// Its place.
    pub seq: Seq,
    /// Grows with every change; a settle for an older one changes nothing.
    pub rev: u32,
    /// Which stream it belongs to.
    pub stream: StreamId,
    /// Which shard it belongs to.
    pub shard: u32,
    /// When it was published.
    pub published: Moment,
    /// After this it is not needed any more.
    pub expires: Option<Moment>,
    /// What was published.
    pub event: Arc<Event>,
    /// How far it has come.
    pub progress: Progress,
}

/// How far an event has come.
#[derive(Debug, Clone, PartialEq)]
pub struct Progress {
    /// When it may run next.
    pub due: Moment,
    /// Attempts that were made and settled.
    pub attempts: u32,
    /// Why it runs next.
    pub mode: Mode,
    /// When the first attempt began.
    pub started: Option<Moment>,
    /// The last wait that was chosen.
    pub previous: Duration,
    /// How often the process died while this ran alone.
    pub strikes: u8,
    /// Whether it was under way when a process died that had reason to be careful.
    pub suspect: bool,
    /// Its attempts.
    pub story: Option<Arc<Story>>,
    /// The queue whose handler is to run it, where an operator said so.
    pub route: Option<Arc<str>>,
    /// Whether later ones of its key may have run before it: an operator put it back all the same.
    pub out_of_order: bool,
}

impl Progress {
    /// An event that has not run yet.
    #[must_use]
    pub const fn fresh(due: Moment) -> Self {
        Self {
            due,
            attempts: 0,
            mode: Mode::Live,
            started: None,
            previous: Duration::ZERO,
            strikes: 0,
            suspect: false,
            story: None,
            route: None,
            out_of_order: false,
        }
    }
}

impl Progress {
    /// As it was before this attempt was counted, because what became of it turns out only now: the lease was over,
    /// and the attempt was written down as one of unknown outcome.
    #[must_use]
    pub fn before(&self, attempt: u32) -> Self {
        if self.attempts != attempt || attempt == 0 {
            return self.clone();
        }
        let story = self.story.as_deref().map(|story| Arc::new(story.clone().without(attempt)));
        let story = story.filter(|story| story.records().next().is_some());
        Self { attempts: attempt - 1, story, ..self.clone() }
    }
}

impl Progress {
    /// With one more attempt, of unknown outcome: an operator took the event away while somebody outside had it.
    #[must_use]
    pub fn taken_away(&self, at: Moment) -> Self {
        let cause = Cause::new("lease", "an operator took it away while it was leased");
        let attempt = self.attempts + 1;
        Self { attempts: attempt, ..self.with_record(attempt, at, "timeout", Some(Executed::Unknown), cause) }
    }

    /// With a record of something that no handler said.
    pub(crate) fn with_record(
        &self,
        attempt: u32,
        at: Moment,
        disposition: &str,
        executed: Option<Executed>,
        cause: Cause,
    ) -> Self {
        let record = Record {
            attempt,
            mode: self.mode.as_str().to_owned(),
            at_ms: at.as_nanos() / 1_000_000,
            took_ms: 0,
            disposition: disposition.to_owned(),
            executed,
            cause: Some(cause),
            delay_ms: None,
        };
        let story = self.story.as_deref().cloned().unwrap_or_default().with(record);
        Self { story: Some(Arc::new(story)), ..self.clone() }
    }
}

/// What became of an event, to be written under the fence.
#[derive(Debug, Clone, PartialEq)]
pub struct Settle {
    /// In whose right.
    pub grant: Grant,
    /// Which event.
    pub seq: Seq,
    /// As of which change.
    pub rev: u32,
    /// When it was decided.
    pub at: Moment,
    /// What to write.
    pub change: Change,
}

/// What to write of an event.
#[derive(Debug, Clone, PartialEq)]
pub enum Change {
    /// It took effect, at the first attempt and with nothing to say: the event goes, its receipt stays.
    Done,
    /// It took effect, and there is something to remember: what its handler left, or the attempts before.
    DoneWith {
        /// What the handler left for whoever publishes the same identity again.
        result: Option<Vec<u8>>,
        /// Attempts in all.
        attempts: u32,
        /// Its attempts, where some failed.
        story: Option<Arc<Story>>,
    },
    /// Its handler said that it is not needed.
    Dropped {
        /// Attempts in all.
        attempts: u32,
        /// Its attempts, the last included.
        story: Option<Arc<Story>>,
    },
    /// Its time is over.
    Expired {
        /// Attempts in all.
        attempts: u32,
        /// Its attempts.
        story: Option<Arc<Story>>,
    },
    /// It is to run again at `due`.
    Again(Progress),
    /// It will not be retried by itself.
    Dead {
        /// Why.
        reason: DeadReason,
        /// How far it came.
        progress: Progress,
        /// What becomes of those of its key that follow.
        park: Park,
    },
    /// It is about to run alone; if the process dies now, it was this one.
    Strike,
    /// A dead letter no longer holds up those that follow.
    GoOn,
}

/// What becomes of the events that follow a dead letter of the same key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Park {
    /// They go on without it.
    #[default]
    GoOn,
    /// They wait until somebody has dealt with it.
    Stay,
    /// They wait, but not beyond a moment or a number of them.
    UpTo {
        /// When they go on.
        until: Option<Moment>,
        /// Above how many of them waiting they go on.
        count: Option<u32>,
    },
}

/// What a store says of a settle.
#[derive(Debug, Clone, PartialEq)]
pub enum Settled {
    /// It is written.
    Applied {
        /// The event's new `rev`, where it still exists.
        rev: u32,
        /// The event of the same key that may run now.
        next: Option<Entry>,
    },
    /// The event has another `rev`, or is gone: nothing was changed.
    Stale,
    /// The shard has another owner: nothing was changed.
    Fenced,
}

/// A shard that was taken.
#[derive(Debug, Clone, PartialEq)]
pub struct Taken {
    /// The right to settle its events.
    pub grant: Grant,
    /// Whether the owner before died: its attempts may have had effects, and one of them may have killed it.
    pub unclean: bool,
    /// Events that were noted as dispatched when a careful owner died; they are marked as suspects.
    pub suspects: Vec<Entry>,
    /// The streams that have events in this shard, with their queues' names and tenants.
    pub streams: Vec<(StreamId, String, String)>,
}

/// What to load.
#[derive(Debug, Clone, PartialEq)]
pub struct Load {
    /// In whose right.
    pub grant: Grant,
    /// Which stream.
    pub stream: StreamId,
    /// Everything that is due by then.
    pub until: Moment,
    /// How many that have not run yet, at most.
    pub live_max: usize,
    /// How many others, at most.
    pub retry_max: usize,
    /// How many bytes of payload in all, roughly: the one that goes over it is the last.
    pub bytes_max: usize,
    /// What the owner has in memory already, in order. They are skipped, and do not count.
    pub except: Vec<Seq>,
}

/// What was loaded.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Loaded {
    /// Heads of their keys, by due time within each flow.
    pub entries: Vec<Entry>,
    /// Whether there are more that have not run yet and are due.
    pub more_live: bool,
    /// Whether there are more of the others that are due.
    pub more_retry: bool,
    /// The earliest time after `until` at which an event becomes due, or a dead letter has held up others for
    /// long enough, if there is one.
    pub next_due: Option<Moment>,
    /// Dead letters whose time to hold up others is over.
    pub overdue: Vec<Overdue>,
    /// Rows that could not be read: a checksum did not fit. They are skipped, and named here.
    pub damaged: Vec<String>,
}

/// A dead letter whose time to hold up others is over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Overdue {
    /// Which.
    pub seq: Seq,
    /// As of which change.
    pub rev: u32,
}
