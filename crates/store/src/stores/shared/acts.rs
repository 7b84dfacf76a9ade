//! What orders and leases make of one event: the changes to its row, and what is refused, whoever keeps the row.

use std::sync::Arc;
use std::time::Duration;

use redrive_core::Moment;
use redrive_core::entry::Progress;
use redrive_core::event::{DeadReason, Mode, State};
use redrive_core::triage::Redrive;

use super::held::{Held, Mark, PutBack, Stand};
use super::receipt::{End, Receipt};
use super::rows::{EventRow, Stream};
use crate::found::Found;
use crate::lease::{self, LeaseSettled, TokenHash};
use crate::operate::{Letter, Refusal};

/// An event that is meant, as it is now.
pub(in crate::stores) struct Met {
    pub(in crate::stores) held: Held,
    pub(in crate::stores) was_live: bool,
    pub(in crate::stores) receipt: Receipt,
    pub(in crate::stores) stream: Arc<Stream>,
}

impl Met {
    /// The event that has this receipt, if it is there and as it was said to be.
    pub(in crate::stores) fn of(
        there: Option<(Held, bool)>,
        receipt: Receipt,
        stream: Arc<Stream>,
        rev: Option<u32>,
    ) -> Result<Self, Refusal> {
        let Some((held, was_live)) = there else {
            let is = receipt.end.as_ref().map_or(State::Done, |end| end.state);
            return Err(Refusal::State { is });
        };
        if rev.is_some_and(|rev| rev != held.rev) {
            return Err(Refusal::Changed { is: held.rev });
        }
        Ok(Self { held, was_live, receipt, stream })
    }
}

impl Held {
    /// What is known of it, where it is in this state. When it was discarded, and until when it can be restored, its
    /// receipt knows.
    pub(in crate::stores) fn found(&self, state: State) -> Found {
        let progress = &self.progress;
        let is_dead = self.stand.is_dead();
        let lease = self.lease.filter(|_| self.stand == Stand::Leased);
        Found {
            rev: self.rev,
            due: self.stand.is_alive().then_some(progress.due),
            ended: self.died.filter(|_| is_dead),
            attempts: progress.attempts,
            reason: self.reason.filter(|_| is_dead),
            story: progress.story.clone(),
            cause: self.cause,
            route: progress.route.as_deref().map(str::to_owned),
            until: lease.map(|lease| lease.until),
            holds: self.stand == Stand::DeadHolding,
            ..Found::new(self.row.seq, state, self.row.published)
        }
    }

    /// Whether a dead letter may be put back, as far as it knows itself.
    pub(in crate::stores) fn check_redrive(&self, redrive: &Redrive, at: Moment) -> Result<(), Refusal> {
        let expires = self.row.event.expires.map(|expiry| expiry.moment(self.row.published));
        if expires.is_some_and(|expires| expires <= at) {
            return Err(Refusal::Expired);
        }
        if self.is_passed() && !redrive.out_of_order {
            return Err(Refusal::OutOfOrder);
        }
        Ok(())
    }

    /// How a dead letter goes on that is put back. Its identity, its place and its story are what they were.
    pub(in crate::stores) fn redriven(&self, redrive: &Redrive, at: Moment) -> Progress {
        let Progress { attempts, story, out_of_order, .. } = self.progress.clone();
        Progress {
            mode: Mode::Redrive,
            attempts: if redrive.keep_attempts { attempts } else { 0 },
            previous: Duration::ZERO,
            story,
            route: redrive.to.as_deref().map(Arc::from),
            // Once later ones of its key may have run before it, that stays so, also if it holds up the key since.
            out_of_order: out_of_order || self.is_passed(),
            ..Progress::fresh(at)
        }
    }

    /// How it goes on as another event.
    pub(in crate::stores) fn edited(&self, at: Moment) -> Progress {
        let out_of_order = self.is_passed() || self.progress.out_of_order;
        Progress { mode: Mode::Redrive, out_of_order, ..Progress::fresh(at) }
    }

    /// It is no dead letter any more.
    pub(in crate::stores) fn put_back(&mut self, by: PutBack) {
        self.rev += 1;
        (self.reason, self.died, self.death) = (None, None, None);
        (self.park_until, self.park_count, self.lease) = (None, None, None);
        self.put_back = Some(by);
        self.redriven = self.redriven.saturating_add(1);
    }

    /// Whoever has it loses it.
    pub(in crate::stores) fn take_away(&mut self, at: Moment) {
        if self.stand == Stand::Leased {
            self.progress = self.progress.taken_away(at);
        }
    }

    /// It is taken away. Its story stays with it, and not on the receipt.
    pub(in crate::stores) fn discard(&mut self) {
        self.stand = Stand::Discarded;
        self.rev += 1;
        (self.park_until, self.park_count, self.lease, self.death) = (None, None, None, None);
    }

    /// It is a dead letter again.
    pub(in crate::stores) fn restore(&mut self, at: Moment) {
        self.reason.get_or_insert(DeadReason::Killed);
        self.died = Some(at);
        self.rev += 1;
    }

    /// It is a dead letter, because an operator says so.
    pub(in crate::stores) fn kill(&mut self, at: Moment) {
        self.take_away(at);
        self.reason = Some(DeadReason::Killed);
        self.died = Some(at);
        self.rev += 1;
    }

    /// Whether this was its last lease, and no attempt was made since.
    pub(in crate::stores) fn is_leased_last(&self, lease: &lease::Held) -> bool {
        let is_last = |mark: Mark| mark.attempt == lease.attempt && mark.token == lease.token;
        self.stand != Stand::Discarded
            && self.progress.attempts <= lease.attempt
            && self.lease.is_some_and(is_last)
    }

    /// A letter from elsewhere.
    pub(in crate::stores) fn imported(row: EventRow, letter: &Letter) -> Self {
        let mut held = Self::fresh(row, Stand::DeadPassed);
        held.progress.attempts = letter.attempts;
        held.progress.mode = if letter.attempts > 0 { Mode::Retry } else { Mode::Live };
        held.progress.story.clone_from(&letter.story);
        (held.reason, held.died) = (Some(letter.reason), Some(letter.died));
        held
    }
}

impl End {
    /// It was taken away.
    pub(in crate::stores) const fn discarded(attempts: u32, at: Moment) -> Self {
        let (story, result, became, token) = (None, None, None, None);
        Self { state: State::Discarded, at, attempts, story, result, became, token }
    }

    /// Another took its place.
    pub(in crate::stores) fn edited(was: &Progress, into: String, at: Moment) -> Self {
        let story = was.story.clone();
        Self { story, became: Some(into), ..Self::discarded(was.attempts, at) }
    }
}

/// The same with what a receipt tells of an event that was taken away.
pub(in crate::stores) fn discarded(known: Found, receipt: &Receipt) -> Found {
    let ended = receipt.end.as_ref().map(|end| end.at);
    Found { ended, until: Some(receipt.until), ..known }
}

/// What is said of a lease that is not the last one. Attempts may begin anew, and are easy to guess: who did it is
/// known by the token.
pub(in crate::stores) fn disagreement(
    found: Found,
    by: Option<TokenHash>,
    lease: &lease::Held,
) -> LeaseSettled {
    let is_done = found.state == State::Done && found.attempts == lease.attempt && by == Some(lease.token);
    if is_done { LeaseSettled::Already } else { LeaseSettled::Conflict(Box::new(found)) }
}
