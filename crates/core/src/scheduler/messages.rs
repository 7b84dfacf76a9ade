//! The messages between the scheduler and the loop around it: what happened, and what to do.

use super::attempt_end::EndedAttempt;
use super::flow::FlowKey;
use crate::moment::Moment;
use crate::queue_entry::{
    EventChange, FencingToken, LoadRequest, LoadedEvents, QueueEntry, Seq, SettleRequest, SettleResult,
    StreamId, TakenShard,
};
use crate::triage::ActiveRules;

/// What happened.
#[derive(Debug)]
pub enum Input {
    /// This node took a shard.
    Own(TakenShard),
    /// Events became runnable.
    Arrived(Vec<QueueEntry>),
    /// Events became runnable that were not named, perhaps in new streams.
    Missed(Vec<(StreamId, String, String)>),
    /// A load succeeded.
    Loaded(LoadId, LoadedEvents),
    /// A load failed, and may succeed later.
    LoadFailed(LoadId),
    /// The events of a stream whose shard makes no progress: the answer to [`Action::Check`].
    Checked(FlowKey, LoadedEvents),
    /// A dispatch note is written.
    Noted(NoteId),
    /// A dispatch note could not be written.
    NoteFailed(NoteId),
    /// The store reported that a shard has another owner.
    Lost(FencingToken),
    /// An attempt ended.
    Ended {
        /// The fencing token it ran under.
        token: FencingToken,
        /// The event.
        seq: Seq,
        /// The event's revision when the attempt began.
        rev: u32,
        /// How it ended.
        ended: EndedAttempt,
    },
    /// The store answered a settle.
    Settled {
        /// The settle's fencing token.
        token: FencingToken,
        /// The event.
        seq: Seq,
        /// The revision that the settle was for.
        rev: u32,
        /// The answer.
        settled: SettleResult,
    },
    /// The store could not write a settle.
    SettleFailed {
        /// The settle's fencing token.
        token: FencingToken,
        /// The event.
        seq: Seq,
        /// The revision that the settle was for.
        rev: u32,
        /// Whether it may have been written all the same.
        unknown: bool,
    },
    /// A command may have changed events in memory that have not started: load them again.
    Recall,
    /// These rules hold from now on. Implies a recall.
    Ruled(ActiveRules),
    /// Hand off a shard, once no attempt of it is running.
    GiveBack(FencingToken),
    /// Start no more attempts.
    Drain,
}

/// What to do.
#[derive(Debug)]
pub enum Action {
    /// Load from the store.
    Load(LoadId, LoadRequest),
    /// Read the runnable events of a stream whose shard makes no progress, and pass them in. If the read
    /// fails, pass in nothing.
    Check(FlowKey, LoadRequest),
    /// Write a dispatch note, then report it.
    Note(NoteId, Vec<Seq>),
    /// Run an attempt.
    Attempt(Box<DispatchedAttempt>),
    /// Write the outcome of an attempt.
    Settle(SettleRequest),
    /// Notify: this settle is committed. It is not sent for a success at the first attempt that left no
    /// result.
    EventSettled(Box<SettledEvent>),
    /// Notify: a row is damaged.
    Damaged(String),
    /// Notify: a shard has another owner.
    Lost(FencingToken),
    /// A shard had an event to run and made no progress. The scheduler has forgotten it; the node has to take
    /// it again.
    Stalled {
        /// The fencing token under which it was owned.
        token: FencingToken,
        /// The event that waits.
        waiting: Seq,
    },
    /// Release a shard: no attempt of it is running, and none of its events is in memory any more.
    Given {
        /// The owner's fencing token.
        token: FencingToken,
        /// Whether the next owner can do without the crash guard.
        clean: bool,
    },
}

/// Identifies a load: it matches an answer with its request, so that a late or repeated answer is not taken
/// for another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LoadId {
    /// The flow.
    pub flow: FlowKey,
    /// The number among all loads and dispatch notes of this scheduler.
    pub number: u64,
}

/// Identifies a dispatch note in the same way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NoteId {
    /// The owner's fencing token.
    pub token: FencingToken,
    /// The number among all loads and dispatch notes of this scheduler.
    pub number: u64,
}

/// An attempt to run.
#[derive(Debug, Clone)]
pub struct DispatchedAttempt {
    /// The fencing token it runs under.
    pub token: FencingToken,
    /// The number of the queue whose handler runs it, in the order in which queues were added.
    pub queue: usize,
    /// The event.
    pub entry: QueueEntry,
    /// The number of the attempt, from 1.
    pub attempt: u32,
    /// The number of this start among all that the owner made: with the epoch, the fence for receivers.
    pub start: u64,
    /// When the attempt must end.
    pub deadline: Option<Moment>,
}

/// An event whose settle is committed.
#[derive(Debug, Clone)]
pub struct SettledEvent {
    /// The number of its queue.
    pub queue: usize,
    /// The event before the settle.
    pub entry: QueueEntry,
    /// The change that was written.
    pub change: EventChange,
}
