//! The rows: an event, and the dedupe record of an identity.

use std::sync::Arc;

use redrive_core::event::{AttemptHistory, DeadReason, Fingerprint, Mode, State as Where};
use redrive_core::queue_entry::{ParkFollowers, QueueEntry, Seq, StreamId};
use redrive_core::triage::{CauseId, JobId};
use redrive_core::{Event, Moment};

use crate::lease::{DeadByExpiry, TokenHash};

/// `(tenant, queue, id)`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Identity {
    pub(super) tenant: String,
    pub(super) queue: String,
    pub(super) id: String,
}

impl Identity {
    pub(super) fn of(event: &Event) -> Self {
        Self { tenant: event.tenant.clone(), queue: event.queue.clone(), id: event.id.clone() }
    }
}

/// The events of one key that keep their order: `(stream, key)`.
pub(super) type Chain = (StreamId, Arc<str>);

/// The index of runnable events: by stream and shard, whether it is a retry, and when it is due.
pub(super) type RunnableKey = (StreamId, u32, bool, Moment, Seq);

/// The index of dead letters that block others until some time.
pub(super) type Hold = (StreamId, u32, Moment, Seq);

/// An event that lives, is an unresolved dead letter, or can be restored.
#[derive(Debug, Clone)]
pub(super) struct Row {
    pub(super) entry: QueueEntry,
    /// The key whose order it keeps, as the queue was declared when it was published.
    pub(super) chain: Option<Chain>,
    /// Kept when it is discarded after its death, so that it is restored as it was.
    pub(super) death: Option<Death>,
    pub(super) discarded: bool,
    /// The last lease, as long as the event lives, or died because that lease ran out: it identifies a late settle.
    pub(super) lease: Option<Hand>,
    /// The cause of its death, also after it was redriven: another failure is counted there.
    pub(super) cause: Option<CauseId>,
    /// What redrove it, until it ends or dies again.
    pub(super) put_back: Option<RedrivenBy>,
    /// How often it was redriven.
    pub(super) redriven: u32,
}

/// The last lease of an event.
#[derive(Debug, Clone)]
pub(super) struct Hand {
    pub(super) attempt: u32,
    pub(super) token: TokenHash,
    pub(super) from: Moment,
    pub(super) until: Moment,
    /// Whether a worker holds it. Otherwise the lease ran out before a settle came.
    pub(super) out: bool,
}

/// What redrove a dead letter: a command, by its line in the audit, or a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RedrivenBy {
    Order(u64),
    Job(JobId),
    /// A job that retried a living event at once: the next end of an attempt counts for it.
    Retry(JobId),
}

impl RedrivenBy {
    /// The job, if it was one.
    pub(super) const fn job(self) -> Option<JobId> {
        match self {
            Self::Order(_) => None,
            Self::Job(id) | Self::Retry(id) => Some(id),
        }
    }
}

/// The death of a dead letter.
#[derive(Debug, Clone)]
pub(super) struct Death {
    /// Grows with every death in the store.
    pub(super) number: u64,
    pub(super) reason: DeadReason,
    pub(super) at: Moment,
    /// Whether it blocks the later events of its key.
    pub(super) holds: bool,
    /// When the block ends.
    pub(super) until: Option<Moment>,
    /// How many events it may block.
    pub(super) count: Option<u32>,
}

impl Row {
    pub(super) fn place(&self) -> RunnableKey {
        let QueueEntry { stream, shard, ref progress, seq, .. } = self.entry;
        let retry = progress.attempts > 0 || progress.mode != Mode::Live;
        (stream, shard, retry, progress.due, seq)
    }

    /// Whether it is neither dead nor discarded.
    pub(super) fn lives(&self) -> bool {
        self.death.is_none() && !self.discarded
    }

    /// Whether a worker holds it under a lease.
    pub(super) fn is_out(&self) -> bool {
        self.lease.as_ref().is_some_and(|lease| lease.out)
    }

    /// Whether an attempt may begin, as far as the event itself is concerned.
    pub(super) fn is_free(&self) -> bool {
        self.lives() && !self.is_out()
    }

    /// Whether it counts in the order of its key.
    pub(super) fn blocks(&self) -> bool {
        self.lives() || self.holds()
    }

    /// Whether it failed and waits for its next attempt, which may be running.
    pub(super) fn is_retrying(&self) -> bool {
        self.is_free() && self.entry.progress.attempts > 0
    }

    /// Its death, while it is a dead letter.
    pub(super) fn letter(&self) -> Option<&Death> {
        self.death.as_ref().filter(|_| !self.discarded)
    }

    /// Whether it is a dead letter that blocks its key.
    pub(super) fn holds(&self) -> bool {
        self.letter().is_some_and(|death| death.holds)
    }

    /// Whether it is a dead letter that no longer blocks its key.
    pub(super) fn is_passed(&self) -> bool {
        self.letter().is_some_and(|death| !death.holds) && self.chain.is_some()
    }

    /// What a late settle needs to know of a dead letter.
    pub(super) fn lapsed(&self) -> Option<DeadByExpiry> {
        let Death { reason, holds, until, count, .. } = *self.letter()?;
        let park = if holds { ParkFollowers::UpTo { until, count } } else { ParkFollowers::No };
        Some(DeadByExpiry { reason, park, passed: self.is_passed() })
    }

    pub(super) fn hold(&self) -> Option<Hold> {
        let death = self.letter().filter(|death| death.holds)?;
        Some((self.entry.stream, self.entry.shard, death.until?, self.entry.seq))
    }
}

/// The dedupe record of an identity.
#[derive(Debug, Clone)]
pub(super) struct DedupeRecord {
    pub(super) identity: Identity,
    /// The seq of its event: after an edit, the replacement has it.
    pub(super) seq: Seq,
    pub(super) fingerprint: Fingerprint,
    pub(super) published: Moment,
    /// How long it is kept at least; longer while its event lives.
    pub(super) until: Moment,
    /// The end, if there is more to it than "done at the first attempt", which a missing event means.
    pub(super) end: Option<End>,
}

/// How an event ended.
#[derive(Debug, Clone)]
pub(super) struct End {
    pub(super) state: Where,
    pub(super) at: Moment,
    pub(super) attempts: u32,
    pub(super) history: Option<Arc<AttemptHistory>>,
    pub(super) result: Option<Vec<u8>>,
    /// The id of the replacement, if it was edited.
    pub(super) into: Option<String>,
    /// The token of the lease that settled it as done, if it was leased.
    pub(super) token: Option<TokenHash>,
}

impl End {
    /// An end with nothing but its attempts.
    pub(super) const fn of(
        state: Where,
        at: Moment,
        attempts: u32,
        history: Option<Arc<AttemptHistory>>,
    ) -> Self {
        Self { state, at, attempts, history, result: None, into: None, token: None }
    }
}
