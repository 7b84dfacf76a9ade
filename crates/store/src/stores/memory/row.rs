//! What is kept of an event, and what is remembered of an identity.

use std::sync::Arc;

use redrive_core::entry::{Entry, Park, Seq, StreamId};
use redrive_core::event::{DeadReason, Fingerprint, Mode, State as Where, Story};
use redrive_core::triage::{CauseId, JobId};
use redrive_core::{Event, Moment};

use crate::lease::{Lapsed, TokenHash};

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

/// Where a runnable event is found: by stream and shard, whether it is a retry, when it is due.
pub(super) type Place = (StreamId, u32, bool, Moment, Seq);

/// Where a dead letter is found that holds up others until some time.
pub(super) type Hold = (StreamId, u32, Moment, Seq);

/// An event that lives, or is dead and not dealt with, or can be restored.
#[derive(Debug, Clone)]
pub(super) struct Row {
    pub(super) entry: Entry,
    /// The key that it keeps the order of, as the queue was declared when it was published.
    pub(super) chain: Option<Chain>,
    /// Stays where it was discarded after its death, so that it is restored as it was.
    pub(super) death: Option<Death>,
    pub(super) discarded: bool,
    /// The last lease, as long as the event lives, or is dead by the end of that lease: a late answer is told by it.
    pub(super) lease: Option<Hand>,
    /// What it died of, also while it lives again: who fails again is counted there.
    pub(super) cause: Option<CauseId>,
    /// Who put it back, until it ends or dies again.
    pub(super) put_back: Option<PutBack>,
    /// How often it was put back.
    pub(super) redriven: u32,
}

/// The last lease of an event.
#[derive(Debug, Clone)]
pub(super) struct Hand {
    pub(super) attempt: u32,
    pub(super) token: TokenHash,
    pub(super) from: Moment,
    pub(super) until: Moment,
    /// Whether somebody works at it. Otherwise it was over before an answer came.
    pub(super) out: bool,
}

/// Who put a dead letter back: a line of the audit, or a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PutBack {
    Order(u64),
    Job(JobId),
}

/// What is known of a dead letter.
#[derive(Debug, Clone)]
pub(super) struct Death {
    /// Grows with every death in the store.
    pub(super) number: u64,
    pub(super) reason: DeadReason,
    pub(super) at: Moment,
    /// Whether those of its key that follow wait.
    pub(super) holds: bool,
    /// When they go on.
    pub(super) until: Option<Moment>,
    /// Above how many of them they go on.
    pub(super) count: Option<u32>,
}

impl Row {
    pub(super) fn place(&self) -> Place {
        let Entry { stream, shard, ref progress, seq, .. } = self.entry;
        let retry = progress.attempts > 0 || progress.mode != Mode::Live;
        (stream, shard, retry, progress.due, seq)
    }

    /// Whether it is neither dead nor discarded.
    pub(super) fn lives(&self) -> bool {
        self.death.is_none() && !self.discarded
    }

    /// Whether somebody works at it who leased it.
    pub(super) fn is_out(&self) -> bool {
        self.lease.as_ref().is_some_and(|lease| lease.out)
    }

    /// Whether an attempt may begin, as far as it is up to the event alone.
    pub(super) fn is_free(&self) -> bool {
        self.lives() && !self.is_out()
    }

    /// Whether it counts in the order of its key.
    pub(super) fn blocks(&self) -> bool {
        self.lives() || self.holds()
    }

    /// Its death, while it is a dead letter.
    pub(super) fn letter(&self) -> Option<&Death> {
        self.death.as_ref().filter(|_| !self.discarded)
    }

    /// Whether it is a dead letter that holds up its key.
    pub(super) fn holds(&self) -> bool {
        self.letter().is_some_and(|death| death.holds)
    }

    /// Whether it is a dead letter whose key went on without it.
    pub(super) fn is_passed(&self) -> bool {
        self.letter().is_some_and(|death| !death.holds) && self.chain.is_some()
    }

    /// What a late answer has to know of it, while it is a dead letter.
    pub(super) fn lapsed(&self) -> Option<Lapsed> {
        let Death { reason, holds, until, count, .. } = *self.letter()?;
        let park = if holds { Park::UpTo { until, count } } else { Park::GoOn };
        Some(Lapsed { reason, park, passed: self.is_passed() })
    }

    pub(super) fn hold(&self) -> Option<Hold> {
        let death = self.letter().filter(|death| death.holds)?;
        Some((self.entry.stream, self.entry.shard, death.until?, self.entry.seq))
    }
}

/// What is remembered of an identity.
#[derive(Debug, Clone)]
pub(super) struct Receipt {
    pub(super) identity: Identity,
    /// Where its event is, or was: after an edit another one is there.
    pub(super) seq: Seq,
    pub(super) fingerprint: Fingerprint,
    pub(super) published: Moment,
    /// How long it is remembered at least; longer while its event lives.
    pub(super) until: Moment,
    /// What cannot be told from the absence of the event, which means done at the first attempt.
    pub(super) end: Option<End>,
}

/// How an event ended.
#[derive(Debug, Clone)]
pub(super) struct End {
    pub(super) state: Where,
    pub(super) at: Moment,
    pub(super) attempts: u32,
    pub(super) story: Option<Arc<Story>>,
    pub(super) result: Option<Vec<u8>>,
    /// The id under which it goes on, where it was edited.
    pub(super) into: Option<String>,
    /// Whose lease did it, where it was leased and is done.
    pub(super) token: Option<TokenHash>,
}

impl End {
    /// An end that left nothing behind but the attempts.
    pub(super) const fn of(state: Where, at: Moment, attempts: u32, story: Option<Arc<Story>>) -> Self {
        Self { state, at, attempts, story, result: None, into: None, token: None }
    }
}
