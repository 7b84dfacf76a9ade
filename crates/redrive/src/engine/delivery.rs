//! What a handler sees of an attempt.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use redrive_core::entry::Entry;
use redrive_core::event::{Mode, Story, identity};
use redrive_core::scheduler::Ticket;
use redrive_core::{Event, Moment};
use tokio::time::Instant;

/// One attempt of an event, as its handler sees it. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Delivery {
    entry: Arc<Entry>,
    attempt: u32,
    epoch: u64,
    deadline: Option<Moment>,
    end: Option<Instant>,
}

impl Delivery {
    pub(super) fn new(ticket: Ticket, end: Option<Instant>) -> Self {
        let Ticket { grant, entry, attempt, deadline, .. } = ticket;
        Self { entry: Arc::new(entry), attempt, epoch: grant.epoch, deadline, end }
    }

    /// The whole event.
    #[must_use]
    pub fn event(&self) -> &Event {
        &self.entry.event
    }

    /// The identity of the intent.
    #[must_use]
    pub fn id(&self) -> &str {
        &self.event().id
    }

    /// Its queue.
    #[must_use]
    pub fn queue(&self) -> &str {
        &self.event().queue
    }

    /// Whose it is.
    #[must_use]
    pub fn tenant(&self) -> &str {
        &self.event().tenant
    }

    /// Its ordering key.
    #[must_use]
    pub fn key(&self) -> Option<&str> {
        self.event().key.as_deref()
    }

    /// What it says.
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

    /// Which attempt this is, from 1. A crash charges none, so an attempt may be made twice.
    #[must_use]
    pub fn attempt(&self) -> u32 {
        self.attempt
    }

    /// Why it runs.
    #[must_use]
    pub fn mode(&self) -> Mode {
        self.entry.progress.mode
    }

    /// Whether later events of its key may have run before it: an operator put it back all the same.
    #[must_use]
    pub fn is_out_of_order(&self) -> bool {
        self.entry.progress.out_of_order
    }

    /// The attempts before, the first few and the last several.
    #[must_use]
    pub fn story(&self) -> Option<&Story> {
        self.entry.progress.story.as_deref()
    }

    /// When it was published.
    #[must_use]
    pub fn published(&self) -> SystemTime {
        self.entry.published.into()
    }

    /// How much time this attempt has left, if it is ended at all: whatever the machine's time of day.
    #[must_use]
    pub fn time_left(&self) -> Option<Duration> {
        self.end.map(|end| end.saturating_duration_since(Instant::now()))
    }

    /// When this attempt is ended, if it is, by the clock that events go by.
    #[must_use]
    pub fn deadline(&self) -> Option<SystemTime> {
        self.deadline.map(SystemTime::from)
    }

    /// `(epoch, seq)`: grows with every change of owner, then with every event of the queue. A receiver that
    /// remembers the largest it has seen for a key can refuse what comes late from a process that was
    /// replaced.
    #[must_use]
    pub fn token(&self) -> (u64, u64) {
        (self.epoch, self.entry.seq.0)
    }

    /// The key for the call that this handler makes downstream: the same over all attempts of this event, and
    /// of no other, whatever its queue.
    #[must_use]
    pub fn idempotency_key(&self) -> String {
        self.key_for("")
    }

    /// The same for a handler that makes several calls: one for each step, by a name that does not change.
    #[must_use]
    pub fn key_for(&self, step: &str) -> String {
        let Event { tenant, queue, id, .. } = self.event();
        identity::downstream_key(tenant, queue, id, step)
    }

    pub(super) fn entry(&self) -> &Entry {
        &self.entry
    }
}
