//! Which event runs next, as a state machine: inputs and the time in, actions out.
//!
//! The scheduler keeps the events that are due next in memory and hands out attempts from there, so that
//! claiming one costs no write. It trusts nothing it remembers: whatever it decides is written under the
//! fence (`rev`, epoch), and what it does not have in memory it loads again.
//!
//! Its shell does three things in a loop: hands in what happened ([`Scheduler::handle`]), asks what to do
//! ([`Scheduler::act`]), and does it. The engine's shell runs on tokio; the simulation's runs on dice. Both
//! run this code.
//!
//! # What must hold
//!
//! - An event in memory is in exactly one place. It leaves when its settle is committed, or when the
//!   shard is lost.
//! - A load that began before a settle was committed does not bring the settled event back.
//! - What arrives while a load is under way is not forgotten: the load is done again.
//! - Memory is bounded by the window of each queue, not by what waits.
//!
//! # Fairness
//!
//! Each tenant's part of a queue is a flow of its own, and flows take turns. Within a queue, events that run
//! for the first time and those that run again have a share of the concurrency each: whichever is below its
//! share goes first, and nobody's share is left idle while the other one could use it.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap, HashMap, VecDeque};
use std::sync::Arc;

use crate::dice::Dice;
use crate::entry::{Change, Entry, Grant, Load, Loaded, Seq, Settle, Settled, StreamId, Taken};
use crate::moment::Moment;
use crate::nodes::Term;
use crate::planted::{Flaw, has};
use crate::triage::Controls;

mod care;
mod dispatch;
mod ending;
mod flow;
mod giving;
mod loading;
mod places;
mod queue;
mod ruling;
mod settling;
mod table;

pub use ending::{Ending, Said, judge};
pub use flow::FlowKey;
pub use queue::{AfterDead, QueuePlan, WINDOW_MAX, WINDOW_MIN};

use care::Shard;
use flow::Flow;
use queue::Queue;
use table::{SeqMap, SeqSet};

/// How many loads may be under way at once: reads that nobody waits for must not crowd out those that
/// somebody does.
const LOADS_MAX: usize = 4;

/// What happened.
#[derive(Debug)]
pub enum Input {
    /// A shard is ours.
    Own(Taken),
    /// Events became runnable.
    Arrived(Vec<Entry>),
    /// Events became runnable that nobody named, perhaps in streams that are new.
    Missed(Vec<(StreamId, String, String)>),
    /// A load came back.
    Loaded(FlowKey, Loaded),
    /// A load failed, and may work later.
    LoadFailed(FlowKey),
    /// What is under way in a shard is noted.
    Noted(Grant),
    /// It could not be noted.
    NoteFailed(Grant),
    /// The store said that a shard has another owner.
    Lost(Grant),
    /// An attempt ended.
    Ended {
        /// In whose right it ran.
        grant: Grant,
        /// Which event.
        seq: Seq,
        /// As of which change.
        rev: u32,
        /// How.
        ending: Ending,
    },
    /// The store answered a settle.
    Settled {
        /// In whose right.
        grant: Grant,
        /// Which event.
        seq: Seq,
        /// As of which change.
        rev: u32,
        /// The answer.
        settled: Settled,
    },
    /// The store could not write a settle.
    SettleFailed {
        /// In whose right.
        grant: Grant,
        /// Which event.
        seq: Seq,
        /// As of which change.
        rev: u32,
        /// Whether it may have been written all the same.
        unknown: bool,
    },
    /// An order may have changed what is in memory and has not started: the store knows better.
    Recall,
    /// These rules hold from now on. Recalls as well.
    Ruled(Controls),
    /// A shard is to be given back, once nothing of it is under way.
    GiveBack(Grant),
    /// No more attempts are to be started.
    Drain,
}

/// What to do.
#[derive(Debug)]
pub enum Action {
    /// Load from the store.
    Load(FlowKey, Load),
    /// Note what is under way, then say so.
    Note(Grant, Vec<Seq>),
    /// Run an attempt.
    Attempt(Box<Ticket>),
    /// Write what became of an event.
    Settle(Settle),
    /// Tell somebody: this is written. Not told of a success at the first attempt that left nothing.
    Told(Box<Told>),
    /// Tell somebody: a row is damaged.
    Damaged(String),
    /// Tell somebody: a shard has another owner.
    Lost(Grant),
    /// Give a shard back: nothing of it is under way, and nothing of it is in memory any more.
    Given {
        /// In whose right.
        grant: Grant,
        /// Whether the next owner has no reason to be careful.
        clean: bool,
    },
}

/// An attempt to run.
#[derive(Debug, Clone)]
pub struct Ticket {
    /// In whose right.
    pub grant: Grant,
    /// The number of the queue whose handler runs it, in the order in which they were added.
    pub queue: usize,
    /// The event.
    pub entry: Entry,
    /// Which attempt, from 1.
    pub attempt: u32,
    /// When the attempt is to be ended.
    pub deadline: Option<Moment>,
}

/// What became of an event, now that it is written.
#[derive(Debug, Clone)]
pub struct Told {
    /// The number of its queue.
    pub queue: usize,
    /// The event, as it was before.
    pub entry: Entry,
    /// What was written.
    pub change: Change,
}

/// An event in memory.
#[derive(Debug)]
struct Held {
    entry: Entry,
    /// The queue that it belongs to.
    queue: usize,
    /// The queue whose handler and policy run it: mostly the same.
    via: usize,
    place: Place,
}

/// Where an event in memory is.
#[derive(Debug)]
enum Place {
    /// In its flow, to be run.
    Ready,
    /// To be run when another one of its key is over.
    PutOff,
    /// To be run alone.
    Suspect,
    /// Its strike is being written.
    Striking(Settle),
    /// It is being noted, then runs.
    Noting(Box<Running>),
    /// An attempt is under way.
    Running(Box<Running>),
    /// Its end is being written.
    Settling(Settle),
}

impl Place {
    /// Whether nothing has been begun.
    const fn waits(&self) -> bool {
        matches!(self, Self::Ready | Self::PutOff | Self::Suspect)
    }
}

/// An attempt under way, and what it holds.
#[derive(Debug)]
struct Running {
    lane: queue::Lane,
    began: Moment,
    /// Whether its end comes from the event's own time and not from the time-out of an attempt.
    hurried: bool,
    pass: Option<crate::breaker::Pass>,
    permit: Option<crate::limit::Permit>,
}

/// Something that is to be looked at later.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Timer {
    Flow(FlowKey),
    Queue,
    /// A rule ends.
    Rule,
    /// An event was put off.
    PutOff(Seq),
    /// As of which rev, and in which time as the owner.
    Settle(Seq, u32, u64),
}

/// Which event runs next. See the [module](self).
#[derive(Debug, Default)]
pub struct Scheduler {
    queues: Vec<Queue>,
    names: HashMap<Arc<str>, usize>,
    shards: BTreeMap<u32, Shard>,
    flows: BTreeMap<FlowKey, Flow>,
    /// All that is in memory.
    held: SeqMap<Held>,
    /// Flows that may have more in the store.
    hungry: VecDeque<FlowKey>,
    /// Those of them that a rule holds back.
    asleep: BTreeSet<FlowKey>,
    /// What operators said.
    controls: Controls,
    /// Events whose answers may be older than the last recall: whom they name may have been taken away since.
    wary: SeqSet,
    /// Events that an order has put back, or may have, before their settles were answered; or whose settles may not
    /// have seen the next of their key, because it was published meanwhile. They are looked for after that.
    put_back: SeqSet,
    loads: usize,
    timers: BinaryHeap<Reverse<(Moment, Timer)>>,
    /// Events that run alone, because one of them may have killed the process.
    suspects: VecDeque<Seq>,
    /// Until then nobody runs who has a strike already.
    quiet_until: Option<Moment>,
    /// Who runs alone now.
    lone: SeqSet,
    /// Dead letters that are being told to hold up nobody any more.
    letters: HashMap<Seq, settling::Letter>,
    /// Whether a strike of it may have been written already.
    unsure: SeqSet,
    /// Attempts under way, those that are being noted or struck included.
    running: usize,
    draining: bool,
    /// Shards that are being given back.
    giving: BTreeSet<u32>,
    /// When the time began that budget, breaker and rate count in.
    origin: Moment,
    /// The lease under which shards are owned, where there is one.
    term: Option<Term>,
    /// To be written.
    ready: Vec<Settle>,
    /// To be told.
    tidings: Vec<Action>,
}

impl Scheduler {
    /// A scheduler that owns nothing yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a queue; gives its number. Events of queues that were not added are left alone.
    pub fn add_queue(&mut self, plan: QueuePlan) -> usize {
        let number = self.queues.len();
        self.names.insert(plan.name.clone(), number);
        self.queues.push(Queue::new(plan));
        number
    }

    /// Says when the time began that budget, breaker and rate count in. They may be shared with calls that go
    /// past the engine, whose clock begins with the process, while events count from 1970.
    pub fn set_origin(&mut self, origin: Moment) {
        self.origin = origin;
    }

    /// Says under which lease shards are owned. No attempt starts that could outlast it; who lets it run out is to say
    /// that the shards are [lost](Input::Lost).
    pub fn set_term(&mut self, term: Option<Term>) {
        self.term = term;
    }

    /// A moment as budget, breaker and rate count.
    fn shared_time(&self, moment: Moment) -> Moment {
        Moment::default() + moment.since(self.origin)
    }

    /// A moment of theirs as events count.
    fn own_time(&self, moment: Moment) -> Moment {
        self.origin + moment.since(Moment::default())
    }

    /// Takes in what happened.
    pub fn handle(&mut self, input: Input, now: Moment, dice: &mut impl Dice) {
        match input {
            Input::Own(taken) => self.own(taken, now),
            Input::Arrived(entries) => self.arrived(entries, now),
            Input::Missed(streams) => self.missed(streams),
            Input::Recall => self.recall(),
            Input::Ruled(controls) => self.ruled(controls, now),
            Input::Loaded(key, loaded) => self.loaded(key, loaded, now),
            Input::LoadFailed(key) => self.load_failed(key, now),
            Input::Noted(grant) if self.has(grant) => self.noted(grant.shard, true),
            Input::NoteFailed(grant) if self.has(grant) => self.noted(grant.shard, false),
            Input::Lost(grant) if self.has(grant) => self.lose(grant.shard),
            Input::GiveBack(grant) if self.has(grant) => self.give_back(grant.shard),
            Input::Ended { grant, seq, rev, ending } if self.has(grant) => {
                self.ended(seq, rev, ending, now, dice);
            }
            Input::Settled { grant, seq, rev, settled } if self.has(grant) => {
                self.settled(seq, rev, settled, now);
            }
            Input::SettleFailed { grant, seq, rev, unknown } if self.has(grant) => {
                self.settle_failed(seq, rev, unknown, now);
            }
            // Of an earlier time as the owner: what is in memory now was loaded since.
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

    /// The version of the rules that were told last.
    #[must_use]
    pub const fn rules_version(&self) -> u64 {
        self.controls.version
    }

    /// Says what to do now.
    pub fn act(&mut self, now: Moment, actions: &mut Vec<Action>) {
        self.look_at_timers(now);
        self.run_suspects(now, actions);
        if self.suspects.is_empty() && self.lone.is_empty() && !self.draining {
            self.dispatch(now, actions);
        }
        self.end_care(actions);
        if self.draining && !has(Flaw::DrainStartsNoted) {
            self.stand_down(now);
        }
        self.give(now, actions);
        self.start_notes(actions);
        self.start_noted(now, actions);
        self.start_loads(now, actions);
        actions.extend(self.ready.drain(..).map(Action::Settle));
        self.report(actions);
    }

    /// When to act again, if nothing happens before.
    #[must_use]
    pub fn next_wake(&self) -> Option<Moment> {
        self.timers.peek().map(|Reverse((at, _))| *at)
    }

    /// Whether no attempt is under way and nothing waits to be written.
    #[must_use]
    pub fn is_quiet(&self) -> bool {
        let busy = |held: &Held| !held.place.waits();
        if has(Flaw::ReleaseWhileRunning) && self.draining {
            return true;
        }
        self.running == 0 && !self.held.values().any(busy)
    }

    /// Whether nothing is due: quiet, nothing in memory, nothing to be loaded.
    #[must_use]
    pub fn is_idle(&self, now: Moment) -> bool {
        self.held.is_empty()
            && self.hungry.is_empty()
            && self.loads == 0
            && self.ready.is_empty()
            && self.next_wake().is_none_or(|at| at > now)
    }

    /// Whether an attempt of this event is under way.
    #[must_use]
    pub fn is_running(&self, seq: Seq) -> bool {
        self.held.get(&seq).is_some_and(|held| matches!(held.place, Place::Running(_)))
    }

    /// The events of the attempts under way.
    pub fn running(&self) -> impl Iterator<Item = &Entry> {
        let runs = |held: &&Held| matches!(held.place, Place::Running(_));
        self.held.values().filter(runs).map(|held| &held.entry)
    }

    /// The attempts under way: in whose right, of which event, as of which change.
    #[must_use]
    pub fn under_way(&self) -> Vec<(Grant, Seq, u32)> {
        let running = |(seq, held): (&Seq, &Held)| {
            let grant = self.shards.get(&held.entry.shard)?.grant();
            matches!(held.place, Place::Running(_)).then_some((grant, *seq, held.entry.rev))
        };
        self.held.iter().filter_map(running).collect()
    }

    /// Events of a queue in memory, those under way included.
    #[must_use]
    pub fn held_in(&self, queue: usize) -> usize {
        self.queues.get(queue).map_or(0, Queue::held)
    }

    /// Whether a shard is careful: what is dispatched in it is noted first. Who stops while it is must not give
    /// the shard back as clean, because the next owner has to be careful as well.
    #[must_use]
    pub fn is_careful(&self) -> bool {
        !self.suspects.is_empty() || self.shards.values().any(Shard::is_careful)
    }

    /// Whether this is the right by which we have a shard.
    fn has(&self, grant: Grant) -> bool {
        let current = self.shards.get(&grant.shard).is_some_and(|shard| shard.grant() == grant);
        current || has(Flaw::AnswersOfAnotherTime)
    }

    /// Takes an event out of memory, with what it held.
    fn let_go(&mut self, seq: Seq) -> Option<Entry> {
        let Held { entry, queue, place, .. } = self.held.remove(&seq)?;
        let was_busy = !place.waits();
        self.queues[queue].let_go(loading::lane(&entry), entry.event.payload.len());
        self.lone.remove(&seq);
        self.unsure.remove(&seq);
        self.wary.remove(&seq);
        self.put_back.remove(&seq);
        match place {
            Place::Noting(running) | Place::Running(running) => self.end_run(queue, *running),
            Place::Striking(_) => self.running -= 1,
            Place::Ready | Place::PutOff | Place::Suspect | Place::Settling(_) => {}
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

    /// An attempt is over: its place is free.
    fn end_run(&mut self, queue: usize, running: Running) {
        self.running -= 1;
        self.queues[queue].ended(running.lane);
    }

    /// The flow of an event in memory.
    fn key_of(&self, entry: &Entry) -> Option<FlowKey> {
        let Entry { shard, stream, .. } = *entry;
        Some(FlowKey { shard, epoch: self.shards.get(&shard)?.grant().epoch, stream })
    }

    /// The flow of an event, made if it is new; none where its queue is not ours to run.
    fn flow_of(&mut self, shard: u32, stream: StreamId, queue: &str, tenant: &str) -> Option<FlowKey> {
        let key = FlowKey { shard, epoch: self.shards.get(&shard)?.grant().epoch, stream };
        if !self.flows.contains_key(&key) {
            let queue = *self.names.get(queue)?;
            let is_ordered = self.queues[queue].plan.ordered;
            self.flows.insert(key, Flow::new(queue, tenant.into(), is_ordered));
            self.queues[queue].flows += 1;
        }
        Some(key)
    }
}
