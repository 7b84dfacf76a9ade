//! Commands and leases on one event: the changes to its row, and the refusals, in every store that keeps rows.

use std::sync::Arc;
use std::time::Duration;

use redrive_core::Moment;
use redrive_core::event::{DeadReason, Mode, State};
use redrive_core::queue_entry::EventProgress;
use redrive_core::triage::{JobId, RedriveOptions};

use super::dedupe::{DedupeRecord, End};
use super::rows::{EventRow, Stream};
use super::tracked::{LastLease, RedrivenBy, RowState, TrackedEvent};
use crate::event_status::EventStatus;
use crate::lease::{self, LeaseSettleResult, TokenHash};
use crate::operate::{ImportedLetter, Refusal};

/// The event that a command names, as it is now.
pub(in crate::stores) struct Located {
    pub(in crate::stores) event: TrackedEvent,
    pub(in crate::stores) was_fresh: bool,
    pub(in crate::stores) record: DedupeRecord,
    pub(in crate::stores) stream: Arc<Stream>,
}

impl Located {
    /// The event of this dedupe record, if it exists and has the expected revision.
    pub(in crate::stores) fn of(
        there: Option<(TrackedEvent, bool)>,
        record: DedupeRecord,
        stream: Arc<Stream>,
        rev: Option<u32>,
    ) -> Result<Self, Refusal> {
        let Some((event, was_fresh)) = there else {
            let is = record.end.as_ref().map_or(State::Done, |end| end.state);
            return Err(Refusal::State { is });
        };
        if rev.is_some_and(|rev| rev != event.rev) {
            return Err(Refusal::Changed { is: event.rev });
        }
        Ok(Self { event, was_fresh, record, stream })
    }
}

impl TrackedEvent {
    /// Its status in this state. Its dedupe record has the time of a discard, and until when it can be restored.
    pub(in crate::stores) fn found(&self, state: State) -> EventStatus {
        let progress = &self.progress;
        let is_dead = self.state.is_dead();
        let lease = self.lease.filter(|_| self.state == RowState::Leased);
        EventStatus {
            rev: self.rev,
            due: self.state.is_alive().then_some(progress.due),
            ended: self.died.filter(|_| is_dead),
            attempts: progress.attempts,
            reason: self.reason.filter(|_| is_dead),
            history: progress.history.clone(),
            cause: self.cause,
            route: progress.route.as_deref().map(str::to_owned),
            until: lease.map(|lease| lease.until),
            holds: self.state == RowState::DeadHolding,
            ..EventStatus::new(self.row.seq, state, self.row.published)
        }
    }

    /// Whether a dead letter may be redriven, as far as its own row tells.
    pub(in crate::stores) fn check_redrive(
        &self,
        redrive: &RedriveOptions,
        at: Moment,
    ) -> Result<(), Refusal> {
        let expires = self.row.event.expires.map(|expiry| expiry.moment(self.row.published));
        if expires.is_some_and(|expires| expires <= at) {
            return Err(Refusal::Expired);
        }
        if self.is_passed() && !redrive.out_of_order {
            return Err(Refusal::OutOfOrder);
        }
        Ok(())
    }

    /// The progress of a redriven dead letter. It keeps its identity, its seq and its attempt history.
    pub(in crate::stores) fn redriven(&self, redrive: &RedriveOptions, at: Moment) -> EventProgress {
        let EventProgress { attempts, history, out_of_order, .. } = self.progress.clone();
        EventProgress {
            mode: Mode::Redrive,
            attempts: if redrive.keep_attempts { attempts } else { 0 },
            previous: Duration::ZERO,
            history,
            route: redrive.to.as_deref().map(Arc::from),
            // Once later events of its key may have run before it, that stays so, even if it has blocked the key
            // since.
            out_of_order: out_of_order || self.is_passed(),
            ..EventProgress::fresh(at)
        }
    }

    /// Its progress as another event.
    pub(in crate::stores) fn edited(&self, at: Moment) -> EventProgress {
        let out_of_order = self.is_passed() || self.progress.out_of_order;
        EventProgress { mode: Mode::Redrive, out_of_order, ..EventProgress::fresh(at) }
    }

    /// Marks it as redriven: it is no dead letter any more.
    pub(in crate::stores) fn mark_redriven(&mut self, by: RedrivenBy) {
        self.rev += 1;
        (self.reason, self.died, self.death) = (None, None, None);
        (self.park_until, self.park_count, self.lease) = (None, None, None);
        self.redriven_by = Some(by);
        self.redriven = self.redriven.saturating_add(1);
    }

    /// Ends its lease: the worker loses it.
    pub(in crate::stores) fn take_away(&mut self, at: Moment) {
        if self.state == RowState::Leased {
            self.progress = self.progress.taken_away(at);
        }
    }

    /// Discards it. Its attempt history stays with it, and not on the dedupe record.
    pub(in crate::stores) fn discard(&mut self) {
        self.state = RowState::Discarded;
        self.rev += 1;
        (self.park_until, self.park_count, self.lease, self.death) = (None, None, None, None);
    }

    /// Makes it a dead letter again.
    pub(in crate::stores) fn restore(&mut self, at: Moment) {
        self.reason.get_or_insert(DeadReason::Killed);
        self.died = Some(at);
        self.rev += 1;
    }

    /// Makes it due now.
    pub(in crate::stores) fn make_due(&mut self, at: Moment) {
        self.progress.due = at;
        self.rev += 1;
    }

    /// Whether it failed and waits for its next attempt, which may be running.
    pub(in crate::stores) fn is_retrying(&self) -> bool {
        self.state == RowState::Waiting && self.progress.attempts > 0
    }

    /// A job retries it at once, before the retries that wait for the budget. If it was due already, its attempt may
    /// be running: its rev stays, so that the outcome can still be settled.
    pub(in crate::stores) fn retry_by(&mut self, job: JobId, at: Moment) {
        if self.progress.due > at {
            self.rev += 1;
        }
        self.progress.due = self.progress.started.unwrap_or(at).min(at);
        self.progress.mode = Mode::Redrive;
        self.redriven_by = Some(RedrivenBy::Retry(job));
    }

    /// Makes it a dead letter, by an operator's command.
    pub(in crate::stores) fn kill(&mut self, at: Moment) {
        self.take_away(at);
        self.reason = Some(DeadReason::Killed);
        self.died = Some(at);
        self.rev += 1;
    }

    /// Whether this was its last lease, and no attempt was made since.
    pub(in crate::stores) fn is_leased_last(&self, lease: &lease::LeaseRef) -> bool {
        let is_last = |mark: LastLease| mark.attempt == lease.attempt && mark.token == lease.token;
        self.state != RowState::Discarded
            && self.progress.attempts <= lease.attempt
            && self.lease.is_some_and(is_last)
    }

    /// An imported dead letter.
    pub(in crate::stores) fn imported(row: EventRow, letter: &ImportedLetter) -> Self {
        let mut tracked = Self::fresh(row, RowState::DeadPassed);
        tracked.progress.attempts = letter.attempts;
        tracked.progress.mode = if letter.attempts > 0 { Mode::Retry } else { Mode::Live };
        tracked.progress.history.clone_from(&letter.history);
        (tracked.reason, tracked.died) = (Some(letter.reason), Some(letter.died));
        tracked
    }
}

impl End {
    /// The end of a discarded event.
    pub(in crate::stores) const fn discarded(attempts: u32, at: Moment) -> Self {
        let (history, result, became, token) = (None, None, None, None);
        Self { state: State::Discarded, at, attempts, history, result, became, token }
    }

    /// The end of an event that an edit replaced.
    pub(in crate::stores) fn edited(was: &EventProgress, into: String, at: Moment) -> Self {
        let history = was.history.clone();
        Self { history, became: Some(into), ..Self::discarded(was.attempts, at) }
    }
}

/// Adds to a status what the dedupe record of a discarded event knows.
pub(in crate::stores) fn discarded(known: EventStatus, dedupe: &DedupeRecord) -> EventStatus {
    let ended = dedupe.end.as_ref().map(|end| end.at);
    EventStatus { ended, until: Some(dedupe.until), ..known }
}

/// The answer about a lease that is not the last one. Attempts may be counted anew, and are easy to guess: the token
/// identifies the worker that settled it.
pub(in crate::stores) fn disagreement(
    found: EventStatus,
    by: Option<TokenHash>,
    lease: &lease::LeaseRef,
) -> LeaseSettleResult {
    let is_done = found.state == State::Done && found.attempts == lease.attempt && by == Some(lease.token);
    if is_done { LeaseSettleResult::Already } else { LeaseSettleResult::Conflict(Box::new(found)) }
}
