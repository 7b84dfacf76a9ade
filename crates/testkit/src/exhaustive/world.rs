//! One process and its store.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use redrive_core::queue_entry::{EventChange, FencingToken, LoadRequest, Seq, SettleRequest, SettleResult};
use redrive_core::scheduler::{
    Action, AfterDead, AttemptEnd, DispatchedAttempt, EndedAttempt, Input, LoadId, NoteId, QueuePlan,
    Scheduler,
};
use redrive_core::triage::{ActiveRule, ActiveRules, Rule};
use redrive_core::{Backoff, Disposition, Event, Fault, Moment, Policy, SeededRandom};
use redrive_store::memory::Memory;
use redrive_store::prelude::*;
use redrive_store::{Arrivals, DeclaredBy, NewEvent, QueueSpec, StoreError, StoreFuture};

use super::scenario::Scenario;
use super::step::Step;

/// How often each shard is taken.
const EPOCHS: u64 = 2;
/// When everything begins.
const START: Duration = Duration::from_secs(1000);
/// The queue.
const QUEUE: &str = "q";

/// A pending action.
#[derive(Debug, Clone)]
pub(super) enum Op {
    Load(LoadId, LoadRequest),
    Note(NoteId, Vec<Seq>),
    Settle(SettleRequest),
}

/// A pending message to the scheduler.
#[derive(Debug)]
pub(super) struct Message {
    pub(super) input: Heard,
    /// Its commit: messages about arrivals are delivered in order, and answers after the arrivals before
    /// them.
    stamp: u64,
    is_arrival: bool,
}

/// An input that can be delivered twice.
#[derive(Debug, Clone)]
pub(super) enum Heard {
    Own(redrive_core::queue_entry::TakenShard),
    Arrived(Vec<redrive_core::queue_entry::QueueEntry>),
    Loaded(LoadId, redrive_core::queue_entry::LoadedEvents),
    LoadFailed(LoadId),
    Noted(NoteId, bool),
    Lost(FencingToken),
    Ended(FencingToken, Seq, u32, bool),
    Settled(FencingToken, Seq, u32, SettleResult),
    SettleFailed(FencingToken, Seq, u32, bool),
}

/// One process and its store.
pub(super) struct World {
    scenario: Scenario,
    pub(super) now: Moment,
    pub(super) scheduler: Scheduler,
    random: SeededRandom,
    store: Memory,
    told: Arc<Mutex<Vec<Arrivals>>>,
    pub(super) inbox: Vec<Message>,
    pub(super) ops: Vec<Op>,
    pub(super) attempts: Vec<DispatchedAttempt>,
    /// The current owner of each shard.
    pub(super) owners: [Option<FencingToken>; 2],
    /// The unsettled events of each shard that were due at an unclean takeover.
    before: [BTreeSet<Seq>; 2],
    /// The dispatch note of each shard in the store.
    noted: [Vec<Seq>; 2],
    /// Events that are done, and the shard of each.
    pub(super) done: BTreeSet<Seq>,
    shards: BTreeMap<Seq, u32>,
    revs: BTreeMap<Seq, u32>,
    stamp: u64,
    pub(super) is_published: bool,
    pub(super) is_paused: bool,
    version: u64,
    /// How many faults, repeated messages and commands may still happen.
    faults: u8,
    twice: u8,
    orders: u8,
    given: u8,
}

pub(super) type Check<T = ()> = Result<T, String>;

fn now_or_never<T>(mut answer: StoreFuture<T>) -> Result<T, StoreError> {
    match answer.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(done) => done,
        Poll::Pending => unreachable!("the store in memory answers at once"),
    }
}

impl World {
    pub(super) fn new(scenario: Scenario) -> Self {
        let now = Moment::default() + START;
        let store = Memory::with_shards(2);
        let spec = QueueSpec {
            name: QUEUE.to_owned(),
            ordered: scenario.keyed,
            window: Duration::from_secs(600),
            horizon: Duration::from_secs(600),
            ..QueueSpec::default()
        };
        now_or_never(store.declare(spec, DeclaredBy::Runner)).expect("a new store takes queues");
        let told: Arc<Mutex<Vec<Arrivals>>> = Arc::default();
        let mut world = Self {
            scenario,
            now,
            scheduler: scheduler(scenario),
            random: SeededRandom::new(1),
            told: told.clone(),
            inbox: Vec::new(),
            ops: Vec::new(),
            attempts: Vec::new(),
            owners: [None; 2],
            before: [BTreeSet::new(), BTreeSet::new()],
            noted: [Vec::new(), Vec::new()],
            done: BTreeSet::new(),
            shards: BTreeMap::new(),
            revs: BTreeMap::new(),
            stamp: 0,
            is_published: false,
            is_paused: false,
            version: 0,
            faults: 1,
            twice: 1,
            orders: 2,
            given: 1,
            store,
        };
        let ear = told;
        world.store.watch(Arc::new(move |arrivals| {
            ear.lock().unwrap_or_else(PoisonError::into_inner).push(arrivals);
        }));
        world.publish(0);
        world.publish(1);
        // They were there before any shard was owned.
        world.inbox.clear();
        if scenario.unclean {
            for shard in 0..2 {
                now_or_never(world.store.take(shard, now)).expect("a free shard can be taken");
            }
        }
        world
    }

    fn publish(&mut self, number: usize) {
        let mut event = Event::new(QUEUE, format!("e{number}"));
        if self.scenario.keyed {
            event = event.key("k");
        }
        let mut new = NewEvent::at(event, self.now);
        new.local_shard = Some(u32::from(number == 1));
        let _ = now_or_never(self.store.publish(vec![new]));
        self.hear_arrivals();
        self.is_published |= number == 2;
    }

    /// The store's announcements since the last call.
    fn hear_arrivals(&mut self) {
        self.stamp += 1;
        let arrivals = std::mem::take(&mut *self.told.lock().unwrap_or_else(PoisonError::into_inner));
        let entries = || arrivals.iter().flat_map(|arrivals| &arrivals.entries);
        self.shards.extend(entries().map(|entry| (entry.seq, entry.shard)));
        self.revs.extend(entries().map(|entry| (entry.seq, entry.rev)));
        for arrivals in arrivals.into_iter().filter(|arrivals| !arrivals.entries.is_empty()) {
            let (input, stamp) = (Heard::Arrived(arrivals.entries), self.stamp);
            self.inbox.push(Message { input, stamp, is_arrival: true });
        }
    }

    fn answer(&mut self, input: Heard) {
        self.inbox.push(Message { input, stamp: self.stamp, is_arrival: false });
    }

    /// Everything that may happen next.
    pub(super) fn steps(&self) -> Vec<Step> {
        let mut steps = Vec::new();
        for (number, message) in self.inbox.iter().enumerate().filter(|(number, _)| self.may_hear(*number)) {
            steps.push(Step::Hear(number));
            let is_answer = !message.is_arrival && !matches!(message.input, Heard::Own(_) | Heard::Ended(..));
            if self.twice > 0 && is_answer {
                steps.push(Step::HearTwice(number));
            }
        }
        for (number, op) in self.ops.iter().enumerate() {
            steps.push(Step::Do(number));
            if self.faults > 0 {
                steps.push(Step::Fail(number));
                if !matches!(op, Op::Load(..)) {
                    steps.push(Step::DoUnknown(number));
                }
            }
        }
        for number in 0..self.attempts.len() {
            steps.push(Step::Succeed(number));
            if self.faults > 0 {
                steps.push(Step::Retry(number));
            }
        }
        for shard in 0..2 {
            let epoch = self.owners[shard as usize].map_or(0, |token| token.epoch);
            let first = u64::from(self.scenario.unclean);
            if epoch < first + EPOCHS {
                steps.push(Step::Take(shard));
            }
            if epoch > first && self.given > 0 {
                steps.push(Step::GiveBack(shard));
            }
        }
        if self.orders > 0 {
            steps.extend([Step::Recall, Step::Pause(!self.is_paused)]);
        }
        if !self.is_published {
            steps.push(Step::Publish);
        }
        if self.scheduler.next_wake().is_some() {
            steps.push(Step::Wait);
        }
        steps
    }

    /// Arrivals are delivered in order, and the answer to a commit after the arrivals of earlier ones: that
    /// is what a store promises.
    pub(super) fn may_hear(&self, number: usize) -> bool {
        let message = &self.inbox[number];
        let is_ordered = message.is_arrival || matches!(message.input, Heard::Settled(..) | Heard::Own(_));
        let first = self.inbox.iter().filter(|other| other.is_arrival).map(|other| other.stamp).min();
        !is_ordered || first.is_none_or(|first| message.stamp <= first)
    }

    /// Performs a step.
    pub(super) fn step(&mut self, step: Step) -> Check {
        match step {
            Step::Take(shard) => self.take(shard),
            Step::Publish => self.publish(2),
            Step::Hear(number) => {
                let message = self.inbox.remove(number);
                self.hear(message.input);
            }
            Step::HearTwice(number) => {
                self.twice -= 1;
                let input = self.inbox[number].input.clone();
                self.hear(input);
            }
            Step::Do(number) => {
                let op = self.ops.remove(number);
                self.perform(op, false)?;
            }
            Step::DoUnknown(number) => {
                self.faults -= 1;
                let op = self.ops.remove(number);
                self.perform(op, true)?;
            }
            Step::Fail(number) => {
                self.faults -= 1;
                match self.ops.remove(number) {
                    Op::Load(key, _) => self.answer(Heard::LoadFailed(key)),
                    Op::Note(note, _) => self.answer(Heard::Noted(note, false)),
                    Op::Settle(SettleRequest { token, seq, rev, .. }) => {
                        self.answer(Heard::SettleFailed(token, seq, rev, false));
                    }
                }
            }
            Step::Succeed(number) | Step::Retry(number) => {
                let ticket = self.attempts.remove(number);
                let is_ok = matches!(step, Step::Succeed(_));
                self.faults -= u8::from(!is_ok);
                self.answer(Heard::Ended(ticket.token, ticket.entry.seq, ticket.entry.rev, is_ok));
            }
            Step::Recall => {
                self.orders -= 1;
                self.handle(Input::Recall);
            }
            Step::Pause(is_paused) => {
                self.orders = self.orders.saturating_sub(1);
                self.pause(is_paused);
            }
            Step::GiveBack(shard) => {
                self.given -= 1;
                if let Some(token) = self.owners[shard as usize] {
                    self.handle(Input::GiveBack(token));
                }
            }
            Step::Wait => self.now = self.scheduler.next_wake().map_or(self.now, |at| at.max(self.now)),
        }
        self.act()
    }

    fn take(&mut self, shard: u32) {
        let at = shard as usize;
        let Ok(taken) = now_or_never(self.store.take(shard, self.now)) else { return };
        self.hear_arrivals();
        self.owners[at] = Some(taken.token);
        self.noted[at].clear();
        let living = |(seq, of): (&Seq, &u32)| (*of == shard && !self.done.contains(seq)).then_some(*seq);
        self.before[at].clear();
        if taken.unclean {
            self.before[at] = self.shards.iter().filter_map(living).collect();
        }
        self.answer(Heard::Own(taken));
    }

    fn pause(&mut self, is_paused: bool) {
        self.version += 1;
        self.is_paused = is_paused;
        let pause = ActiveRule {
            rule: Rule::Pause { queue: QUEUE.to_owned() },
            since: self.now,
            until: None,
            who: String::new(),
            why: String::new(),
        };
        let list = if is_paused { vec![pause] } else { Vec::new() };
        self.handle(Input::Ruled(ActiveRules { version: self.version, list }));
    }

    fn hear(&mut self, input: Heard) {
        self.handle(match input {
            Heard::Own(taken) => Input::Own(taken),
            Heard::Arrived(entries) => Input::Arrived(entries),
            Heard::Loaded(key, loaded) => Input::Loaded(key, loaded),
            Heard::LoadFailed(key) => Input::LoadFailed(key),
            Heard::Noted(note, true) => Input::Noted(note),
            Heard::Noted(note, false) => Input::NoteFailed(note),
            Heard::Lost(token) => Input::Lost(token),
            Heard::Ended(token, seq, rev, is_ok) => {
                let said = if is_ok { Disposition::Ok.into() } else { Fault::transient().into() };
                Input::Ended { token, seq, rev, ended: EndedAttempt::new(AttemptEnd::Outcome(said)) }
            }
            Heard::Settled(token, seq, rev, settled) => Input::Settled { token, seq, rev, settled },
            Heard::SettleFailed(token, seq, rev, unknown) => Input::SettleFailed { token, seq, rev, unknown },
        });
    }

    fn handle(&mut self, input: Input) {
        self.scheduler.handle(input, self.now, &mut self.random);
    }

    fn perform(&mut self, op: Op, is_unknown: bool) -> Check {
        match op {
            Op::Load(key, load) => {
                let token = load.token;
                match now_or_never(self.store.load(load)) {
                    Ok(loaded) => self.answer(Heard::Loaded(key, loaded)),
                    Err(StoreError::NotOwner { .. }) => self.answer(Heard::Lost(token)),
                    Err(_) => self.answer(Heard::LoadFailed(key)),
                }
            }
            Op::Note(note, list) => match now_or_never(self.store.note(note.token, list.clone())) {
                Ok(()) => {
                    self.noted[note.token.shard as usize] = list;
                    self.answer(Heard::Noted(note, !is_unknown));
                }
                Err(StoreError::NotOwner { .. }) => self.answer(Heard::Lost(note.token)),
                Err(_) => self.answer(Heard::Noted(note, false)),
            },
            Op::Settle(settle) => self.settle(settle, is_unknown)?,
        }
        Ok(())
    }

    fn settle(&mut self, settle: SettleRequest, is_unknown: bool) -> Check {
        let SettleRequest { token, seq, rev, ref change, .. } = settle;
        let is_end = matches!(change, EventChange::Done | EventChange::DoneWith { .. });
        let is_again = matches!(change, EventChange::Retry(_));
        let Ok(mut answers) = now_or_never(self.store.settle(vec![settle])) else {
            self.answer(Heard::SettleFailed(token, seq, rev, false));
            return Ok(());
        };
        self.hear_arrivals();
        let Some(settled) = answers.pop() else { return Err("a settle has no answer".to_owned()) };
        if let SettleResult::Applied { rev, .. } = settled {
            self.revs.insert(seq, rev);
            if is_end && !self.done.insert(seq) {
                return Err(format!("{} is done twice", self.name(seq)));
            }
            if is_end || is_again {
                self.before[token.shard as usize].remove(&seq);
            }
        }
        self.answer(match is_unknown {
            true => Heard::SettleFailed(token, seq, rev, true),
            false => Heard::Settled(token, seq, rev, settled),
        });
        Ok(())
    }

    /// Asks the scheduler what to do.
    fn act(&mut self) -> Check {
        let mut actions = Vec::new();
        self.scheduler.act(self.now, &mut actions);
        let planned = actions.len();
        self.scheduler.act(self.now, &mut actions);
        if actions.len() > planned {
            return Err(format!("{:?} is planned only when asked a second time", actions[planned]));
        }
        for action in actions {
            match action {
                Action::Load(key, load) => self.ops.push(Op::Load(key, load)),
                Action::Note(token, list) => self.ops.push(Op::Note(token, list)),
                Action::Settle(settle) => self.ops.push(Op::Settle(settle)),
                Action::Attempt(ticket) => self.start(*ticket)?,
                Action::Given { token, clean } => self.given(token, clean)?,
                // Another step, or the end, takes the shard again.
                Action::Lost(_) | Action::EventSettled(_) | Action::Damaged(_) => {}
                Action::Check(..) | Action::Stalled { .. } => {
                    return Err("the watchdog was not asked".to_owned());
                }
            }
        }
        Ok(())
    }

    fn start(&mut self, ticket: DispatchedAttempt) -> Check {
        let (token, seq) = (ticket.token, ticket.entry.seq);
        let (name, at) = (self.name(seq), token.shard as usize);
        let is_current = self.owners[at] == Some(token);
        let beside = || self.attempts.iter().filter(|other| other.token == token);
        if is_current && beside().any(|other| self.scenario.keyed || other.entry.seq == seq) {
            return Err(format!("{name} starts beside another attempt that must end before"));
        }
        if is_current && (self.done.contains(&seq) || self.revs.get(&seq) != Some(&ticket.entry.rev)) {
            return Err(format!("{name} starts as of rev {}, which is over", ticket.entry.rev));
        }
        let is_struck = ticket.entry.progress.suspect;
        if is_current && self.before[at].contains(&seq) && !is_struck && !self.noted[at].contains(&seq) {
            return Err(format!("{name} was due at an unclean takeover, and starts without a note"));
        }
        if self.is_paused {
            return Err(format!("{name} starts while its queue is paused"));
        }
        self.attempts.push(ticket);
        Ok(())
    }

    fn given(&mut self, token: FencingToken, clean: bool) -> Check {
        let at = token.shard as usize;
        if self.attempts.iter().any(|attempt| attempt.token == token) {
            return Err(format!("shard {at} is given back with an attempt under way"));
        }
        if self.owners[at] != Some(token) {
            return Ok(());
        }
        if clean {
            // An event behind another one of its key cannot have been running.
            let head = self.before[at].iter().next().filter(|_| self.scenario.keyed);
            let left = if self.scenario.keyed { head } else { self.before[at].iter().next() };
            if let Some(left) = left {
                return Err(format!("shard {at} is given back as clean, and {} is left", self.name(*left)));
            }
            let _ = now_or_never(self.store.release(token));
        }
        Ok(())
    }

    fn name(&self, seq: Seq) -> String {
        let place = self.shards.keys().position(|other| *other == seq).unwrap_or_default();
        format!("event {place}")
    }

    /// Distinguishes this state from others.
    pub(super) fn fingerprint(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        let seen = (&self.inbox, &self.ops, &self.attempts, &self.owners, &self.before, &self.noted);
        format!("{:?}{seen:?}{:?}{:?}", self.scheduler, self.done, self.revs).hash(&mut hasher);
        (self.now, self.stamp, self.is_published, self.is_paused).hash(&mut hasher);
        (self.faults, self.twice, self.orders, self.given).hash(&mut hasher);
        hasher.finish()
    }
}

fn scheduler(scenario: Scenario) -> Scheduler {
    let policy = Policy::builder()
        .name(QUEUE)
        .attempts(5)
        .attempt_time(Duration::from_secs(5))
        .backoff(Backoff::constant(Duration::ZERO))
        .no_budget()
        .build()
        .expect("a policy that makes sense");
    let mut plan = QueuePlan::new(QUEUE, policy);
    plan.concurrency = scenario.concurrency;
    plan.ordered = scenario.keyed;
    plan.window_max = 4;
    plan.after_dead = AfterDead::GoOn;
    let mut scheduler = Scheduler::new();
    scheduler.add_queue(plan);
    scheduler
}
