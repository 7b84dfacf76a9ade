//! The model: an endpoint, the workers that run its requests, and their possible steps.

use std::time::Duration;

use redrive_core::ledger::{ClaimRequest, Effects, OnUnknown, RequestFingerprint, Retention};
use stateright::{Model, Property};

use crate::row::ticks;
use crate::rules;
use crate::world::{Worker, World};

/// How many ticks after its run or its lease, whichever ends first, a request that a run sent cannot arrive
/// any more.
pub(crate) const SETTLING: u8 = 1;

/// A rule that is removed, or an assumption.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Planted {
    /// A run completes its record, whichever run owns it and however it ended.
    FenceOut,
    /// A run completes its record while any run holds it.
    EpochIgnored,
    /// A claim reads in one transaction and writes in another.
    CheckThenAct,
    /// A record whose lease has lapsed is deleted.
    ExpiryDeletes,
    /// A probe is believed as soon as the lease has lapsed.
    NoSettling,
    /// A run that is probed continues after its lease has lapsed.
    LateSender,
}

/// An endpoint with its workers, and the possible faults.
#[derive(Debug, Clone)]
pub(crate) struct Api {
    pub(crate) effects: Effects,
    pub(crate) keys: usize,
    pub(crate) workers: usize,
    /// How many ticks a run holds its record, unless it renews; once.
    pub(crate) lease: u8,
    /// The last tick.
    pub(crate) end: u8,
    /// The most faults: crashes, failures, rollbacks, commits without an answer.
    pub(crate) faults: u8,
    /// How many ticks a reply is kept.
    pub(crate) retention: u8,
    /// Whether clients state when they first sent a request.
    pub(crate) dated: bool,
    /// Whether a worker's clock may be a tick ahead.
    pub(crate) clocks_differ: bool,
    pub(crate) planted: Option<Planted>,
}

/// A step. Workers are named by their position in the state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Act {
    /// Time goes on.
    Tick,
    /// A worker claims a key, with a clock that is ahead by this much.
    Claim { worker: usize, key: usize, ahead: u8 },
    /// The result of a read is written ([`Planted::CheckThenAct`]).
    Write { worker: usize },
    /// A run sends the request that has the effect.
    Send { worker: usize },
    /// A sent request arrives.
    Land { key: usize },
    /// A probe is answered.
    Probed { worker: usize },
    /// A run ends with its reply, in one transaction with its effect if the endpoint is transactional. A run
    /// without an answer may report the same again, or something else.
    Complete { worker: usize, heard: bool },
    /// A run ends, and may be repeated.
    Fail { worker: usize },
    /// A run ends with an unknown outcome.
    Hold { worker: usize },
    /// A run ends, and proves that nothing happened.
    Nothing { worker: usize },
    /// A run renews its lease.
    Renew { worker: usize },
    /// A worker dies, and comes back without its memory.
    Crash { worker: usize },
    /// An operator checks what happened, and resolves an unknown outcome.
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

    /// The same without this rule.
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

    /// A request, as it claims a key in the ledger.
    pub(crate) fn ask(&self, first_sent: u8) -> ClaimRequest {
        let effects = match self.effects {
            Effects::Opaque(OnUnknown::Probe { .. }) if self.has(Planted::NoSettling) => {
                Effects::Opaque(OnUnknown::Probe { settling: Duration::ZERO })
            }
            effects => effects,
        };
        ClaimRequest {
            print: RequestFingerprint { version: 1, hash: [7; 32] },
            older: Vec::new(),
            effects,
            lease: ticks(self.lease),
            retention: Retention { answer: ticks(self.retention) },
            first_sent: self.dated.then(|| crate::row::at(first_sent)),
            skew: Duration::ZERO,
        }
    }

    /// The possible steps of a worker.
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
        // The layer ends a run that is probed with the last lease that was confirmed: it has no further
        // effect.
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
        // So early that another run can still take over before the end.
        if may_fail && world.clock + self.lease + SETTLING <= self.end {
            acts.push(Act::Crash { worker });
        }
        acts.push(Act::Renew { worker });
    }

    /// Whether the run knows that its request had its effect.
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
                // The operator waits for requests that may still arrive, as a probe does. Once is enough.
                acts.extend((tale.resolved == 0).then_some(Act::Resolve { key }));
            } else {
                acts.push(Act::Land { key });
            }
            if self.has(Planted::ExpiryDeletes) {
                acts.push(Act::Delete { key });
            }
        }
        for worker in 0..self.workers {
            // Workers in the same state have the same steps.
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
