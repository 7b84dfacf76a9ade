//! What is true, beside the store and the schedulers.
//!
//! The model is told of every commit that happened, also of those whose caller was told otherwise. It says
//! what the store should have answered, and what a scheduler may do. It knows nothing of how either works.

use std::collections::BTreeMap;
use std::time::Duration;

use redrive_core::Moment;
use redrive_core::entry::{Change, Grant, Park, Progress, Seq, StreamId};
use redrive_core::event::{DeadReason, State};
use redrive_store::QueueSpec;

mod owners;

mod order;

mod starts;

mod verdicts;

mod looks;

pub(super) use owners::Owner;
pub(super) use starts::Start;
pub(super) use verdicts::{Word, check_verdict};

/// What is wrong, in a sentence.
pub(super) type Check<T = ()> = Result<T, String>;

/// What is true.
#[derive(Debug)]
pub(super) struct Model {
    pub(super) events: BTreeMap<Seq, Record>,
    /// The event that has the identity of an intent at present.
    pub(super) by_intent: Vec<Option<Seq>>,
    pub(super) owners: Vec<Owner>,
    /// All events of a key, in order.
    chains: Vec<Vec<Seq>>,
    /// The last of each key that had an effect.
    effects: Vec<Option<Seq>>,
    specs: Vec<QueueSpec>,
    last_seqs: BTreeMap<StreamId, Seq>,
    streams: BTreeMap<StreamId, (usize, String)>,
}

/// What is true of one event.
#[derive(Debug, Clone)]
pub(super) struct Record {
    pub(super) seq: Seq,
    pub(super) intent: usize,
    pub(super) queue: usize,
    pub(super) chain: Option<usize>,
    pub(super) shard: u32,
    pub(super) stream: StreamId,
    pub(super) rev: u32,
    pub(super) expires: Option<Moment>,
    pub(super) progress: Progress,
    pub(super) fate: Fate,
    pub(super) result: Option<Vec<u8>>,
    /// How long its identity has to be remembered.
    pub(super) remembered: Moment,
    /// How often its effect happened in the domain.
    pub(super) effects: u32,
    pub(super) deaths: Deaths,
}

/// What is known of the deaths that an event may have been the cause of.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Deaths {
    /// How often its handler killed the owner of its shard.
    pub(super) kills: u32,
    /// How often the owner died of something else while this had a strike and ran alone.
    pub(super) excuses: u32,
}

/// Where an event is, as far as it matters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fate {
    Pending,
    Done,
    Dropped,
    Expired,
    Dead { reason: DeadReason, holds: Option<Hold> },
}

/// How a dead letter holds up those that follow.
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
        }
    }

    /// Whether there is still an event, and not only the memory of one.
    pub(super) const fn exists(self) -> bool {
        matches!(self, Self::Pending | Self::Dead { .. })
    }
}

/// What a store should say to a settle.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Judged {
    Applied,
    Stale,
    Fenced,
}

/// What a model has to know of an event that was accepted.
#[derive(Debug)]
pub(super) struct Accepted<'a> {
    pub(super) intent: usize,
    pub(super) queue: usize,
    pub(super) chain: Option<usize>,
    pub(super) event: &'a redrive_core::Event,
    pub(super) at: Moment,
    pub(super) seq: Seq,
    /// Where the store says that it is.
    pub(super) place: (u32, StreamId),
}

impl Model {
    pub(super) fn new(intents: usize, chains: usize, shards: u32, specs: Vec<QueueSpec>) -> Self {
        Self {
            events: BTreeMap::new(),
            by_intent: vec![None; intents],
            owners: (0..shards).map(|_| Owner::default()).collect(),
            chains: vec![Vec::new(); chains],
            effects: vec![None; chains],
            specs,
            last_seqs: BTreeMap::new(),
            streams: BTreeMap::new(),
        }
    }

    /// The event with the identity of an intent, if it has to be remembered at `now`.
    pub(super) fn remembered(&self, intent: usize, now: Moment) -> Option<&Record> {
        let record = self.events.get(&self.by_intent[intent]?)?;
        (record.fate.exists() || now <= record.remembered).then_some(record)
    }

    /// The store was told to forget what need not be remembered at `now`. It may, though the clock goes back.
    pub(super) fn forget(&mut self, now: Moment) {
        for record in self.events.values_mut() {
            if !record.fate.exists() && record.remembered < now {
                record.remembered = Moment::default();
            }
        }
    }

    /// An event was accepted.
    pub(super) fn accept(&mut self, accepted: Accepted<'_>) -> Check {
        let Accepted { intent, queue, chain, event, at, seq, place: (shard, stream) } = accepted;
        if let Some(before) = self.remembered(intent, at) {
            return Err(format!(
                "the identity of {} was given to {seq:?}, but it is that of {:?}, which is {:?}",
                event.id, before.seq, before.fate
            ));
        }
        let known = self.streams.entry(stream).or_insert_with(|| (queue, event.tenant.clone()));
        if (known.0, &known.1) != (queue, &event.tenant) {
            return Err(format!("{} came into a stream of others", event.id));
        }
        if let Some(last) = self.last_seqs.insert(stream, seq).filter(|last| *last >= seq) {
            return Err(format!("{} has {seq:?}, which is not after {last:?}", event.id));
        }
        let due = event.when.moment(at);
        let spec = &self.specs[queue];
        let record = Record {
            seq,
            intent,
            queue,
            chain,
            shard,
            stream,
            rev: 1,
            expires: event.expires.map(|expires| expires.moment(at)),
            progress: Progress::fresh(due),
            fate: Fate::Pending,
            result: None,
            remembered: at + spec.horizon + spec.window,
            effects: 0,
            deaths: Deaths::default(),
        };
        self.events.insert(seq, record);
        self.by_intent[intent] = Some(seq);
        if let Some(chain) = chain {
            self.chains[chain].push(seq);
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

    /// What a store should say to a change under this fence.
    pub(super) fn judge(&self, grant: Grant, seq: Seq, rev: u32, change: Option<&Change>) -> Judged {
        if !self.is_current(grant) {
            return Judged::Fenced;
        }
        let Some(record) = self.events.get(&seq).filter(|record| record.fate.exists()) else {
            return Judged::Stale;
        };
        let dead = matches!(record.fate, Fate::Dead { .. });
        let misplaced = matches!(change, Some(Change::GoOn)) != dead;
        if record.rev != rev || misplaced { Judged::Stale } else { Judged::Applied }
    }

    /// A change happened.
    pub(super) fn apply(&mut self, seq: Seq, at: Moment, change: &Change) -> Check {
        let window = self.window(seq);
        let Some(record) = self.events.get_mut(&seq) else { return Err(format!("{seq:?} is not there")) };
        record.rev += 1;
        let chain = record.chain;
        let mut end = |fate: Fate, attempts: u32| {
            record.fate = fate;
            record.progress.attempts = attempts;
            record.remembered = record.remembered.max(at + window);
        };
        match change {
            Change::Done => end(Fate::Done, 1),
            Change::DoneWith { result, attempts, .. } => {
                end(Fate::Done, *attempts);
                record.result = result.clone();
            }
            Change::Dropped { attempts, .. } => end(Fate::Dropped, *attempts),
            Change::Expired { attempts, .. } => end(Fate::Expired, *attempts),
            Change::Again(progress) => record.progress = progress.clone(),
            Change::Dead { reason, progress, park } => {
                record.progress = progress.clone();
                let holds = match park {
                    Park::GoOn => None,
                    Park::Stay => Some(Hold { until: None, count: None }),
                    Park::UpTo { until, count } => Some(Hold { until: *until, count: *count }),
                };
                let holds = holds.filter(|_| record.chain.is_some());
                record.fate = Fate::Dead { reason: *reason, holds };
                self.convict(seq, *reason)?;
            }
            Change::Strike => {
                record.progress.strikes += 1;
                record.progress.suspect = true;
            }
            Change::GoOn => {
                if let Fate::Dead { holds, .. } = &mut record.fate {
                    *holds = None;
                }
            }
        }
        if let Some(chain) = chain {
            self.relieve(chain);
        }
        Ok(())
    }

    fn window(&self, seq: Seq) -> Duration {
        self.events.get(&seq).map_or(Duration::ZERO, |record| self.specs[record.queue].window)
    }
}
