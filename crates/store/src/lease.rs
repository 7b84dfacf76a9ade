//! Leases: attempts that workers outside the engine make.
//!
//! A lease is durable; each call is one commit. Its attempt decides whether a settle counts, not time, epoch or
//! process:
//!
//! | the attempt of the lease | a settle says |
//! |---|---|
//! | is the last one that was handed out, even if the settle is late or the process was restarted | applied |
//! | is the last one; the event died when this lease ran out, and is unchanged since | applied |
//! | is the one that settled the event, with its token | already |
//! | is not the last one, or another settle came first | conflict, with the present state; final |
//! | is of an unknown event | unknown |
//!
//! A lease that was not settled in time is an attempt of unknown outcome. Once that is written, the lease cannot be
//! extended: the extension would take back an attempt that was counted. A worker that tries gets "lapsed", which is
//! not final: a settle of that attempt counts as above.

use redrive_core::Moment;
use redrive_core::event::DeadReason;
use redrive_core::queue_entry::{EventChange, ParkFollowers, QueueEntry};

use crate::event_status::EventStatus;

/// Decides the outcome of a leased event from its entry at the time of the lease and, if it has become a dead letter
/// since, from the lapse that killed it. It may be called more than once, and must not block.
pub type DecideSettle = Box<dyn FnMut(&QueueEntry, Option<DeadByExpiry>) -> EventChange + Send>;

/// Decides the outcome of an event whose lease ran out before it was settled, from its entry at the time of the lease
/// and from the period of the lease. It may be called more than once, and must not block.
pub type DecideExpiry = Box<dyn FnMut(&QueueEntry, LeasePeriod) -> EventChange + Send>;

/// The period of a lease: a lapse that is noticed late still happened at the end of the period.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LeasePeriod {
    /// When it was handed out.
    pub from: Moment,
    /// When it ran out.
    pub until: Moment,
}

/// A dead letter that died because its last lease ran out, and is unchanged since.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DeadByExpiry {
    /// Why it died.
    pub reason: DeadReason,
    /// How it blocks the later events of its key.
    pub park: ParkFollowers,
    /// Whether later events of its key may have run before it.
    pub passed: bool,
}

impl DeadByExpiry {
    /// The outcome of a leased event after this change, which may come after the lease's lapse made it a dead letter.
    /// An end is accepted like any other. If the event stays dead, it blocks as many events as before, because those
    /// that ran cannot be called back. For the same reason it is not retried if its key went on: it stays dead, with
    /// its new cause.
    #[must_use]
    pub fn bounded(letter: Option<Self>, change: EventChange) -> EventChange {
        let Some(Self { reason: before, park, passed }) = letter else { return change };
        match change {
            EventChange::Retry(progress) if passed => EventChange::Dead { reason: before, progress, park },
            EventChange::Dead { reason, progress, .. } => EventChange::Dead { reason, progress, park },
            change => change,
        }
    }
}

/// The hash of the holder's secret token.
pub type TokenHash = [u8; 16];

/// A request for leases.
pub struct LeaseRequest {
    /// The queue. It must be pulled from.
    pub queue: String,
    /// The tenant; `None` for all tenants in turn.
    pub tenant: Option<String>,
    /// When.
    pub at: Moment,
    /// Until when the leases last.
    pub until: Moment,
    /// The hashes of the tokens, one for each event wanted at most.
    pub tokens: Vec<TokenHash>,
    /// How many bytes of payload in all, roughly: the event that exceeds it is the last.
    pub bytes_max: usize,
    /// The outcome of events whose lease ran out before they were settled.
    pub lapsed: DecideExpiry,
}

impl std::fmt::Debug for LeaseRequest {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Lease")
            .field("queue", &self.queue)
            .field("wanted", &self.tokens.len())
            .finish_non_exhaustive()
    }
}

/// The result of a request for leases.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct LeasedEvents {
    /// The events; the first has the first token. Each is at its attempt `progress.attempts + 1`.
    pub entries: Vec<QueueEntry>,
    /// How many leases ran out before they were settled.
    pub lapsed: usize,
    /// When there may be more, if known.
    pub next_due: Option<Moment>,
}

/// The lease that a worker holds: which event, which attempt, and the token that proves it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeaseRef {
    /// The tenant.
    pub tenant: String,
    /// The queue.
    pub queue: String,
    /// The event id.
    pub id: String,
    /// The number of the attempt.
    pub attempt: u32,
    /// The hash of its token.
    pub token: TokenHash,
}

/// A settle of a leased event.
pub struct LeaseSettle {
    /// The lease.
    pub lease: LeaseRef,
    /// When.
    pub at: Moment,
    /// Decides the outcome.
    pub decide: DecideSettle,
}

impl std::fmt::Debug for LeaseSettle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LeaseSettle").field("lease", &self.lease).finish_non_exhaustive()
    }
}

/// The store's answer about a lease.
#[derive(Debug, Clone, PartialEq)]
pub enum LeaseSettleResult {
    /// Written: settled, or extended.
    Applied,
    /// The same attempt, with the same token, settled it before.
    Already,
    /// Another attempt holds the event, another outcome was settled, or the token is wrong. Final; with the present
    /// state.
    Conflict(Box<EventStatus>),
    /// Only for an extension: the lease ran out, and its attempt was counted. The event was not leased again, so a
    /// settle of this attempt still counts; with the present state.
    Lapsed(Box<EventStatus>),
    /// There is no such event.
    Unknown,
}
