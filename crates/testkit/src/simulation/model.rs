//! The truth, beside the store and the schedulers.
//!
//! The model records every commit that happened, also if its caller got another answer. It decides what the
//! store should have answered, and what a scheduler may do. It knows nothing of how either works.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use redrive_core::event::{DeadReason, State};
use redrive_core::queue_entry::{EventChange, EventProgress, FencingToken, ParkFollowers, Seq, StreamId};
use redrive_core::triage::JobId;
use redrive_core::{Event, Moment};
use redrive_store::QueueSpec;

mod owners;

mod order;

mod starts;

mod verdicts;

mod looks;

mod orders;

mod rules;

mod jobs;

mod leases;

mod memory;

pub(super) use leases::{Hand, Reply};
pub(super) use memory::Gone;
pub(super) use orders::{Aim, Wish, check_operated};
pub(super) use owners::Owner;
pub(super) use rules::{ChainName, Held};
pub(super) use starts::Start;
pub(super) use verdicts::{Word, check_verdict};

/// What is wrong, in a sentence.
pub(super) type Check<T = ()> = Result<T, String>;

/// The truth.
#[derive(Debug)]
pub(super) struct Model {
    pub(super) events: BTreeMap<Seq, Record>,
    /// The event that currently has the identity of an intent.
    pub(super) by_intent: Vec<Option<Seq>>,
    pub(super) owners: Vec<Owner>,
    /// All events of a key, in order.
    chains: Vec<Vec<Seq>>,
    /// The last event of each key that had an effect.
    effects: Vec<Option<Seq>>,
    specs: Vec<QueueSpec>,
    last_seqs: BTreeMap<StreamId, Seq>,
    /// Sequence numbers that publishers have drawn for events that are not committed.
    drawn: BTreeSet<Seq>,
    streams: BTreeMap<StreamId, (usize, String)>,
    /// Identities whose events were edited into others.
    pub(super) gone: BTreeMap<usize, Gone>,
    /// The key of each chain.
    chain_names: Vec<ChainName>,
    pub(super) rules: Vec<Held>,
    pub(super) jobs: Vec<redrive_core::triage::Job>,
    /// How many deaths there were.
    deaths: u64,
    /// The entries that the audit log should have: what was done, and to how many events.
    pub(super) audit: Vec<(&'static str, u64)>,
    /// Counts commits: the number of the last one.
    pub(super) stamp: u64,
}

/// The truth about one event.
#[derive(Debug, Clone)]
pub(super) struct Record {
    pub(super) seq: Seq,
    pub(super) intent: usize,
    pub(super) event: Arc<Event>,
    pub(super) queue: usize,
    pub(super) chain: Option<usize>,
    pub(super) shard: u32,
    pub(super) stream: StreamId,
    pub(super) rev: u32,
    pub(super) expires: Option<Moment>,
    pub(super) progress: EventProgress,
    pub(super) fate: Fate,
    pub(super) result: Option<Vec<u8>>,
    /// How long its identity has to be remembered.
    pub(super) remembered: Moment,
    /// How often its effect happened in the domain.
    pub(super) effects: u32,
    pub(super) deaths: Deaths,
    /// The number of its last death in the store, and when it was.
    pub(super) death: u64,
    pub(super) died: Moment,
    /// The job that redrove it, until it ends or dies again.
    pub(super) job: Option<JobId>,
    /// The last lease, while it lives or is dead by the lapse of that lease.
    pub(super) lease: Option<Hand>,
    /// The commit in which a command took it from its owner.
    pub(super) taken_away: u64,
    /// The revision at which an operator made it due: an owner that knows an older one may still run it,
    /// without effect.
    pub(super) hastened: u32,
    /// The commit in which a command put it before other events.
    pub(super) put_back: u64,
    /// The last event of its key that was there before it, although its number is larger.
    pub(super) overtaken_by: Seq,
}

/// The crashes that an event may have caused.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Deaths {
    /// How often its handler crashed the owner of its shard.
    pub(super) kills: u32,
    /// How often the owner died of something else while this event had a crash count and ran alone.
    pub(super) excuses: u32,
    /// How often its handler crashed the owner since a command last intervened.
    pub(super) spree: u32,
}

/// The state of an event, as far as it matters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fate {
    Pending,
    Done,
    Dropped,
    Expired,
    Dead {
        reason: DeadReason,
        holds: Option<Hold>,
    },
    /// Discarded by an operator, who can restore it while its identity is remembered, or by retention.
    Discarded {
        was: DeadReason,
        restorable: bool,
    },
}

/// How a dead letter parks later events.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Hold {
    pub(super) until: Option<Moment>,
    count: Option<u32>,
}

impl Fate {
    pub(super) const fn state(self) -> Option<State> {
        match self {
            Self::Pending => None,
            Self::Done => Some(State::Done),
            Self::Dropped => Some(State::Dropped),
            Self::Expired => Some(State::Expired),
            Self::Dead { .. } => Some(State::Dead),
            Self::Discarded { .. } => Some(State::Discarded),
        }
    }

    /// Whether there is still an event, and not only its dedupe record.
    pub(super) const fn exists(self) -> bool {
        matches!(self, Self::Pending | Self::Dead { .. })
    }
}

/// What a store should answer to a settle.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Judged {
    Applied,
    Stale,
    Fenced,
}

/// What a model has to know of an accepted event.
#[derive(Debug)]
pub(super) struct Accepted<'a> {
    pub(super) intent: usize,
    pub(super) queue: usize,
    pub(super) chain: Option<usize>,
    pub(super) event: &'a Arc<Event>,
    pub(super) at: Moment,
    pub(super) seq: Seq,
    /// Shard and stream, as the store reports them.
    pub(super) place: (u32, StreamId),
}

impl Model {
    pub(super) fn new(
        intents: usize,
        chain_names: Vec<ChainName>,
        shards: u32,
        specs: Vec<QueueSpec>,
    ) -> Self {
        let chains = chain_names.len();
        Self {
            events: BTreeMap::new(),
            by_intent: vec![None; intents],
            owners: (0..shards).map(|_| Owner::default()).collect(),
            chains: vec![Vec::new(); chains],
            effects: vec![None; chains],
            specs,
            last_seqs: BTreeMap::new(),
            drawn: BTreeSet::new(),
            streams: BTreeMap::new(),
            gone: BTreeMap::new(),
            chain_names,
            rules: Vec::new(),
            jobs: Vec::new(),
            deaths: 0,
            audit: Vec::new(),
            stamp: 0,
        }
    }

    /// An event was accepted.
    pub(super) fn accept(&mut self, accepted: Accepted<'_>) -> Check {
        let Accepted { intent, queue, chain, event, at, seq, place: (shard, stream) } = accepted;
        if self.is_remembered(intent, at) {
            let (before, gone) = (self.record_of(intent), self.gone.get(&intent));
            let what = format!("the store accepted {} a second time:", event.id);
            return Err(format!("{what} {before:?} {gone:?}"));
        }
        let known = self.streams.entry(stream).or_insert_with(|| (queue, event.tenant.clone()));
        if (known.0, &known.1) != (queue, &event.tenant) {
            return Err(format!("{} was put into the stream of another queue or tenant", event.id));
        }
        let is_late = self.drawn.remove(&seq);
        if !is_late {
            self.follow(stream, seq)?;
        }
        let overtaken = chain.filter(|_| is_late).and_then(|chain| self.chains[chain].last().copied());
        let due = event.when.moment(at);
        let spec = &self.specs[queue];
        let record = Record {
            seq,
            intent,
            event: Arc::clone(event),
            queue,
            chain,
            shard,
            stream,
            rev: 1,
            expires: event.expires.map(|expires| expires.moment(at)),
            progress: EventProgress::fresh(due),
            fate: Fate::Pending,
            result: None,
            remembered: due.max(at) + spec.horizon + spec.window,
            effects: 0,
            deaths: Deaths::default(),
            death: 0,
            died: at,
            job: None,
            lease: None,
            taken_away: 0,
            hastened: 0,
            put_back: 0,
            overtaken_by: overtaken.unwrap_or(Seq(0)),
        };
        self.give_identity(intent, seq);
        self.events.insert(seq, record);
        if let Some(chain) = chain {
            let place = self.chains[chain].partition_point(|other| *other < seq);
            self.chains[chain].insert(place, seq);
            for other in self.chains[chain].split_off(place + 1) {
                self.chains[chain].push(other);
            }
            self.relieve(chain);
        }
        Ok(())
    }

    /// The streams that have had events, with their queues' names and tenants.
    pub(super) fn streams(&self) -> Vec<(StreamId, String, String)> {
        let named = |(id, (queue, tenant)): (&StreamId, &(usize, String))| {
            (*id, self.specs[*queue].name.clone(), tenant.clone())
        };
        self.streams.iter().map(named).collect()
    }

    /// What a store should answer to a change under this fencing token.
    pub(super) fn judge(
        &self,
        token: FencingToken,
        seq: Seq,
        rev: u32,
        change: Option<&EventChange>,
    ) -> Judged {
        if !self.is_current(token) {
            return Judged::Fenced;
        }
        let Some(record) = self.events.get(&seq).filter(|record| record.fate.exists()) else {
            return Judged::Stale;
        };
        let dead = matches!(record.fate, Fate::Dead { .. });
        let misplaced = matches!(change, Some(EventChange::Unpark)) != dead;
        if record.rev != rev || misplaced { Judged::Stale } else { Judged::Applied }
    }

    /// A change happened.
    pub(super) fn apply(&mut self, seq: Seq, at: Moment, change: &EventChange) -> Check {
        let window = self.window(seq);
        let Some(record) = self.events.get_mut(&seq) else {
            return Err(format!("{seq:?} is changed, and was never published"));
        };
        record.rev += 1;
        let (chain, job) = (record.chain, record.job);
        let mut end = |fate: Fate, attempts: u32| {
            record.job = None;
            record.fate = fate;
            record.progress.attempts = attempts;
            record.remembered = record.remembered.max(at + window);
        };
        match change {
            EventChange::Done => end(Fate::Done, 1),
            EventChange::DoneWith { result, attempts, .. } => {
                end(Fate::Done, *attempts);
                record.result = result.clone();
            }
            EventChange::Dropped { attempts, .. } => end(Fate::Dropped, *attempts),
            EventChange::Expired { attempts, .. } => end(Fate::Expired, *attempts),
            EventChange::Retry(progress) => {
                if !progress.suspect {
                    // It ran to its end: the search for a poisonous event begins anew.
                    record.deaths.spree = 0;
                }
                record.progress = progress.clone();
                record.fate = Fate::Pending;
            }
            EventChange::Dead { reason, progress, park } => {
                record.progress = progress.clone();
                let holds = match park {
                    ParkFollowers::No => None,
                    ParkFollowers::UntilResolved => Some(Hold { until: None, count: None }),
                    ParkFollowers::UpTo { until, count } => Some(Hold { until: *until, count: *count }),
                };
                let holds = holds.filter(|_| record.chain.is_some());
                self.bury(seq, *reason, holds, at);
                self.convict(seq, *reason)?;
            }
            EventChange::CountCrash => {
                record.progress.crash_count += 1;
                record.progress.suspect = true;
            }
            EventChange::Unpark => {
                if let Fate::Dead { holds, .. } = &mut record.fate {
                    *holds = None;
                }
            }
        }
        if let Some(job) = job {
            self.job_heard(job, change);
        }
        if let Some(chain) = chain {
            self.relieve(chain);
        }
        Ok(())
    }

    /// An event becomes a dead letter.
    fn bury(&mut self, seq: Seq, reason: DeadReason, holds: Option<Hold>, at: Moment) {
        let Some(record) = self.events.get_mut(&seq) else { return };
        self.deaths += 1;
        record.fate = Fate::Dead { reason, holds };
        record.death = self.deaths;
        record.died = at;
        record.job = None;
        record.lease = None;
    }

    fn window(&self, seq: Seq) -> Duration {
        self.events.get(&seq).map_or(Duration::ZERO, |record| self.specs[record.queue].window)
    }
}
