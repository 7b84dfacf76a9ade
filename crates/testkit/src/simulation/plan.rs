//! What a seed decides before the first step: how many of everything, and which faults may happen.
//!
//! Each kind of fault is in some seeds and not in others. If everything goes wrong at once, no run gets far
//! enough to go wrong in an interesting way.

use std::sync::Arc;
use std::time::Duration;

use redrive_core::breaker::BreakerSettings;
use redrive_core::budget::BudgetSettings;
use redrive_core::scheduler::{AfterDead, QueuePlan};
use redrive_core::{Backoff, Breaker, Budget, Fault, Jitter, Limit, Policy};
use redrive_store::{DeadLetterRetention, QueueSpec};

use super::chance::Chance;

mod words;

/// How long identities are remembered after their events ended.
const WINDOW: Duration = Duration::from_secs(600);

/// What a seed decides before the first step.
#[derive(Debug)]
pub(super) struct Plan {
    pub(super) nodes: usize,
    pub(super) shards: u32,
    pub(super) queues: Vec<QueueSetup>,
    pub(super) tenants: usize,
    pub(super) keys: usize,
    pub(super) intents: usize,
    /// Steps with faults; then they stop, and everything has to come to an end.
    pub(super) steps: usize,
    /// Whether operators act.
    pub(super) operators: bool,
    /// The queue that outside workers pull from: the last one, which no process runs.
    pub(super) pulled: Option<usize>,
    pub(super) rates: Rates,
    /// How often a node is asked to hand off one of its shards, as with rates.
    pub(super) give_back: usize,
}

/// How often faults happen: once in this many times; never if zero.
#[derive(Debug, Default)]
pub(super) struct Rates {
    pub(super) crash: usize,
    pub(super) take_over: usize,
    pub(super) drain: usize,
    pub(super) refused_commit: usize,
    pub(super) unknown_commit: usize,
    pub(super) failed_sync: usize,
    pub(super) between_commits: usize,
    pub(super) lost_answer: usize,
    pub(super) missed_arrival: usize,
    pub(super) failed_load: usize,
    pub(super) jump: usize,
    pub(super) backward: usize,
    /// Of events: one in this many has a handler that crashes the process.
    pub(super) killers: usize,
}

/// How a queue is set up, so that every process can have its own policy for it.
#[derive(Debug, Clone)]
pub(super) struct QueueSetup {
    pub(super) name: Arc<str>,
    pub(super) ordered: bool,
    pub(super) attempts: u32,
    pub(super) attempt_time: Duration,
    pub(super) time: Option<Duration>,
    backoff: Duration,
    concurrency: u32,
    pub(super) window: usize,
    pub(super) after_dead: AfterDead,
    pub(super) panics: Fault,
    budget: bool,
    breaker: bool,
    limit: Option<u32>,
    pub(super) pull: bool,
    keep: DeadLetterRetention,
}

impl Plan {
    pub(super) fn new(chance: &mut Chance, giving: &mut Chance) -> Self {
        let mut queues: Vec<_> =
            (0..chance.between(1, 2)).map(|number| QueueSetup::new(number, chance)).collect();
        let operators = chance.one_in(2);
        let mut pulled = None;
        if operators {
            for queue in &mut queues {
                queue.keep = keep(chance);
            }
            if chance.one_in(3) {
                let mut queue = QueueSetup::new(queues.len() as u64, chance);
                queue.pull = true;
                pulled = Some(queues.len());
                queues.push(queue);
            }
        }
        Self {
            operators,
            pulled,
            nodes: chance.pick(&[1, 1, 2, 2, 3]),
            shards: chance.pick(&[1, 1, 2, 3]),
            queues,
            tenants: chance.pick(&[1, 1, 2]),
            keys: chance.pick(&[1, 2, 3]),
            intents: chance.pick(&[2, 4, 6, 10, 16]),
            steps: chance.pick(&[40, 80, 160, 320]),
            rates: Rates::new(chance),
            give_back: if giving.one_in(2) { giving.pick(&[1, 3]) } else { 0 },
        }
    }
}

impl Plan {
    /// The name of a tenant.
    pub(super) fn tenant(number: usize) -> String {
        if number == 0 { String::new() } else { format!("t{number}") }
    }

    /// Queue, tenant and key of each chain, by its number.
    pub(super) fn chain_names(&self) -> Vec<(String, String, String)> {
        let mut names = Vec::new();
        for queue in &self.queues {
            for tenant in 0..self.tenants {
                names.extend(
                    (0..self.keys)
                        .map(|key| (queue.name.to_string(), Self::tenant(tenant), format!("k{key}"))),
                );
            }
        }
        names
    }
}

impl Rates {
    fn new(chance: &mut Chance) -> Self {
        let mut maybe = |rates: &[usize]| if chance.one_in(2) { chance.pick(rates) } else { 0 };
        let mut rates = Self {
            crash: maybe(&[3, 10]),
            take_over: maybe(&[3, 10]),
            drain: maybe(&[5, 15]),
            refused_commit: maybe(&[5, 30]),
            unknown_commit: maybe(&[3, 15]),
            failed_sync: maybe(&[40, 80]),
            between_commits: maybe(&[3]),
            lost_answer: maybe(&[2, 8]),
            missed_arrival: maybe(&[2, 8]),
            failed_load: maybe(&[2, 8]),
            jump: maybe(&[4, 20]),
            backward: maybe(&[10]),
            killers: maybe(&[3, 10]),
        };
        // That a poisonous event is found after a number of crashes holds only if time does not run back: the
        // events that were due when the process died must be due when its shard is taken.
        if rates.killers > 0 {
            rates.backward = 0;
        }
        rates
    }
}

impl QueueSetup {
    fn new(number: u64, chance: &mut Chance) -> Self {
        let up_to = AfterDead::ParkUpTo {
            time: chance.pick(&[None, Some(Duration::from_secs(20))]),
            count: chance.pick(&[None, Some(0), Some(1), Some(2)]),
        };
        Self {
            name: format!("q{number}").into(),
            ordered: !chance.one_in(6),
            attempts: u32::try_from(chance.between(1, 5)).unwrap_or(1),
            attempt_time: Duration::from_secs(chance.pick(&[1, 5])),
            time: chance.pick(&[None, None, Some(Duration::from_secs(120))]),
            backoff: Duration::from_millis(chance.pick(&[0, 100, 2000])),
            concurrency: chance.pick(&[1, 2, 4]),
            window: chance.pick(&[2, 3, 5, 8]),
            after_dead: chance.pick(&[AfterDead::GoOn, AfterDead::GoOn, AfterDead::Park, up_to]),
            panics: chance.pick(&[Fault::permanent(), Fault::transient()]),
            budget: chance.one_in(3),
            breaker: chance.one_in(5),
            limit: chance.pick(&[None, None, None, Some(1), Some(2)]),
            pull: false,
            keep: DeadLetterRetention::default(),
        }
    }

    /// The queue as a new process has it: with its own budget, breaker and limit.
    pub(super) fn plan(&self) -> QueuePlan {
        let mut policy = Policy::builder()
            .name(&*self.name)
            .attempts(self.attempts)
            .attempt_time(self.attempt_time)
            .backoff(Backoff::constant(self.backoff))
            .jitter(Jitter::Full)
            .not_before_max(Duration::from_secs(60));
        if let Some(time) = self.time {
            policy = policy.time(time);
        }
        policy = if self.budget { policy.budget(budget()) } else { policy.no_budget() };
        if self.breaker {
            policy = policy.breaker(breaker());
        }
        if let Some(width) = self.limit {
            policy = policy.limit(Limit::fixed(width).expect("a width above zero"));
        }
        let mut plan = QueuePlan::new(self.name.clone(), policy.build().expect("a policy that makes sense"));
        plan.concurrency = self.concurrency;
        plan.ordered = self.ordered;
        plan.window_max = self.window;
        plan.after_dead = self.after_dead;
        plan.panics = self.panics;
        plan
    }

    /// The queue as a store knows it.
    pub(super) fn spec(&self) -> QueueSpec {
        let horizon = self.plan().policy.settings().horizon().total();
        QueueSpec {
            name: self.name.to_string(),
            ordered: self.ordered,
            window: WINDOW,
            horizon,
            pull: self.pull,
            keep: self.keep,
        }
    }
}

fn keep(chance: &mut Chance) -> DeadLetterRetention {
    DeadLetterRetention {
        time: chance.pick(&[None, None, None, Some(Duration::from_secs(300))]),
        count: chance.pick(&[None, None, None, Some(2)]),
    }
}

fn budget() -> Budget {
    let settings = BudgetSettings { share: 0.5, floor: 1.0, window: Duration::from_secs(10) };
    Budget::new(settings).expect("a share below one")
}

fn breaker() -> Breaker {
    let settings = BreakerSettings {
        failing: 0.5,
        window: 4,
        least_calls: 2,
        probes: 1,
        open_for: Duration::from_secs(2),
    };
    Breaker::new(settings).expect("settings within their ranges")
}
