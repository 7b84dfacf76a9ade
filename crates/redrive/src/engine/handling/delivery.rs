//! An attempt, as its handler sees it.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use redrive_core::event::{AttemptHistory, Mode, identity};
use redrive_core::ladder::fence::StartFence;
use redrive_core::queue_entry::QueueEntry;
use redrive_core::scheduler::DispatchedAttempt;
use redrive_core::{Event, Moment};
use tokio::time::Instant;

/// One attempt of an event, as its handler sees it. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Delivery {
    entry: Arc<QueueEntry>,
    attempt: u32,
    fence: StartFence,
    deadline: Option<Moment>,
    end: Option<Instant>,
}

impl Delivery {
    pub(in crate::engine) fn new(ticket: DispatchedAttempt, end: Option<Instant>) -> Self {
        let DispatchedAttempt { token, entry, attempt, start, deadline, .. } = ticket;
        let fence = StartFence { epoch: token.epoch, start };
        Self { entry: Arc::new(entry), attempt, fence, deadline, end }
    }

    /// The whole event.
    #[must_use]
    pub fn event(&self) -> &Event {
        &self.entry.event
    }

    /// The event id.
    #[must_use]
    pub fn id(&self) -> &str {
        &self.event().id
    }

    /// The queue.
    #[must_use]
    pub fn queue(&self) -> &str {
        &self.event().queue
    }

    /// The tenant.
    #[must_use]
    pub fn tenant(&self) -> &str {
        &self.event().tenant
    }

    /// The ordering key.
    #[must_use]
    pub fn key(&self) -> Option<&str> {
        self.event().key.as_deref()
    }

    /// The payload.
    #[must_use]
    pub fn payload(&self) -> &[u8] {
        &self.event().payload
    }

    /// The first header of that name.
    #[must_use]
    pub fn header(&self, name: &str) -> Option<&str> {
        let headers = &self.event().meta.as_ref()?.headers;
        headers.iter().find(|(known, _)| known.eq_ignore_ascii_case(name)).map(|(_, value)| value.as_str())
    }

    /// The number of this attempt, from 1. A crash charges none, so an attempt may be made twice.
    #[must_use]
    pub fn attempt(&self) -> u32 {
        self.attempt
    }

    /// Why it runs.
    #[must_use]
    pub fn mode(&self) -> Mode {
        self.entry.progress.mode
    }

    /// Whether later events of its key may have run before it: an operator redrove it out of order.
    #[must_use]
    pub fn is_out_of_order(&self) -> bool {
        self.entry.progress.out_of_order
    }

    /// The attempt history: the first few and the last several attempts.
    #[must_use]
    pub fn history(&self) -> Option<&AttemptHistory> {
        self.entry.progress.history.as_deref()
    }

    /// When it was published.
    #[must_use]
    pub fn published(&self) -> SystemTime {
        self.entry.published.into()
    }

    /// The time this attempt has left, if it has a deadline; independent of the machine's time of day.
    #[must_use]
    pub fn time_left(&self) -> Option<Duration> {
        self.end.map(|end| end.saturating_duration_since(Instant::now()))
    }

    /// The deadline of this attempt, if it has one, by the clock of events.
    #[must_use]
    pub fn deadline(&self) -> Option<SystemTime> {
        self.deadline.map(SystemTime::from)
    }

    /// The fence of this attempt: it grows with every change of owner, then with every attempt that the owner starts. A
    /// receiver that remembers the largest fence of a `(tenant, queue, key)` can refuse late calls, from a process that
    /// was replaced or from an attempt that timed out. See [`StartFences`](crate::sequence::StartFences).
    #[must_use]
    pub const fn fence(&self) -> StartFence {
        self.fence
    }

    /// The place of the event in its store, given at publish. It says nothing about which attempt is the later one: an
    /// event may commit late, or be redriven.
    #[must_use]
    pub fn seq(&self) -> u64 {
        self.entry.seq.0
    }

    /// The idempotency key for the call that this handler makes downstream: the same over all attempts of this event,
    /// and unique to it across queues.
    #[must_use]
    pub fn idempotency_key(&self) -> String {
        self.key_for("")
    }

    /// The same for a handler that makes several calls: one key for each step, by a name that does not change.
    #[must_use]
    pub fn key_for(&self, step: &str) -> String {
        let Event { tenant, queue, id, .. } = self.event();
        identity::downstream_key(tenant, queue, id, step)
    }

    pub(in crate::engine) fn entry(&self) -> &QueueEntry {
        &self.entry
    }
}
