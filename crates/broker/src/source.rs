//! The contract of a source of messages.
//!
//! It is small on purpose: a partitioned log, a queue with leases and a stream with acknowledgements all fit. What a
//! broker cannot do is in its [`Capabilities`], and a consumer that needs it is refused at start.
//!
//! # What a source promises
//!
//! - A message that was received and not settled is received again, by this process or another one.
//! - A settle answers for every item. [`Settled::Lost`] and [`Settled::Refused`] mean that nothing of that item
//!   happened; [`Settled::Unknown`] means that it may have happened, and the message may come again.
//! - An item of an earlier assignment (another [`Receipt::epoch`]) is `Lost`, whatever the broker would accept.
//! - Outcome and copies of one item (the retry, the dead letter, its outputs) happen together where
//!   [`Capabilities::atomic_publish`] says so.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use redrive_core::Moment;
use thiserror::Error;

use crate::capabilities::Capabilities;
use crate::message::{Headers, Message, Outgoing, Partition};

/// What a source answers with, later.
pub type SourceFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// Where messages come from.
pub trait MessageSource: Send + Sync + std::fmt::Debug {
    /// What the broker behind it can do, as probed when it was opened.
    fn capabilities(&self) -> Capabilities;

    /// The clock by which retries are due, in nanoseconds since the Unix epoch.
    fn now(&self) -> Moment;

    /// Receives up to `max` messages that are due, and waits up to `wait` for the first one. An empty answer means that
    /// none came.
    ///
    /// Membership is kept between calls: a consumer that has no free place need not call it.
    fn receive(&self, max: usize, wait: Duration) -> SourceFuture<'_, Result<Vec<Received>, SourceError>>;

    /// Settles messages, in order, and answers for each. Cancelling it leaves the outcome unknown.
    fn settle(&self, batch: Vec<Settlement>) -> SourceFuture<'_, Vec<Settled>>;

    /// Extends the leases of messages whose attempts still run, where the broker has leases.
    fn extend(&self, receipts: Vec<Receipt>, until: Moment) -> SourceFuture<'_, Vec<Settled>>;

    /// Stops delivering from a partition; messages that were received stay received. Survives reassignment.
    fn pause(&self, partition: &Partition);

    /// Delivers from a paused partition again.
    fn resume(&self, partition: &Partition);

    /// What happened to assignments since the last call.
    fn assignments(&self) -> Vec<AssignmentEvent>;

    /// How far behind each partition is.
    fn lag(&self) -> SourceFuture<'_, Result<Vec<Lag>, SourceError>>;

    /// Leaves the broker: waits up to `drain` for settles under way, then gives everything back.
    fn close(&self, drain: Duration) -> SourceFuture<'_, Result<(), SourceError>>;
}

/// A received message.
#[derive(Debug, Clone)]
pub struct Received {
    /// What to settle it with.
    pub receipt: Receipt,
    /// The message.
    pub message: Arc<Message>,
    /// Deliveries so far, where the broker counts them; 1 for the first.
    pub deliveries: Option<u32>,
}

/// The right to settle one delivery of one message.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Receipt {
    /// The partition or queue.
    pub partition: Partition,
    /// The offset or sequence number: the same for every delivery of the message.
    pub position: i64,
    /// The assignment it was received under.
    pub epoch: u64,
    /// Which delivery it was, where a broker delivers under leases; otherwise 0.
    pub delivery: u64,
}

/// One settled message: its outcome, and what is published with it.
#[derive(Debug, Clone)]
pub struct Settlement {
    /// Which delivery.
    pub receipt: Receipt,
    /// The message, from which a source makes copies.
    pub message: Arc<Message>,
    /// Its outcome.
    pub outcome: MessageOutcome,
    /// What the handler returned to be published; needs [`Capabilities::atomic_publish`].
    pub outputs: Vec<Outgoing>,
}

/// The outcome of a message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MessageOutcome {
    /// It is done; the broker may forget it.
    Done,
    /// It is received again at `at`, never earlier.
    Retry {
        /// When it is due.
        at: Moment,
        /// The headers of the copy, where the source makes one.
        headers: Headers,
    },
    /// It becomes a dead letter.
    Dead {
        /// The headers of the dead letter.
        headers: Headers,
    },
    /// The caller has stored it elsewhere; the broker may forget it.
    Park,
}

/// What became of a settled message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Settled {
    /// It happened, and survives a crash of the broker as far as the broker promises.
    Settled,
    /// Nothing happened: the message belongs to another owner or another delivery now.
    Lost,
    /// It may have happened.
    Unknown,
    /// Nothing happened, and the same settle will be refused again until an operator acts.
    Refused(String),
}

/// A change of an assignment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AssignmentEvent {
    /// The partition.
    pub partition: Partition,
    /// The epoch that began or ended.
    pub epoch: u64,
    /// What happened.
    pub change: AssignmentChange,
}

/// What happened to an assignment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AssignmentChange {
    /// It began.
    Assigned,
    /// It ended, and settles of it that were under way have ended.
    Revoked,
}

/// How far behind a partition is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lag {
    /// The partition.
    pub partition: Partition,
    /// Messages that are not settled.
    pub messages: u64,
}

/// Why a source did not answer.
#[derive(Debug, Clone, Error)]
#[non_exhaustive]
pub enum SourceError {
    /// The broker cannot do what is asked for.
    #[error("{0}")]
    Unsupported(String),
    /// The broker is set up in a way that would lose or repeat messages.
    #[error("{0}")]
    Misconfigured(String),
    /// The broker did not answer; another call may.
    #[error("the broker did not answer: {0}")]
    Unavailable(String),
    /// The client gave up for good; open the source again.
    #[error("the client of the broker has failed, open the source again: {0}")]
    Failed(String),
    /// The source is closed.
    #[error("the source is closed")]
    Closed,
}

impl SourceError {
    /// Whether another call may help.
    #[must_use]
    pub const fn is_transient(&self) -> bool {
        matches!(self, Self::Unavailable(_))
    }
}
