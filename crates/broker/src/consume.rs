//! A consumer: receive, attempt, decide, settle, over any source.
//!
//! Messages of different keys run at once, up to the concurrency of the plan; see [`lanes`]. Policy, budget, breaker,
//! limit, rate and classifier are the engine's own ([`QueuePlan`], [`decide`](fn@decide)). One settle is under way at a
//! time, with everything that ended meanwhile in the next one.
//!
//! A retry goes where the source can keep it: into a tier, into the broker with a delay, or it waits in place. While it
//! waits in place it stays unsettled, so a crash repeats it, and it holds up nothing but its own key.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use redrive_core::event::Mode;
use redrive_core::scheduler::{EndedAttempt, QueuePlan};
use redrive_core::{Moment, Policy};

use crate::capabilities::MessageOrder;
use crate::message::{Message, Outgoing, Partition};
use crate::metadata::Metadata;
use crate::source::{MessageSource, SourceError};
use tokio::sync::watch;

pub mod dead_ratio;
pub mod decide;
pub mod lanes;
mod session;

pub use dead_ratio::{DeadRatio, DeadRatioWindow};
pub use decide::{Decision, decide};
pub use lanes::{KeyLanes, LaneKey};

/// A message, as its handler sees it. Cheap to clone.
#[derive(Debug, Clone)]
pub struct IncomingMessage {
    /// The message.
    pub message: Arc<Message>,
    /// What its headers say.
    pub metadata: Metadata,
    /// Where it was received from.
    pub partition: Partition,
    /// Its offset or sequence number there.
    pub position: i64,
}

impl IncomingMessage {
    /// The identity: the same for all deliveries and attempts.
    #[must_use]
    pub fn id(&self) -> &str {
        &self.metadata.id
    }

    /// The number of this attempt, from 1.
    #[must_use]
    pub const fn attempt(&self) -> u32 {
        self.metadata.attempts + 1
    }

    /// Why it runs.
    #[must_use]
    pub const fn mode(&self) -> Mode {
        self.metadata.mode
    }

    /// The key.
    #[must_use]
    pub fn key(&self) -> Option<&[u8]> {
        self.message.key.as_deref()
    }

    /// The body; empty for a tombstone.
    #[must_use]
    pub fn body(&self) -> &[u8] {
        self.message.body.as_deref().unwrap_or_default()
    }
}

/// How a handler ended.
#[derive(Debug, Clone)]
pub struct Handled {
    /// The end of the attempt.
    pub ended: EndedAttempt,
    /// What is published together with the settle, if the attempt succeeded. A failed attempt publishes nothing.
    pub outputs: Vec<Outgoing>,
}

impl From<EndedAttempt> for Handled {
    fn from(ended: EndedAttempt) -> Self {
        Self { ended, outputs: Vec::new() }
    }
}

type HandlerFuture = Pin<Box<dyn Future<Output = Handled> + Send>>;

/// Runs a handler for the messages of a source.
pub struct Consumer {
    source: Arc<dyn MessageSource>,
    plan: QueuePlan,
    handler: Arc<dyn Fn(IncomingMessage) -> HandlerFuture + Send + Sync>,
    order: MessageOrder,
    group: Option<Arc<str>>,
    dead_ratio: Option<DeadRatio>,
    outputs: bool,
    drain: Duration,
    report: watch::Sender<ConsumerReport>,
}

/// What a consumer did.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct ConsumerReport {
    /// Messages that were received.
    pub received: u64,
    /// Attempts that ended.
    pub attempts: u64,
    /// Messages that are done.
    pub done: u64,
    /// Retries that were scheduled.
    pub retried: u64,
    /// Dead letters.
    pub dead: u64,
    /// Settles that came too late, because the message had another owner.
    pub lost: u64,
    /// Settles with an unknown outcome.
    pub unknown: u64,
    /// Settles that the broker refused, each counted once.
    pub refused: u64,
}

/// Why a consumer stopped by itself.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConsumeError {
    /// The source failed, or cannot do what the consumer needs.
    #[error(transparent)]
    Source(#[from] SourceError),
    /// Too large a share of recent messages died. The message that would have been the next dead letter was not settled.
    #[error(
        "{dead} of the last {total} messages became dead letters, more than the dead-letter ratio allows; mend the \
         cause, then start the consumer again: it goes on where it stopped"
    )]
    TooManyDead {
        /// How many died.
        dead: usize,
        /// Of how many.
        total: usize,
    },
}

impl Consumer {
    /// A consumer that runs `handler` for each message, under `policy`.
    pub fn new<F, Fut>(source: Arc<dyn MessageSource>, name: &str, policy: Policy, handler: F) -> Self
    where
        F: Fn(IncomingMessage) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Handled> + Send + 'static,
    {
        Self {
            source,
            plan: QueuePlan::new(name, policy),
            handler: Arc::new(move |message| Box::pin(handler(message))),
            order: MessageOrder::None,
            group: None,
            dead_ratio: None,
            outputs: false,
            drain: Duration::from_secs(30),
            report: watch::Sender::default(),
        }
    }

    /// How many attempts run at once. Default: 16.
    #[must_use]
    pub fn concurrency(mut self, concurrency: u32) -> Self {
        self.plan = self.plan.concurrency(concurrency);
        self
    }

    /// Which order is kept. Default: none.
    #[must_use]
    pub const fn order(mut self, order: MessageOrder) -> Self {
        self.order = order;
        self
    }

    /// The consumer group, written into the headers of retries and dead letters.
    #[must_use]
    pub fn group(mut self, group: impl Into<Arc<str>>) -> Self {
        self.group = Some(group.into());
        self
    }

    /// Stops when too large a share of recent messages died. Default: never.
    #[must_use]
    pub const fn dead_ratio(mut self, limit: DeadRatio) -> Self {
        self.dead_ratio = Some(limit);
        self
    }

    /// The handler returns outputs, which are published together with the settle. Needs a source that can.
    #[must_use]
    pub const fn with_outputs(mut self) -> Self {
        self.outputs = true;
        self
    }

    /// How long running attempts may take to end when the consumer stops. Default: 30 s.
    #[must_use]
    pub const fn drain(mut self, drain: Duration) -> Self {
        self.drain = drain;
        self
    }

    /// What it has done so far, as it goes on.
    #[must_use]
    pub fn watch(&self) -> watch::Receiver<ConsumerReport> {
        self.report.subscribe()
    }

    /// Runs until `stop`, then waits for running attempts, settles them and closes the source.
    ///
    /// # Errors
    /// If the source cannot do what is asked for, fails for good, or too many messages died.
    pub async fn run(self, stop: impl Future<Output = ()>) -> Result<ConsumerReport, ConsumeError> {
        self.source.capabilities().check(self.order, self.outputs)?;
        session::Session::new(self).run(stop).await
    }
}

impl std::fmt::Debug for Consumer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Consumer")
            .field("source", &self.source)
            .field("queue", &self.plan.name)
            .finish_non_exhaustive()
    }
}

/// When something is due, as the loop waits for it.
fn wait_until(now: Moment, at: Option<Moment>) -> Duration {
    /// The longest wait without a look at assignments.
    const LOOK: Duration = Duration::from_millis(500);
    at.map_or(LOOK, |at| at.since(now).min(LOOK))
}
