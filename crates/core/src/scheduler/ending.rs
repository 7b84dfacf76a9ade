//! How an attempt ended, and what becomes of the event.

use std::sync::Arc;
use std::time::Duration;

use super::dispatch::tuned;
use super::table::SeqMap;
use super::{Held, Place, QueuePlan, Running, Scheduler};
use crate::dice::Dice;
use crate::disposition::{Disposition, Executed};
use crate::entry::{Change, Entry, Progress, Seq};
use crate::event::{Cause, DeadReason, Mode, Record, Story};
use crate::moment::Moment;
use crate::observe::Outcome;
use crate::planted::{Flaw, has};
use crate::policy::Policy;
use crate::report::StopReason;
use crate::run::{Health, History, Verdict, executed, health, load};

/// How long to wait before an attempt whose effect the store could not keep: the disk is full, the database is
/// busy. Each costs a write, so it is not as short as it could be.
const KEEP_AGAIN: Duration = Duration::from_millis(500);

/// How an attempt ended.
#[derive(Debug, Clone)]
pub struct Ending {
    /// What it said.
    pub said: Said,
    /// How long it took.
    pub took: Duration,
    /// What went wrong, if something did.
    pub cause: Option<Cause>,
    /// What the handler leaves for whoever publishes the same identity again.
    pub result: Option<Vec<u8>>,
    /// What is known of the effect, where more is known than the handler can say: it was rolled back.
    pub executed: Option<Executed>,
}

impl Ending {
    /// An attempt that said this, and nothing else.
    #[must_use]
    pub const fn new(said: Said) -> Self {
        Self { said, took: Duration::ZERO, cause: None, result: None, executed: None }
    }
}

/// What an attempt said.
#[derive(Debug, Clone, PartialEq)]
pub enum Said {
    /// What a handler can say.
    Outcome(Outcome),
    /// The handler panicked.
    Panicked,
    /// The payload could not be decoded, or is not valid; the handler did not run.
    Undecodable,
    /// Effect and settle are in one commit already.
    Committed {
        /// The event of the same key that may run now.
        next: Option<Box<Entry>>,
    },
    /// Somebody else changed the event; nothing was done.
    Stale,
    /// The shard has another owner; nothing was done.
    Fenced,
    /// The store could not keep what it did, and may later: nothing was changed, and nothing is charged.
    NotKept,
    /// It was given up without a word, because the process stops. Nothing is charged.
    Released,
}

impl Said {
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
    pub(super) fn ended(&mut self, seq: Seq, rev: u32, ending: Ending, now: Moment, dice: &mut impl Dice) {
        let Some(held) = self.held.get_mut(&seq) else { return };
        // The answer of an attempt that was given up before says nothing of the one that runs now.
        if held.entry.rev != rev && !has(Flaw::LateAnswerWins) {
            return;
        }
        let place = std::mem::replace(&mut held.place, Place::Ready);
        let Place::Running(running) = place else {
            held.place = place;
            return;
        };
        let queue = held.queue;
        let shard = held.entry.shard;
        let by = &self.queues[held.via].plan;
        let change = judge(by, &held.entry, running.began, &ending, now, dice);
        let change = change.ok_or_else(|| ending.said.clone()).map(|change| match change {
            // What follows a dead letter is a matter of the queue that it belongs to, whoever ran it.
            Change::Dead { reason, progress, .. } => {
                let park = self.queues[queue].plan.after_dead.park(now);
                Change::Dead { reason, progress, park }
            }
            change => change,
        });
        let lane = running.lane;
        tell(*running, &ending, self.shared_time(now));
        self.running -= 1;
        self.queues[queue].ended(lane);
        match change {
            Ok(change) => self.settle(seq, change, now),
            Err(Said::Committed { next }) => {
                let change = done_before(&self.held, seq);
                self.gone(seq, change, next.map(|next| *next), now);
            }
            Err(Said::Fenced) => self.lose(shard),
            Err(Said::Stale) => self.reload(seq),
            Err(_) => self.give_up(seq, now),
        }
    }
}

/// What a transaction has written of an event, where there is something to tell.
fn done_before(held: &SeqMap<Held>, seq: Seq) -> Option<Change> {
    let Progress { attempts, story, .. } = &held.get(&seq)?.entry.progress;
    let done = Change::DoneWith { result: None, attempts: attempts + 1, story: story.clone() };
    (*attempts > 0).then_some(done)
}

/// Tells breaker and limit how an attempt went.
fn tell(running: Running, ending: &Ending, now: Moment) {
    let Running { hurried, pass, permit, .. } = running;
    let outcome = match &ending.said {
        Said::Outcome(outcome) => Some(*outcome),
        Said::Committed { .. } => Some(Outcome::Said(Disposition::Ok)),
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

/// What becomes of an event after an attempt that began then and ended so. None where the ending itself says that
/// nothing is to be decided: it is committed, stale, fenced or released. A function of its arguments.
pub fn judge(
    plan: &QueuePlan,
    entry: &Entry,
    began: Moment,
    ending: &Ending,
    now: Moment,
    dice: &mut impl Dice,
) -> Option<Change> {
    let change = match &ending.said {
        Said::Outcome(outcome) => decide(&plan.policy, entry, began, ending, *outcome, None, now, dice),
        Said::Panicked => {
            let outcome = Outcome::from(plan.panics);
            let reason = Some(DeadReason::Panicked);
            decide(&plan.policy, entry, began, ending, outcome, reason, now, dice)
        }
        Said::Undecodable => undecodable(entry, began, ending),
        Said::NotKept => put_off(entry, now),
        Said::Committed { .. } | Said::Stale | Said::Fenced | Said::Released => return None,
    };
    Some(match change {
        Change::Dead { reason, progress, .. } => {
            Change::Dead { reason, progress, park: plan.after_dead.park(now) }
        }
        change => change,
    })
}

/// What becomes of an event after an attempt that said something. A function of its arguments.
#[allow(clippy::too_many_arguments, reason = "a decision names all that it looks at")]
fn decide(
    policy: &Policy,
    entry: &Entry,
    began: Moment,
    ending: &Ending,
    outcome: Outcome,
    dead: Option<DeadReason>,
    now: Moment,
    dice: &mut impl Dice,
) -> Change {
    let tuned = tuned(policy, entry);
    let settings = tuned.as_ref().unwrap_or(policy.settings());
    let progress = &entry.progress;
    let attempts = progress.attempts + 1;
    let history = History {
        attempts,
        attempts_max: settings.attempts,
        nested: false,
        started: progress.started,
        deadline: entry.expires,
        previous: progress.previous,
    };
    let mut verdict = settings.plan(&history, outcome, now, dice);
    if let Verdict::RetryAt(at) = &mut verdict
        && has(Flaw::RetriesTooEarly)
    {
        *at = now;
    }
    if verdict == Verdict::Done && attempts == 1 && ending.result.is_none() && progress.story.is_none() {
        return Change::Done;
    }
    let delay = if let Verdict::RetryAt(at) = verdict { Some(at.since(now)) } else { None };
    let story = with_record(progress, began, ending, Some(outcome), attempts, delay);
    let story = Some(Arc::new(story));
    match verdict {
        Verdict::Done => Change::DoneWith { result: ending.result.clone(), attempts, story },
        Verdict::Drop => Change::Dropped { attempts, story },
        Verdict::RetryAt(due) => Change::Again(Progress {
            due,
            attempts,
            mode: Mode::Retry,
            started: progress.started,
            previous: delay.unwrap_or_default(),
            strikes: 0,
            suspect: false,
            story,
            route: progress.route.clone(),
            out_of_order: progress.out_of_order,
        }),
        Verdict::Dead(StopReason::Deadline) => Change::Expired { attempts, story },
        Verdict::Dead(reason) => {
            let reason = match (reason, dead) {
                (StopReason::Permanent | StopReason::Unclassified, Some(dead)) => dead,
                (reason, _) => DeadReason::from_stop(reason),
            };
            let progress = Progress { attempts, story, strikes: 0, suspect: false, ..progress.clone() };
            Change::Dead { reason, progress, park: crate::entry::Park::GoOn }
        }
    }
}

/// As it was, a little later. It ran to its end and the process lives, so it is no suspect any more.
fn put_off(entry: &Entry, now: Moment) -> Change {
    let due = now + KEEP_AGAIN;
    Change::Again(Progress { due, strikes: 0, suspect: false, ..entry.progress.clone() })
}

fn undecodable(entry: &Entry, began: Moment, ending: &Ending) -> Change {
    let progress = &entry.progress;
    let story = with_record(progress, began, ending, None, progress.attempts, None);
    let progress = Progress { story: Some(Arc::new(story)), strikes: 0, suspect: false, ..progress.clone() };
    Change::Dead { reason: DeadReason::Undecodable, progress, park: crate::entry::Park::GoOn }
}

fn with_record(
    progress: &Progress,
    began: Moment,
    ending: &Ending,
    outcome: Option<Outcome>,
    attempt: u32,
    delay: Option<Duration>,
) -> Story {
    let failed =
        outcome.is_some_and(|it| !matches!(it, Outcome::Said(Disposition::Ok | Disposition::Discard)));
    let record = Record {
        attempt,
        mode: progress.mode.as_str().to_owned(),
        at_ms: began.as_nanos() / 1_000_000,
        took_ms: millis(ending.took),
        disposition: ending.said.as_str().to_owned(),
        executed: outcome.filter(|_| failed).map(|outcome| ending.executed.unwrap_or(executed(outcome))),
        cause: ending.cause.clone(),
        delay_ms: delay.map(millis),
    };
    progress.story.as_deref().cloned().unwrap_or_default().with(record)
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
