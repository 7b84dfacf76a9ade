//! What is modelled: an endpoint, the workers that run its requests, and what they can do.

use std::time::Duration;

use redrive_core::ledger::{Ask, Effects, OnUnknown, Print, Retention};
use stateright::{Model, Property};

use crate::row::ticks;
use crate::rules;
use crate::world::{Worker, World};

/// How many ticks after its run or its lease, whichever ends first, what a run sent cannot arrive any more.
pub(crate) const SETTLING: u8 = 1;

/// A rule that is taken out, or an assumption.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Planted {
    /// A run completes its record, whoever has it and however it ended.
    FenceOut,
    /// A run completes its record while anybody runs it.
    EpochIgnored,
    /// A claim reads in one transaction and writes in another.
    CheckThenAct,
    /// A record whose lease is over is deleted.
    ExpiryDeletes,
    /// A probe is believed as soon as the lease is over.
    NoSettling,
    /// A run that is probed goes on after its lease is over.
    LateSender,
}

/// An endpoint with its workers, and what may go wrong.
#[derive(Debug, Clone)]
pub(crate) struct Api {
    pub(crate) effects: Effects,
    pub(crate) keys: usize,
    pub(crate) workers: usize,
    /// How many ticks a run has its record for, unless it renews; once.
    pub(crate) lease: u8,
    /// The last tick.
    pub(crate) end: u8,
    /// How many faults there are, at most: crashes, failures, roll-backs, commits that are not heard of.
    pub(crate) faults: u8,
    /// How many ticks an answer is kept for.
    pub(crate) retention: u8,
    /// Whether clients say when they first sent a request.
    pub(crate) dated: bool,
    /// Whether a worker's clock may be a tick ahead.
    pub(crate) clocks_differ: bool,
    pub(crate) planted: Option<Planted>,
}

/// A step. Workers by their place in the state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Act {
    /// Time goes on.
    Tick,
    /// A worker is asked for a key, with a clock that is ahead by so much.
    Claim { worker: usize, key: usize, ahead: u8 },
    /// What was read is written ([`Planted::CheckThenAct`]).
    Write { worker: usize },
    /// A run sends what has the effect.
    Send { worker: usize },
    /// What was sent arrives.
    Land { key: usize },
    /// A probe is answered.
    Probed { worker: usize },
    /// A run ends with its answer, in one transaction with its effect where the endpoint is transactional. One that does
    /// not hear of it may say it again, or something else.
    Complete { worker: usize, heard: bool },
    /// A run ends, and may be repeated.
    Fail { worker: usize },
    /// A run ends, and nobody knows how.
    Hold { worker: usize },
    /// A run ends, and proves that nothing happened.
    Nothing { worker: usize },
    /// A run goes on.
    Renew { worker: usize },
    /// A worker dies, and comes back without its memory.
    Crash { worker: usize },
    /// A person looks at what happened, and resolves what is unknown.
    Resolve { key: usize },
    /// A record is deleted ([`Planted::ExpiryDeletes`]).
    Delete { key: usize },
}

impl Api {
    /// Three workers and two keys.
    pub(crate) const fn of(effects: Effects) -> Self {
        Self {
            effects,
            keys: 2,
            workers: 3,
            lease: 2,
            end: 4,
            faults: 1,
            retention: u8::MAX,
            dated: false,
            clocks_differ: false,
            planted: None,
        }
    }

    /// The same with this rule taken out.
    pub(crate) const fn without(self, planted: Planted) -> Self {
        Self { planted: Some(planted), ..self }
    }

    pub(crate) fn has(&self, planted: Planted) -> bool {
        self.planted == Some(planted)
    }

    pub(crate) fn is_transactional(&self) -> bool {
        self.effects == Effects::Transactional
    }

    pub(crate) const fn is_probe(&self) -> bool {
        matches!(self.effects, Effects::Opaque(OnUnknown::Probe { .. }))
    }

    /// A request, as the ledger is asked about it.
    pub(crate) fn ask(&self, first_sent: u8) -> Ask {
        let effects = match self.effects {
            Effects::Opaque(OnUnknown::Probe { .. }) if self.has(Planted::NoSettling) => {
                Effects::Opaque(OnUnknown::Probe { settling: Duration::ZERO })
            }
            effects => effects,
        };
        Ask {
            print: Print { version: 1, hash: [7; 32] },
            older: Vec::new(),
            effects,
            lease: ticks(self.lease),
            retention: Retention { answer: ticks(self.retention) },
            first_sent: self.dated.then(|| crate::row::at(first_sent)),
            skew: Duration::ZERO,
        }
    }

    /// What a worker can do.
    fn acts_of(&self, world: &World, worker: usize, acts: &mut Vec<Act>) {
        let may_fail = world.faults < self.faults;
        let Worker::Running { key, until, sent, .. } = world.workers[worker] else {
            match world.workers[worker] {
                Worker::Idle => {
                    for key in 0..self.keys {
                        acts.extend((0..=u8::from(self.clocks_differ)).map(|ahead| Act::Claim {
                            worker,
                            key,
                            ahead,
                        }));
                    }
                }
                Worker::Looked { .. } => acts.push(Act::Write { worker }),
                _ => acts.push(Act::Probed { worker }),
            }
            return;
        };
        let mine = world.workers[worker].run();
        let tale = &world.tales[key];
        let on_the_wire = tale.wire.iter().any(|(run, _)| Some(*run) == mine);
        // The layer ends a run that is probed with the last lease that was confirmed: nothing else comes of it.
        if self.is_probe() && world.clock >= until && !self.has(Planted::LateSender) {
            acts.push(Act::Hold { worker });
            let in_time = world.clock + SETTLING <= self.end;
            acts.extend((may_fail && in_time).then_some(Act::Crash { worker }));
            return;
        }
        let landed = sent && !on_the_wire && mine.is_some_and(|run| self.saw(tale, run));
        let lost = sent && !on_the_wire && !landed;
        if !self.is_transactional() && !sent {
            acts.push(Act::Send { worker });
        }
        if self.is_transactional() || landed {
            acts.push(Act::Complete { worker, heard: true });
            acts.extend(may_fail.then_some(Act::Complete { worker, heard: false }));
        }
        if self.effects.may_rerun() && (may_fail || lost) {
            acts.push(Act::Fail { worker });
        }
        if !self.effects.may_rerun() && (may_fail || lost) {
            acts.push(Act::Hold { worker });
        }
        if !sent && may_fail {
            acts.push(Act::Nothing { worker });
        }
        // So early that somebody can still take over before the end.
        if may_fail && world.clock + self.lease + SETTLING <= self.end {
            acts.push(Act::Crash { worker });
        }
        acts.push(Act::Renew { worker });
    }

    /// Whether the run knows that what it sent had its effect.
    fn saw(&self, tale: &crate::world::Tale, run: u8) -> bool {
        !self.is_probe() || tale.effects.contains(&run)
    }
}

impl Model for Api {
    type State = World;
    type Action = Act;

    fn init_states(&self) -> Vec<World> {
        vec![World::new(self.keys, self.workers)]
    }

    fn actions(&self, world: &World, acts: &mut Vec<Act>) {
        if world.clock < self.end {
            acts.push(Act::Tick);
        }
        for key in 0..self.keys {
            let tale = &world.tales[key];
            if tale.wire.is_empty() {
                // Whoever looks waits for what may still arrive, as a probe does. Once is enough.
                acts.extend((tale.resolved == 0).then_some(Act::Resolve { key }));
            } else {
                acts.push(Act::Land { key });
            }
            if self.has(Planted::ExpiryDeletes) {
                acts.push(Act::Delete { key });
            }
        }
        for worker in 0..self.workers {
            // Those that are alike do alike.
            if worker == 0 || world.workers[worker] != world.workers[worker - 1] {
                self.acts_of(world, worker, acts);
            }
        }
    }

    fn next_state(&self, before: &World, act: Act) -> Option<World> {
        let mut world = before.clone();
        world.act(self, act);
        world.judge(before);
        world.sort();
        (world != *before).then_some(world)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        rules::of(self)
    }
}
