//! Decides which event runs next, and whether it may start.

use std::cmp::Reverse;
use std::time::Duration;

use super::flow::FlowKey;
use super::queue::{Lane, QueuePlan};
use super::{Action, DispatchedAttempt, Running, Scheduler, Timer, TrackedEvent, TrackedState};
use crate::breaker::BreakerPermit;
use crate::event::{DeadReason, Mode};
use crate::limit::Permit;
use crate::moment::Moment;
use crate::planted::{PlantedBug, has};
use crate::policy::{Policy, PolicySettings};
use crate::queue_entry::{EventChange, Seq};

/// How long to wait when the end of the wait is unknown: a probe is running, the limit is full, the budget is
/// spent. Mostly the end of an attempt resolves it, and the scheduler asks again then.
const ASK_AGAIN: Duration = Duration::from_millis(50);

/// The permits that an attempt needs before it starts.
pub(super) type Passes = (Option<BreakerPermit>, Option<Permit>);

impl Scheduler {
    pub(super) fn dispatch(&mut self, now: Moment, actions: &mut Vec<Action>) {
        for number in 0..self.queues.len() {
            while let Some(lane) = self.queues[number].next_lane(now) {
                if !self.dispatch_one(number, lane, now, actions) {
                    break;
                }
            }
        }
    }

    /// Starts the next event of a lane; returns whether to continue with this queue.
    fn dispatch_one(&mut self, number: usize, lane: Lane, now: Moment, actions: &mut Vec<Action>) -> bool {
        let Some(&key) = self.queues[number].turns[lane.index()].front() else { return false };
        let first = self.flows.get(&key).and_then(|flow| flow.ready[lane.index()].front().copied());
        let Some(seq) = first else {
            // A flow that was emptied elsewhere.
            self.queues[number].turns[lane.index()].pop_front();
            return true;
        };
        let Some(held) = self.tracked.get(&seq) else {
            self.take_turn(number, lane, key);
            return true;
        };
        if held.entry.expires.is_some_and(|expires| expires <= now) {
            self.take_turn(number, lane, key);
            self.expire(seq, now);
            return true;
        }
        if self.is_out_of_time(held, now) {
            self.take_turn(number, lane, key);
            self.end_for_time(seq, now);
            return true;
        }
        if self.is_met(&held.entry) && !has(PlantedBug::KeyRunsTwice) {
            self.take_turn(number, lane, key);
            self.put_off(seq, now);
            return true;
        }
        if !self.has_time_for(held, now) {
            let until = now + ASK_AGAIN;
            Lane::BOTH.into_iter().for_each(|lane| self.queues[number].close(lane, until));
            self.timers.push(Reverse((until, Timer::Queue)));
            return true;
        }
        let mode = held.entry.progress.mode;
        match admit(&self.queues[held.via].plan, mode, self.shared_time(now)) {
            Ok(passes) => {
                self.take_turn(number, lane, key);
                self.start(seq, lane, passes, now, actions);
            }
            Err(Closed { until, both }) => {
                let until = self.own_time(until);
                let queue = &mut self.queues[number];
                queue.close(lane, until);
                if both {
                    queue.close(lane.other(), until);
                }
                self.timers.push(Reverse((until, Timer::Queue)));
            }
        }
        true
    }

    /// Removes the first event of a flow from its lane, and puts the flow behind the others.
    fn take_turn(&mut self, number: usize, lane: Lane, key: FlowKey) {
        let turns = &mut self.queues[number].turns[lane.index()];
        turns.pop_front();
        let Some(flow) = self.flows.get_mut(&key) else { return };
        flow.ready[lane.index()].pop_front();
        if !flow.ready[lane.index()].is_empty() {
            turns.push_back(key);
        }
    }

    /// The event expired before it could run.
    pub(super) fn expire(&mut self, seq: Seq, now: Moment) {
        let Some(held) = self.tracked.get(&seq) else { return };
        let progress = &held.entry.progress;
        let change = EventChange::Expired { attempts: progress.attempts, history: progress.history.clone() };
        self.settle(seq, change, now);
    }

    /// Whether the policy's total time is over: the process was down for longer, or other events went first.
    fn is_out_of_time(&self, held: &TrackedEvent, now: Moment) -> bool {
        let policy = &self.queues[held.via].plan.policy;
        let tuned = tuned(policy, &held.entry);
        let time = tuned.as_ref().unwrap_or(policy.settings()).time;
        held.entry.progress.started.zip(time).is_some_and(|(started, time)| started + time <= now)
    }

    /// Whether the lease on the shard outlasts an attempt.
    fn has_time_for(&self, held: &TrackedEvent, now: Moment) -> bool {
        let Some(term) = &self.term else { return true };
        let policy = &self.queues[held.via].plan.policy;
        let tuned = tuned(policy, &held.entry);
        let time = tuned.as_ref().unwrap_or(policy.settings()).attempt_time;
        term.has_time_for(time, now)
    }

    /// It is too late for another attempt, which would be ended before it began.
    fn end_for_time(&mut self, seq: Seq, now: Moment) {
        let Some(held) = self.tracked.get(&seq) else { return };
        let park = self.queues[held.queue].plan.after_dead.park(now);
        let progress = held.entry.progress.clone();
        self.settle(seq, EventChange::Dead { reason: DeadReason::TimeSpent, progress, park }, now);
    }

    /// Starts an attempt, or notes it first if its shard's crash guard is on.
    fn start(&mut self, seq: Seq, lane: Lane, passes: Passes, now: Moment, actions: &mut Vec<Action>) {
        let (pass, permit) = passes;
        let running = Box::new(Running { lane, began: now, hurried: false, pass, permit });
        let Some(held) = self.tracked.get_mut(&seq) else { return };
        self.running += 1;
        self.queues[held.queue].started(lane);
        held.state = TrackedState::Noting(running);
        match self.shards.get_mut(&held.entry.shard) {
            Some(shard) if shard.must_note(&held.entry) && !has(PlantedBug::NotesLeftOut) => {
                shard.to_note.push(seq);
            }
            _ => self.run(seq, now, actions),
        }
    }

    /// Runs an attempt for which everything is prepared.
    pub(super) fn run(&mut self, seq: Seq, now: Moment, actions: &mut Vec<Action>) {
        if self.stale_after_recall.contains(&seq) && !has(PlantedBug::RecallMissesNotes) {
            self.hold_back(seq, now);
            return;
        }
        // Writing the dispatch note took longer than the lease lasts.
        if self.tracked.get(&seq).is_some_and(|held| !self.has_time_for(held, now)) {
            self.hold_back(seq, now);
            return;
        }
        let Some(held) = self.tracked.get_mut(&seq) else { return };
        let Some(shard) = self.shards.get_mut(&held.entry.shard) else { return };
        shard.idle = None;
        let state = std::mem::replace(&mut held.state, TrackedState::Ready);
        let TrackedState::Noting(mut running) = state else {
            held.state = state;
            return;
        };
        // Writing the dispatch note may have taken a while.
        let expired = held.entry.expires.is_some_and(|expires| expires <= now);
        if expired && !has(PlantedBug::ExpiredRuns) {
            let queue = held.queue;
            self.end_run(queue, *running);
            self.expire(seq, now);
            return;
        }
        let policy = &self.queues[held.via].plan.policy;
        let tuned = tuned(policy, &held.entry);
        let settings = tuned.as_ref().unwrap_or(policy.settings());
        held.entry.progress.started.get_or_insert(now);
        let progress = &held.entry.progress;
        let in_all = progress.started.zip(settings.time).map(|(started, time)| started + time);
        let patience = [held.entry.expires, in_all].into_iter().flatten().min();
        let own = settings.attempt_time.map(|time| now + time);
        running.began = now;
        running.hurried = own.is_none_or(|own| patience.is_some_and(|patience| patience < own));
        held.state = TrackedState::Running(running);
        self.starts += 1;
        actions.push(Action::Attempt(Box::new(DispatchedAttempt {
            token: shard.token(),
            queue: held.via,
            entry: held.entry.clone(),
            attempt: progress.attempts + 1,
            start: self.starts,
            deadline: [patience, own].into_iter().flatten().min(),
        })));
    }
}

/// The settings for an event that overrides its queue's policy.
pub(super) fn tuned(policy: &Policy, entry: &crate::queue_entry::QueueEntry) -> Option<PolicySettings> {
    let tuning = entry.event.meta.as_ref()?.tuning.as_ref()?;
    Some(policy.settings().tuned(tuning))
}

/// The queue starts nothing before this moment.
pub(super) struct Closed {
    pub(super) until: Moment,
    /// Whether that holds for both lanes.
    both: bool,
}

/// Asks rate, breaker, limit and budget for permission. Except for the rate, none is asked whose permission a
/// later refusal would waste.
pub(super) fn admit(plan: &QueuePlan, mode: Mode, now: Moment) -> Result<Passes, Closed> {
    let policy = &plan.policy;
    let ask_again = now + ASK_AGAIN;
    let pass = match policy.breaker().map(|breaker| breaker.admit(&now)) {
        None => None,
        Some(Ok(pass)) => Some(pass),
        Some(Err(until)) => {
            let until = if until > now { until } else { ask_again };
            return Err(Closed { until, both: true });
        }
    };
    let permit = match policy.limit() {
        None => None,
        Some(limit) => match limit.acquire() {
            Some(permit) => Some(permit),
            None => return Err(Closed { until: ask_again, both: true }),
        },
    };
    // Only read, so that a retry that has to wait does not use up the rate.
    let is_broke = mode == Mode::Retry && policy.budget().is_some_and(|budget| budget.tokens(now) == 0);
    if is_broke {
        return Err(Closed { until: ask_again, both: false });
    }
    for rate in [plan.rate.as_ref(), policy.rate()].into_iter().flatten() {
        if let Err(until) = rate.take(now) {
            return Err(Closed { until, both: true });
        }
    }
    if let Some(budget) = policy.budget() {
        match mode {
            Mode::Live => budget.deposit(&now),
            Mode::Retry if !budget.withdraw(now) => return Err(Closed { until: ask_again, both: false }),
            Mode::Retry | Mode::Redrive | Mode::Replay => {}
        }
    }
    Ok((pass, permit))
}
