//! Whose turn it is, and whether it may start.

use std::cmp::Reverse;
use std::time::Duration;

use super::flow::FlowKey;
use super::queue::{Lane, QueuePlan};
use super::{Action, Held, Place, Running, Scheduler, Ticket, Timer};
use crate::breaker::Pass;
use crate::entry::{Change, Seq};
use crate::event::{DeadReason, Mode};
use crate::limit::Permit;
use crate::moment::Moment;
use crate::planted::{Flaw, has};
use crate::policy::{Policy, PolicySettings};

/// How long to wait where nobody can say when: a probe is out, the limit is full, the budget is spent. What
/// ends them is mostly an attempt that ends, and that asks again at once.
const ASK_AGAIN: Duration = Duration::from_millis(50);

/// What an attempt must have before it starts.
type Passes = (Option<Pass>, Option<Permit>);

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

    /// Starts the next of a lane; tells whether to go on with this queue.
    fn dispatch_one(&mut self, number: usize, lane: Lane, now: Moment, actions: &mut Vec<Action>) -> bool {
        let Some(&key) = self.queues[number].turns[lane.index()].front() else { return false };
        let first = self.flows.get(&key).and_then(|flow| flow.ready[lane.index()].front().copied());
        let Some(seq) = first else {
            // A flow that was emptied otherwise.
            self.queues[number].turns[lane.index()].pop_front();
            return true;
        };
        let Some(held) = self.held.get(&seq) else {
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
        if self.is_met(&held.entry) && !has(Flaw::KeyRunsTwice) {
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

    /// Takes the first of a flow out of line, and puts the flow behind the others.
    fn take_turn(&mut self, number: usize, lane: Lane, key: FlowKey) {
        let turns = &mut self.queues[number].turns[lane.index()];
        turns.pop_front();
        let Some(flow) = self.flows.get_mut(&key) else { return };
        flow.ready[lane.index()].pop_front();
        if !flow.ready[lane.index()].is_empty() {
            turns.push_back(key);
        }
    }

    /// Its time was over before it could run.
    pub(super) fn expire(&mut self, seq: Seq, now: Moment) {
        let Some(held) = self.held.get(&seq) else { return };
        let progress = &held.entry.progress;
        let change = Change::Expired { attempts: progress.attempts, story: progress.story.clone() };
        self.settle(seq, change, now);
    }

    /// Whether the policy's time in all is over: the process was down for longer, or others went first.
    fn is_out_of_time(&self, held: &Held, now: Moment) -> bool {
        let policy = &self.queues[held.via].plan.policy;
        let tuned = tuned(policy, &held.entry);
        let time = tuned.as_ref().unwrap_or(policy.settings()).time;
        held.entry.progress.started.zip(time).is_some_and(|(started, time)| started + time <= now)
    }

    /// Whether the lease under which the shard is owned outlasts an attempt.
    fn has_time_for(&self, held: &Held, now: Moment) -> bool {
        let Some(term) = &self.term else { return true };
        let policy = &self.queues[held.via].plan.policy;
        let tuned = tuned(policy, &held.entry);
        let time = tuned.as_ref().unwrap_or(policy.settings()).attempt_time;
        term.has_time_for(time, now)
    }

    /// Too late for another attempt, which would be ended before it began.
    fn end_for_time(&mut self, seq: Seq, now: Moment) {
        let Some(held) = self.held.get(&seq) else { return };
        let park = self.queues[held.queue].plan.after_dead.park(now);
        let progress = held.entry.progress.clone();
        self.settle(seq, Change::Dead { reason: DeadReason::TimeSpent, progress, park }, now);
    }

    /// Starts an attempt, or has it noted first where its shard is careful.
    fn start(&mut self, seq: Seq, lane: Lane, passes: Passes, now: Moment, actions: &mut Vec<Action>) {
        let (pass, permit) = passes;
        let running = Box::new(Running { lane, began: now, hurried: false, pass, permit });
        let Some(held) = self.held.get_mut(&seq) else { return };
        self.running += 1;
        self.queues[held.queue].started(lane);
        held.place = Place::Noting(running);
        match self.shards.get_mut(&held.entry.shard) {
            Some(shard) if shard.is_careful() && !has(Flaw::NotesLeftOut) => shard.to_note.push(seq),
            _ => self.run(seq, now, actions),
        }
    }

    /// Runs an attempt for which everything is prepared.
    pub(super) fn run(&mut self, seq: Seq, now: Moment, actions: &mut Vec<Action>) {
        if self.wary.contains(&seq) && !has(Flaw::RecallMissesNotes) {
            self.hold_back(seq, now);
            return;
        }
        // To note it took longer than the lease lasts.
        if self.held.get(&seq).is_some_and(|held| !self.has_time_for(held, now)) {
            self.hold_back(seq, now);
            return;
        }
        let Some(held) = self.held.get_mut(&seq) else { return };
        let Some(shard) = self.shards.get(&held.entry.shard) else { return };
        let place = std::mem::replace(&mut held.place, Place::Ready);
        let Place::Noting(mut running) = place else {
            held.place = place;
            return;
        };
        // It may have taken a while to write down that it is about to run.
        let expired = held.entry.expires.is_some_and(|expires| expires <= now);
        if expired && !has(Flaw::ExpiredRuns) {
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
        held.place = Place::Running(running);
        actions.push(Action::Attempt(Box::new(Ticket {
            grant: shard.grant(),
            queue: held.via,
            entry: held.entry.clone(),
            attempt: progress.attempts + 1,
            deadline: [patience, own].into_iter().flatten().min(),
        })));
    }
}

/// The settings for an event that has changes of its own.
pub(super) fn tuned(policy: &Policy, entry: &crate::entry::Entry) -> Option<PolicySettings> {
    let tuning = entry.event.meta.as_ref()?.tuning.as_ref()?;
    Some(policy.settings().tuned(tuning))
}

/// Nothing starts before.
struct Closed {
    until: Moment,
    /// Whether that holds for both lanes.
    both: bool,
}

/// Asks everyone who may say no. Nobody is asked whose yes would be wasted by a later no, but for the rate.
fn admit(plan: &QueuePlan, mode: Mode, now: Moment) -> Result<Passes, Closed> {
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
    // Only looked at, so that a retry that has to wait does not use up the rate.
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
