//! The loop: chooses what happens next, until everything has come to an end.

use redrive_core::Moment;
use redrive_core::scheduler::Action;
use redrive_store::Store;
use redrive_store::memory::{Fault, Memory};
use std::time::Duration;

use super::chance::Chance;
use super::figures::Figures;
use super::intent::{Intent, Sent};
use super::model::{Check, Fate, Model};
use super::plan::Plan;
use super::trace::{Trace, say};
use super::words::name;

mod node;

mod shell;

mod perform;

mod attempt;

mod transact;

mod publisher;

mod owning;

mod rules;

mod operators;

mod clerk;

mod workers;

mod fault;

mod audit;

mod crossing;

use crossing::Crossing;
use node::{Node, Op};
use workers::{Call, Lot};

/// Makes other dice of a seed. Chosen so that nothing is given back with the seeds that are known to find bugs.
const GIVING: u64 = 2764;

/// And others.
const NEAR: u64 = 0x0000_4ea2;

/// Steps within which everything has to end once nothing goes wrong any more.
const CALM_STEPS_MAX: u64 = 20_000;
/// And the time.
const CALM_TIME_MAX: Duration = Duration::from_secs(3600);
/// Everything begins a day after the origin, so that clocks can go back.
const START: Duration = Duration::from_secs(86_400);

/// Everything there is.
#[derive(Debug)]
pub(super) struct World {
    pub(super) now: Moment,
    chance: Chance,
    /// What decides on shards that are given back: dice of its own, so that seeds from before there was such a thing
    /// still mean what they did.
    giving: Chance,
    /// Whether publishers are in the processes of nodes, and wish for their shards: what decides on it, again on its
    /// own.
    near: Option<Chance>,
    crossing: Crossing,
    plan: Plan,
    intents: Vec<Intent>,
    store: Memory,
    nodes: Vec<Node>,
    /// Which node is taken for the owner of each shard, in which of its lives.
    holders: Vec<Option<(usize, u32)>>,
    model: Model,
    /// What processes had sent to the store before they died.
    orphans: Vec<Op>,
    /// A fault that the store was told to have, and has not had yet.
    armed: Option<Fault>,
    /// Whether a sync failed, and the store waits to be opened again.
    limbo: bool,
    /// Identities that are there once it is.
    unresolved: Vec<usize>,
    /// Whether nothing goes wrong any more.
    calm: bool,
    /// How far the clock was set back in all.
    set_back: Duration,
    /// Counts commits.
    stamp: u64,
    actions: Vec<Action>,
    /// What workers outside have, or had.
    lots: Vec<Lot>,
    /// How many leases were asked for.
    tokens: u64,
    /// A call for leases of which it will turn out whether it happened.
    unleased: Option<Call>,
    pub(super) trace: Trace,
    pub(super) figures: Figures,
}

impl World {
    pub(super) fn new(seed: u64, trace: bool) -> Self {
        let mut chance = Chance::new(seed);
        let mut giving = Chance::new(seed ^ GIVING);
        let plan = Plan::new(&mut chance, &mut giving);
        let mut near = Chance::new(seed ^ NEAR);
        let is_near = near.one_in(2);
        let intents = Intent::all(&plan, &mut chance);
        let store = Memory::with_shards(plan.shards);
        let specs: Vec<_> = plan.queues.iter().map(super::plan::QueueSetup::spec).collect();
        for spec in &specs {
            perform::at_once(store.declare(spec.clone(), redrive_store::By::Runner))
                .expect("a new store takes queues");
        }
        let model = Model::new(intents.len(), plan.chain_names(), plan.shards, specs);
        let now = Moment::from_nanos(0) + START;
        let mut nodes = Vec::new();
        for _ in 0..plan.nodes {
            nodes.push(Node::start(0, &store, &plan, chance.dice(), now, 0));
        }
        let holders = (0..plan.shards).map(|_| None).collect();
        let mut world = Self {
            now,
            chance,
            giving,
            near: Some(near).filter(|_| plan.give_back > 0 && is_near),
            crossing: Crossing::new(seed, plan.give_back > 0),
            plan,
            intents,
            store,
            nodes,
            holders,
            model,
            orphans: Vec::new(),
            armed: None,
            limbo: false,
            unresolved: Vec::new(),
            calm: false,
            set_back: Duration::ZERO,
            stamp: 0,
            actions: Vec::new(),
            lots: Vec::new(),
            tokens: 0,
            unleased: None,
            trace: Trace::new(trace),
            figures: Figures::default(),
        };
        say!(world, "{:?}", world.plan);
        if world.trace.on {
            for intent in 0..world.intents.len() {
                say!(world, "{:?}", world.intents[intent]);
            }
        }
        world
    }

    /// Runs it to its end.
    pub(super) fn run(&mut self) -> Check {
        for _ in 0..self.plan.steps {
            self.count_step();
            self.step()?;
        }
        self.calm_down()?;
        self.audit()
    }

    fn count_step(&mut self) {
        self.figures.steps += 1;
        self.figures.stir(self.now.as_nanos() ^ self.stamp);
    }

    /// Something happens.
    fn step(&mut self) -> Check {
        if self.commit_late_perhaps()? {
            return Ok(());
        }
        let kind = self.chance.below(100);
        let done = match kind {
            _ if self.plan.operators && self.chance.one_in(7) => self.operate_some()?,
            _ if self.plan.pulled.is_some() && self.chance.one_in(6) => self.work_some()?,
            0..32 => self.deliver_some()?,
            32..56 => self.perform_some()?,
            56..72 => self.attempt_some()?,
            72..82 => self.publish_some()?,
            82..90 => self.own_some()?,
            90..96 => false,
            _ => self.fault()?,
        };
        if !done {
            self.pass_time();
            self.wake_some()?;
        }
        if self.limbo && self.chance.one_in(6) {
            self.recover()?;
        }
        Ok(())
    }

    /// Nothing goes wrong any more: everything has to end.
    fn calm_down(&mut self) -> Check {
        say!(self, "— from here on nothing goes wrong —");
        self.calm = true;
        self.lift_all()?;
        let (end, last) = (self.now + CALM_TIME_MAX + self.set_back, self.figures.steps + CALM_STEPS_MAX);
        loop {
            self.count_step();
            if self.figures.steps > last || self.now > end {
                return Err(format!("it does not come to an end; {}", self.left()));
            }
            if self.limbo {
                self.recover()?;
            }
            if self.commit_late_perhaps()? {
                continue;
            }
            let first = self.chance.below(7);
            let mut done = false;
            for kind in (first..7).chain(0..first) {
                done = match kind {
                    0 => self.deliver_some()?,
                    1 => self.perform_some()?,
                    2 => self.attempt_some()?,
                    3 => self.publish_some()?,
                    4 => self.clerk_some()?,
                    5 => self.work_some()?,
                    _ => self.own_some()?,
                };
                if done {
                    break;
                }
            }
            if done || self.wake_due()? || self.commit_late()? {
                continue;
            }
            if self.is_over() {
                return Ok(());
            }
            match self.next_time() {
                Some(next) => self.now = next.max(self.now),
                None => return Err(format!("nobody will ever do anything; {}", self.left())),
            }
        }
    }

    /// A little time, or a lot of it.
    fn pass_time(&mut self) {
        let millis = if self.chance.one_in(self.plan.rates.jump) {
            self.figures.fault("jump of the clock");
            self.chance.between(1_000, 700_000)
        } else {
            self.chance.between(0, 300)
        };
        self.now = self.now + Duration::from_millis(millis);
    }

    fn wake_some(&mut self) -> Check {
        let node = self.chance.below(self.nodes.len());
        if self.nodes[node].up { self.act(node) } else { Ok(()) }
    }

    /// Acts on a node whose time has come.
    fn wake_due(&mut self) -> Check<bool> {
        let due = |node: &Node| node.up && node.scheduler.next_wake().is_some_and(|at| at <= self.now);
        let Some(node) = self.nodes.iter().position(due) else { return Ok(false) };
        say!(self, "node {node} wakes up");
        self.act(node)?;
        Ok(true)
    }

    fn next_time(&self) -> Option<Moment> {
        let up = self.nodes.iter().filter(|node| node.up);
        let pull = self.plan.pulled.and_then(|queue| self.model.next_pull(queue));
        up.flat_map(|node| node.deadlines().chain(node.scheduler.next_wake()))
            .chain(pull)
            .filter(|at| *at > self.now)
            .min()
    }

    fn is_over(&self) -> bool {
        let over = |intent: &Intent| !matches!(intent.sent, Sent::Not | Sent::Begun | Sent::Unsure);
        let quiet = |node: &Node| !node.up || node.scheduler.is_quiet();
        self.intents.iter().all(over)
            && self.orphans.is_empty()
            && self.crossing.is_over()
            && self.nodes.iter().all(quiet)
            && self.unfinished().next().is_none()
    }

    fn unfinished(&self) -> impl Iterator<Item = &super::model::Record> {
        let pending = self.model.events.values().filter(|record| record.fate == Fate::Pending);
        pending.filter(|record| !self.model.is_parked(record))
    }

    fn left(&self) -> String {
        let left: Vec<String> =
            self.unfinished().map(|record| format!("{} (e{})", name(record.seq), record.intent)).collect();
        format!("left are {}", left.join(", "))
    }
}

#[cfg(all(test, feature = "planted"))]
mod tests {
    use redrive_core::planted::Flaw;

    use super::{Chance, GIVING};
    use crate::simulation::planted::KNOWN;

    #[test]
    fn seeds_that_are_known_to_find_bugs_give_nothing_back() {
        // Nobody is near where nothing is given back.
        for (flaw, seed) in KNOWN.into_iter().filter(|(flaw, _)| *flaw != Flaw::KeysGoNear) {
            assert!(!Chance::new(seed ^ GIVING).one_in(2), "{flaw:?} {seed}");
        }
    }
}
