//! Decides which event runs next, as a state machine: inputs and the time in, actions out.
//!
//! The scheduler keeps the events that are due next in memory and dispatches attempts from there, so that
//! claiming an event costs no write. It does not trust its memory: every decision is written under the
//! fencing token (`rev`, epoch), and events that are not in memory are loaded again.
//!
//! The surrounding loop passes in what happened ([`Scheduler::handle`]), asks what to do
//! ([`Scheduler::act`]), and does it. The engine's loop runs on tokio; the simulation's loop runs on a seeded
//! random source. Both run this code.
//!
//! # What must hold
//!
//! - An event in memory is in exactly one state. It leaves memory when its settle is committed, or when the
//!   shard is lost.
//! - A load that began before a settle was committed does not bring the settled event back.
//! - Events that arrive during a load are not lost: the load is repeated.
//! - Memory is bounded by the window of each queue, not by the number of waiting events.
//!
//! # Fairness
//!
//! Each tenant's part of a queue is a flow of its own, and flows take turns. Within a queue, first attempts
//! and retries each have a share of the concurrency: the lane below its share goes first, and a lane may use
//! the share that the other one leaves idle.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap, HashMap, VecDeque};
use std::sync::Arc;

use crate::moment::Moment;
use crate::nodes::LeaseClock;
use crate::planted::{PlantedBug, has};
use crate::queue_entry::{FencingToken, QueueEntry, Seq, SettleRequest, StreamId};
use crate::random::RandomSource;
use crate::triage::ActiveRules;

mod attempt_end;
mod crash_guard;
mod dispatch;
mod flow;
mod free_slots;
mod handoff;
mod load;
mod messages;
mod operator_rules;
mod permits;
mod queue;
mod settle;
mod table;
mod watchdog;

pub use attempt_end::{AttemptEnd, EndedAttempt, judge};
pub use flow::FlowKey;
pub use messages::{Action, DispatchedAttempt, Input, LoadId, NoteId, SettledEvent};
pub use permits::AttemptPermits;
pub use queue::{AfterDead, QueuePlan, WINDOW_MAX, WINDOW_MIN};
pub use watchdog::STALL_AFTER;

use crash_guard::Shard;
use flow::Flow;
use queue::Queue;
use table::{SeqMap, SeqSet};

/// How many loads may run at once: reads ahead of need must not crowd out reads that a caller waits for.
const LOADS_MAX: usize = 4;

/// An event in memory.
#[derive(Debug)]
struct TrackedEvent {
    entry: QueueEntry,
    /// The queue that it belongs to.
    queue: usize,
    /// The queue whose handler and policy run it: mostly the same.
    via: usize,
    state: TrackedState,
}

/// The state of an event in memory.
#[derive(Debug)]
enum TrackedState {
    /// In its flow, ready to run.
    Ready,
    /// Waits until another event of its key has finished.
    PutOff,
    /// A suspect, which must run alone.
    Suspect,
    /// Its crash count is being written.
    Striking(SettleRequest),
    /// Its dispatch note is being written; it runs after that.
    Noting(Box<Running>),
    /// An attempt is running.
    Running(Box<Running>),
    /// Its settle is being written.
    Settling(SettleRequest),
}

impl TrackedState {
    /// Whether no attempt of it has begun.
    const fn waits(&self) -> bool {
        matches!(self, Self::Ready | Self::PutOff | Self::Suspect)
    }
}

/// A running attempt and the permits that it holds.
#[derive(Debug)]
struct Running {
    lane: queue::Lane,
    began: Moment,
    /// Whether the event's own time limit ends it and not the attempt's time-out.
    hurried: bool,
    pass: Option<crate::breaker::BreakerPermit>,
    permit: Option<crate::limit::Permit>,
}

/// A timer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Timer {
    Flow(FlowKey),
    Queue,
    /// An operator's rule ends.
    Rule,
    /// An event that was put off is due.
    PutOff(Seq),
    /// A settle is repeated: sequence number, revision and the owner's epoch.
    Settle(Seq, u32, u64),
}

/// Decides which event runs next. See the [module](self).
#[derive(Debug, Default)]
pub struct Scheduler {
    queues: Vec<Queue>,
    names: HashMap<Arc<str>, usize>,
    shards: BTreeMap<u32, Shard>,
    flows: BTreeMap<FlowKey, Flow>,
    /// All events in memory.
    tracked: SeqMap<TrackedEvent>,
    /// Flows that may have more events in the store.
    needs_load: VecDeque<FlowKey>,
    /// The flows among them that a rule holds back.
    paused: BTreeSet<FlowKey>,
    /// The operators' rules.
    controls: ActiveRules,
    /// Events whose answers may be older than the last recall: a command may have taken the event that the
    /// answer names.
    stale_after_recall: SeqSet,
    /// Events that a command has redriven, or may have, before their settles were answered; or whose settles
    /// may have missed the next event of their key, because it was published meanwhile. The scheduler looks
    /// for them after that.
    put_back: SeqSet,
    loads: usize,
    /// How many loads and dispatch notes were planned.
    asked: u64,
    timers: BinaryHeap<Reverse<(Moment, Timer)>>,
    /// Suspects: events that run alone, because one of them may have crashed the process.
    suspects: VecDeque<Seq>,
    /// Until then no event with a crash count runs.
    quiet_until: Option<Moment>,
    /// The suspects that run alone now.
    lone: SeqSet,
    /// Dead letters whose keys are being unparked, with the `rev` that the write is for.
    letters: HashMap<(Seq, u32), settle::UnparkedLetter>,
    /// Suspects whose crash count may have been written already.
    unsure: SeqSet,
    /// Running attempts, including those whose dispatch note or crash count is being written.
    running: usize,
    /// How many attempts were started, in all shards together: within an epoch, a later start has a larger number.
    starts: u64,
    draining: bool,
    /// Shards under handoff.
    giving: BTreeSet<u32>,
    /// The origin of the clock that budget, breaker and rate use.
    origin: Moment,
    /// The node's lease on its shards, if there is one.
    term: Option<LeaseClock>,
    /// How long a shard may be stalled, if it was set.
    stall_after: Option<std::time::Duration>,
    /// Settles to write.
    ready: Vec<SettleRequest>,
    /// Notifications to send.
    tidings: Vec<Action>,
}

impl Scheduler {
    /// A scheduler that owns no shards yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a queue and returns its number. The scheduler ignores events of other queues.
    pub fn add_queue(&mut self, plan: QueuePlan) -> usize {
        let number = self.queues.len();
        self.names.insert(plan.name.clone(), number);
        self.queues.push(Queue::new(plan));
        number
    }

    /// Sets the origin of the clock that budget, breaker and rate use. They may be shared with calls outside
    /// the engine, whose clock begins with the process, while events count from 1970.
    pub fn set_origin(&mut self, origin: Moment) {
        self.origin = origin;
    }

    /// Sets the lease on the shards. No attempt starts that could outlast it. If the lease runs out, report
    /// the shards as [lost](Input::Lost).
    pub fn set_term(&mut self, term: Option<LeaseClock>) {
        self.term = term;
    }

    /// Converts a moment to the clock of budget, breaker and rate.
    fn shared_time(&self, moment: Moment) -> Moment {
        Moment::default() + moment.since(self.origin)
    }

    /// Converts a moment of theirs to the clock of events.
    fn own_time(&self, moment: Moment) -> Moment {
        self.origin + moment.since(Moment::default())
    }

    /// Takes in what happened.
    pub fn handle(&mut self, input: Input, now: Moment, random: &mut impl RandomSource) {
        match input {
            Input::Own(taken) => self.own(taken, now),
            Input::Arrived(entries) => self.arrived(entries, now),
            Input::Missed(streams) => self.missed(streams),
            Input::Recall => self.recall(),
            Input::Ruled(controls) => self.ruled(controls, now),
            Input::Loaded(load, loaded) => self.loaded(load, loaded, now),
            Input::LoadFailed(load) => self.load_failed(load, now),
            Input::Checked(key, loaded) => self.checked(key, &loaded, now),
            Input::Noted(note) if self.has(note.token) => self.noted(note, true),
            Input::NoteFailed(note) if self.has(note.token) => self.noted(note, false),
            Input::Lost(token) if self.has(token) => self.lose(token.shard),
            Input::GiveBack(token) if self.has(token) => self.give_back(token.shard),
            Input::Ended { token, seq, rev, ended } if self.has(token) => {
                self.ended(seq, rev, ended, now, random);
            }
            Input::Settled { token, seq, rev, settled } if self.has(token) => {
                self.settled(seq, rev, settled, now);
            }
            Input::SettleFailed { token, seq, rev, unknown } if self.has(token) => {
                self.settle_failed(seq, rev, unknown, now);
            }
            // From an earlier ownership: the events in memory were loaded since.
            Input::Noted(_)
            | Input::NoteFailed(_)
            | Input::Lost(_)
            | Input::GiveBack(_)
            | Input::Ended { .. }
            | Input::Settled { .. }
            | Input::SettleFailed { .. } => {}
            Input::Drain => self.draining = true,
        }
    }

    /// The version of the last rules received.
    #[must_use]
    pub const fn rules_version(&self) -> u64 {
        self.controls.version
    }

    /// Returns what to do now.
    pub fn act(&mut self, now: Moment, actions: &mut Vec<Action>) {
        // Steps that may free a slot, or room in memory, come before steps that fill it. A second call at the
        // same moment adds nothing: otherwise events could wait for an input that never comes.
        self.look_at_timers(now);
        if self.draining && !has(PlantedBug::DrainStartsNoted) {
            self.stand_down(now);
        }
        self.give(now, actions);
        if !has(PlantedBug::HeldBackFreesLate) {
            self.start_noted(now, actions);
        }
        self.end_care(now, actions);
        self.run_suspects(now, actions);
        if self.suspects.is_empty() && self.lone.is_empty() && !self.draining {
            self.dispatch(now, actions);
        }
        if has(PlantedBug::HeldBackFreesLate) {
            self.start_noted(now, actions);
        }
        self.start_notes(actions);
        self.start_loads(now, actions);
        actions.extend(self.ready.drain(..).map(Action::Settle));
        self.report(actions);
    }

    /// When to call [`act`](Self::act) again, if nothing happens before.
    #[must_use]
    pub fn next_wake(&self) -> Option<Moment> {
        self.timers.peek().map(|Reverse((at, _))| *at)
    }

    /// Whether no attempt is running and no write is pending.
    #[must_use]
    pub fn is_quiet(&self) -> bool {
        let busy = |held: &TrackedEvent| !held.state.waits();
        if has(PlantedBug::ReleaseWhileRunning) && self.draining {
            return true;
        }
        self.running == 0 && !self.tracked.values().any(busy)
    }

    /// Whether nothing is due: quiet, no events in memory, nothing to load.
    #[must_use]
    pub fn is_idle(&self, now: Moment) -> bool {
        self.tracked.is_empty()
            && self.needs_load.is_empty()
            && self.loads == 0
            && self.ready.is_empty()
            && self.next_wake().is_none_or(|at| at > now)
    }

    /// Whether an attempt of this event is running.
    #[must_use]
    pub fn is_running(&self, seq: Seq) -> bool {
        self.tracked.get(&seq).is_some_and(|held| matches!(held.state, TrackedState::Running(_)))
    }

    /// The events of the running attempts.
    pub fn running(&self) -> impl Iterator<Item = &QueueEntry> {
        let runs = |held: &&TrackedEvent| matches!(held.state, TrackedState::Running(_));
        self.tracked.values().filter(runs).map(|held| &held.entry)
    }

    /// The running attempts: fencing token, event and revision.
    #[must_use]
    pub fn under_way(&self) -> Vec<(FencingToken, Seq, u32)> {
        let running = |(seq, held): (&Seq, &TrackedEvent)| {
            let token = self.shards.get(&held.entry.shard)?.token();
            matches!(held.state, TrackedState::Running(_)).then_some((token, *seq, held.entry.rev))
        };
        self.tracked.iter().filter_map(running).collect()
    }

    /// The events of a queue in memory, including running ones.
    #[must_use]
    pub fn held_in(&self, queue: usize) -> usize {
        self.queues.get(queue).map_or(0, Queue::held)
    }

    /// Whether a shard's crash guard is on, or it has events left from before an unclean takeover. A process
    /// that stops then must not release its shards as clean, because the next owner needs the crash guard as
    /// well.
    #[must_use]
    pub fn is_careful(&self) -> bool {
        !self.suspects.is_empty() || !self.shards.values().all(Shard::is_clean)
    }

    /// Whether a shard is owned under this fencing token.
    #[must_use]
    pub fn owns(&self, token: FencingToken) -> bool {
        self.shards.get(&token.shard).is_some_and(|shard| shard.token() == token)
    }

    /// Whether this is the fencing token under which we own a shard.
    fn has(&self, token: FencingToken) -> bool {
        self.owns(token) || has(PlantedBug::AnswersOfAnotherTime)
    }

    /// Removes an event from memory, with everything it held.
    fn let_go(&mut self, seq: Seq) -> Option<QueueEntry> {
        let TrackedEvent { entry, queue, state, .. } = self.tracked.remove(&seq)?;
        let was_busy = !state.waits();
        self.queues[queue].let_go(load::lane(&entry), entry.event.payload.len());
        self.lone.remove(&seq);
        self.unsure.remove(&seq);
        self.stale_after_recall.remove(&seq);
        self.put_back.remove(&seq);
        match state {
            TrackedState::Noting(running) | TrackedState::Running(running) => self.end_run(queue, *running),
            TrackedState::Striking(_) => self.running -= 1,
            TrackedState::Ready
            | TrackedState::PutOff
            | TrackedState::Suspect
            | TrackedState::Settling(_) => {}
        }
        if let Some(key) = self.key_of(&entry) {
            if was_busy {
                self.take_up_others(key, &entry);
            }
            if let Some(flow) = self.flows.get_mut(&key) {
                flow.let_go(&entry);
            }
        }
        Some(entry)
    }

    /// An attempt has ended: its slot is free.
    fn end_run(&mut self, queue: usize, running: Running) {
        self.running -= 1;
        self.queues[queue].ended(running.lane);
    }

    /// The flow of an event in memory.
    fn key_of(&self, entry: &QueueEntry) -> Option<FlowKey> {
        let QueueEntry { shard, stream, .. } = *entry;
        Some(FlowKey { shard, epoch: self.shards.get(&shard)?.token().epoch, stream })
    }

    /// The flow of an event, created if it is new; `None` if its queue does not run here.
    fn flow_of(&mut self, shard: u32, stream: StreamId, queue: &str, tenant: &str) -> Option<FlowKey> {
        let key = FlowKey { shard, epoch: self.shards.get(&shard)?.token().epoch, stream };
        if !self.flows.contains_key(&key) {
            let queue = *self.names.get(queue)?;
            let is_ordered = self.queues[queue].plan.ordered;
            self.flows.insert(key, Flow::new(queue, tenant.into(), is_ordered));
            self.queues[queue].flows += 1;
        }
        Some(key)
    }
}
