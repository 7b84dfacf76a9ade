//! How an attempt ended, and what happens to the event.

use std::sync::Arc;
use std::time::Duration;

use super::dispatch::{Passes, tuned};
use super::table::SeqMap;
use super::{QueuePlan, Running, Scheduler, TrackedEvent, TrackedState};
use crate::disposition::{Disposition, Executed};
use crate::event::{AttemptHistory, AttemptRecord, Cause, DeadReason, Mode};
use crate::moment::Moment;
use crate::observe::Outcome;
use crate::planted::{PlantedBug, has};
use crate::policy::Policy;
use crate::queue_entry::{EventChange, EventProgress, QueueEntry, Seq};
use crate::random::RandomSource;
use crate::report::StopReason;
use crate::run::{Health, RetryState, Verdict, executed, health, load};

/// How long to wait before the next attempt if the store could not keep the effect: the disk is full, the
/// database is busy. Each attempt costs a write, so the wait is not the shortest possible.
const KEEP_AGAIN: Duration = Duration::from_millis(500);

/// How an attempt ended, with details.
#[derive(Debug, Clone)]
pub struct EndedAttempt {
    /// The end of the attempt.
    pub end: AttemptEnd,
    /// How long it took.
    pub took: Duration,
    /// What went wrong, if something did.
    pub cause: Option<Cause>,
    /// The handler's result, returned to publishers that repeat the identity.
    pub result: Option<Vec<u8>>,
    /// Whether the effect happened, if that is known better than from the handler: it was rolled back.
    pub executed: Option<Executed>,
}

impl EndedAttempt {
    /// An attempt that ended like this, without details.
    #[must_use]
    pub const fn new(end: AttemptEnd) -> Self {
        Self { end, took: Duration::ZERO, cause: None, result: None, executed: None }
    }
}

/// The end of an attempt.
#[derive(Debug, Clone, PartialEq)]
pub enum AttemptEnd {
    /// The outcome that the handler reported.
    Outcome(Outcome),
    /// The handler panicked.
    Panicked,
    /// The payload could not be decoded or is invalid; the handler did not run.
    Undecodable,
    /// Effect and settle are already in one commit.
    Committed {
        /// The event of the same key that may run now.
        next: Option<Box<QueueEntry>>,
    },
    /// Another writer changed the event; the attempt changed nothing.
    Stale,
    /// The shard has another owner; the attempt changed nothing.
    Fenced,
    /// The store could not keep the effect, and may later; or the process was not able to begin. Nothing was
    /// changed, and nothing is charged.
    NotKept,
    /// The attempt was abandoned without an outcome, because the process stops. Nothing is charged.
    Released,
}

impl AttemptEnd {
    /// The word in records and metrics.
    #[must_use]
    pub const fn as_str(&self) -> &'static str {
        match self {
            Self::Outcome(outcome) => outcome.as_str(),
            Self::Panicked => "panic",
            Self::Undecodable => "undecodable",
            Self::Committed { .. } => "ok",
            Self::Stale | Self::Fenced => "fenced",
            Self::NotKept => "not kept",
            Self::Released => "released",
        }
    }
}

impl Scheduler {
    pub(super) fn ended(
        &mut self,
        seq: Seq,
        rev: u32,
        ended: EndedAttempt,
        now: Moment,
        random: &mut impl RandomSource,
    ) {
        let Some(held) = self.tracked.get_mut(&seq) else { return };
        // The answer of an attempt that was abandoned before says nothing about the running one.
        if held.entry.rev != rev && !has(PlantedBug::LateAnswerWins) {
            return;
        }
        let state = std::mem::replace(&mut held.state, TrackedState::Ready);
        let TrackedState::Running(running) = state else {
            held.state = state;
            return;
        };
        let queue = held.queue;
        let shard = held.entry.shard;
        let by = &self.queues[held.via].plan;
        let change = judge(by, &held.entry, running.began, &ended, now, random);
        let change = change.ok_or_else(|| ended.end.clone()).map(|change| match change {
            // The queue that the event belongs to decides what follows a dead letter, whichever queue ran it.
            EventChange::Dead { reason, progress, .. } => {
                let park = self.queues[queue].plan.after_dead.park(now);
                EventChange::Dead { reason, progress, park }
            }
            change => change,
        });
        let lane = running.lane;
        tell(*running, &ended, self.shared_time(now));
        self.running -= 1;
        self.queues[queue].ended(lane);
        match change {
            Ok(change) => self.settle(seq, change, now),
            Err(AttemptEnd::Committed { next }) => {
                let change = done_before(&self.tracked, seq);
                self.gone(seq, change, next.map(|next| *next), now);
            }
            Err(AttemptEnd::Fenced) => self.lose(shard),
            Err(AttemptEnd::Stale) => self.reload(seq),
            Err(_) => self.give_up(seq, now),
        }
    }
}

/// The change that a transaction has already written, if there is something to report.
fn done_before(held: &SeqMap<TrackedEvent>, seq: Seq) -> Option<EventChange> {
    let EventProgress { attempts, history, .. } = &held.get(&seq)?.entry.progress;
    let done = EventChange::DoneWith { result: None, attempts: attempts + 1, history: history.clone() };
    (*attempts > 0).then_some(done)
}

/// Reports the result of an attempt to breaker and limit.
fn tell(running: Running, ended: &EndedAttempt, now: Moment) {
    let Running { hurried, pass, permit, .. } = running;
    report((pass, permit), hurried, ended, now);
}

pub(super) fn report((pass, permit): Passes, hurried: bool, ended: &EndedAttempt, now: Moment) {
    let outcome = match &ended.end {
        AttemptEnd::Outcome(outcome) => Some(*outcome),
        AttemptEnd::Committed { .. } => Some(Outcome::Classified(Disposition::Ok)),
        _ => None,
    };
    if let Some(pass) = pass {
        match outcome.map(|outcome| health(outcome, hurried)) {
            Some(Health::Well) => pass.succeeded(),
            Some(Health::Unwell) => pass.failed(now),
            Some(Health::Unsaid) | None => {}
        }
    }
    if let (Some(permit), Some(outcome)) = (permit, outcome) {
        permit.settle(load(outcome, hurried));
    }
}

/// The change to an event after an attempt that began at `began` and ended like this. `None` if nothing is to
/// be decided: the attempt is committed, stale, fenced or released. A function of its arguments.
pub fn judge(
    plan: &QueuePlan,
    entry: &QueueEntry,
    began: Moment,
    ended: &EndedAttempt,
    now: Moment,
    random: &mut impl RandomSource,
) -> Option<EventChange> {
    let change = match &ended.end {
        AttemptEnd::Outcome(outcome) => {
            decide(&plan.policy, entry, began, ended, *outcome, None, now, random)
        }
        AttemptEnd::Panicked => {
            let outcome = Outcome::from(plan.panics);
            let reason = Some(DeadReason::Panicked);
            decide(&plan.policy, entry, began, ended, outcome, reason, now, random)
        }
        AttemptEnd::Undecodable => undecodable(entry, began, ended),
        AttemptEnd::NotKept => put_off(entry, now),
        AttemptEnd::Committed { .. } | AttemptEnd::Stale | AttemptEnd::Fenced | AttemptEnd::Released => {
            return None;
        }
    };
    Some(match change {
        EventChange::Dead { reason, progress, .. } => {
            EventChange::Dead { reason, progress, park: plan.after_dead.park(now) }
        }
        change => change,
    })
}

/// The change to an event after an attempt that reported an outcome. A function of its arguments.
#[allow(clippy::too_many_arguments, reason = "a decision names all that it looks at")]
fn decide(
    policy: &Policy,
    entry: &QueueEntry,
    began: Moment,
    ended: &EndedAttempt,
    outcome: Outcome,
    dead: Option<DeadReason>,
    now: Moment,
    random: &mut impl RandomSource,
) -> EventChange {
    let tuned = tuned(policy, entry);
    let settings = tuned.as_ref().unwrap_or(policy.settings());
    let progress = &entry.progress;
    let attempts = progress.attempts + 1;
    let history = RetryState {
        attempts,
        attempts_max: settings.attempts,
        nested: false,
        started: progress.started,
        deadline: entry.expires,
        previous: progress.previous,
    };
    let mut verdict = settings.plan(&history, settings.clamped(outcome), now, random);
    if let Verdict::RetryAt(at) = &mut verdict
        && has(PlantedBug::RetriesTooEarly)
    {
        *at = now;
    }
    if verdict == Verdict::Done && attempts == 1 && ended.result.is_none() && progress.history.is_none() {
        return EventChange::Done;
    }
    let delay = if let Verdict::RetryAt(at) = verdict { Some(at.since(now)) } else { None };
    let history = with_record(progress, began, ended, Some(outcome), attempts, delay);
    let history = Some(Arc::new(history));
    match verdict {
        Verdict::Done => EventChange::DoneWith { result: ended.result.clone(), attempts, history },
        Verdict::Drop => EventChange::Dropped { attempts, history },
        Verdict::RetryAt(due) => EventChange::Retry(EventProgress {
            due,
            attempts,
            mode: Mode::Retry,
            started: progress.started,
            previous: delay.unwrap_or_default(),
            crash_count: 0,
            suspect: false,
            history,
            route: progress.route.clone(),
            out_of_order: progress.out_of_order,
        }),
        Verdict::Dead(StopReason::Deadline) => EventChange::Expired { attempts, history },
        Verdict::Dead(reason) => {
            let reason = match (reason, dead) {
                (StopReason::Permanent | StopReason::Unclassified, Some(dead)) => dead,
                (reason, _) => DeadReason::from_stop(reason),
            };
            let progress =
                EventProgress { attempts, history, crash_count: 0, suspect: false, ..progress.clone() };
            EventChange::Dead { reason, progress, park: crate::queue_entry::ParkFollowers::No }
        }
    }
}

/// Unchanged, a little later. The attempt ran to its end and the process lives, so the event is no suspect
/// any more.
fn put_off(entry: &QueueEntry, now: Moment) -> EventChange {
    let due = now + KEEP_AGAIN;
    EventChange::Retry(EventProgress { due, crash_count: 0, suspect: false, ..entry.progress.clone() })
}

fn undecodable(entry: &QueueEntry, began: Moment, ended: &EndedAttempt) -> EventChange {
    let progress = &entry.progress;
    let history = with_record(progress, began, ended, None, progress.attempts, None);
    let progress = EventProgress {
        history: Some(Arc::new(history)),
        crash_count: 0,
        suspect: false,
        ..progress.clone()
    };
    EventChange::Dead {
        reason: DeadReason::Undecodable,
        progress,
        park: crate::queue_entry::ParkFollowers::No,
    }
}

fn with_record(
    progress: &EventProgress,
    began: Moment,
    ended: &EndedAttempt,
    outcome: Option<Outcome>,
    attempt: u32,
    delay: Option<Duration>,
) -> AttemptHistory {
    let failed =
        outcome.is_some_and(|it| !matches!(it, Outcome::Classified(Disposition::Ok | Disposition::Drop)));
    let record = AttemptRecord {
        attempt,
        mode: progress.mode.as_str().to_owned(),
        at_ms: began.as_nanos() / 1_000_000,
        took_ms: millis(ended.took),
        disposition: ended.end.as_str().to_owned(),
        executed: outcome.filter(|_| failed).map(|outcome| ended.executed.unwrap_or(executed(outcome))),
        cause: ended.cause.clone(),
        delay_ms: delay.map(millis),
    };
    progress.history.as_deref().cloned().unwrap_or_default().with(record)
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
