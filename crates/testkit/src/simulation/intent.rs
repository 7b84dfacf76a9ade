//! What is published, and what its handler will do with it.

use std::sync::Arc;
use std::time::Duration;

use redrive_core::Event;
use redrive_core::event::Fingerprint;
use redrive_core::event::{Mode, When};
use redrive_store::New;

use super::chance::Chance;
use super::plan::Plan;

/// One identity, with what its handler will do.
#[derive(Debug)]
pub(super) struct Intent {
    pub(super) event: Arc<Event>,
    fingerprint: Fingerprint,
    pub(super) queue: usize,
    /// The number of its key, where its queue keeps the order of keys.
    pub(super) chain: Option<usize>,
    /// What the handler does at each attempt; the last goes on for ever.
    script: Vec<Act>,
    /// What it does at the first attempt after an operator put the event back.
    mended: Act,
    /// Another one, published in the transaction of this one's handler.
    pub(super) child: Option<usize>,
    pub(super) sent: Sent,
    /// The shard that its publisher wishes for.
    pub(super) near: Option<u32>,
}

/// What its publisher knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Sent {
    /// It is published by the handler of another, not by a publisher.
    ByHandler,
    /// Not published yet.
    Not,
    /// Its publisher has drawn a number for it, and not committed.
    Begun,
    /// Published, and nobody said what became of it.
    Unsure,
    /// Looked up when it was sure that it would be found: it is not there, and its publisher gave up.
    Disproved,
    /// Published, and told so.
    Acknowledged,
}

/// What a handler does in an attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Act {
    Succeed,
    /// And leave something behind.
    SucceedWith(u8),
    Fail,
    /// And ask to be left alone for so long.
    FailAsking(Duration),
    Overload,
    Permanent,
    Unclassified,
    Discard,
    Panic,
    Undecodable,
    /// Take longer than allowed; answer all the same, too late.
    Linger,
    /// Take the process down.
    Kill,
    /// Work in the domain of the store.
    Transact,
    /// The same, but change its mind.
    Abort,
    /// Work in the domain of the store, but longer than allowed.
    LateTransact,
}

impl Intent {
    /// The intents of a run. Some are published by the handlers of others.
    pub(super) fn all(plan: &Plan, chance: &mut Chance) -> Vec<Self> {
        let mut intents: Vec<Self> = Vec::with_capacity(plan.intents + 4);
        for _ in 0..plan.intents {
            intents.push(Self::new(intents.len(), plan, chance));
        }
        for parent in 0..plan.intents {
            let transacts = intents[parent].script.last() == Some(&Act::Transact);
            if transacts && chance.one_in(3) {
                let mut child = Self::new(intents.len(), plan, chance);
                child.sent = Sent::ByHandler;
                intents[parent].child = Some(intents.len());
                intents.push(child);
            }
        }
        intents
    }

    fn new(number: usize, plan: &Plan, chance: &mut Chance) -> Self {
        let (queue, tenant) = (chance.below(plan.queues.len()), chance.below(plan.tenants));
        let key = (!chance.one_in(3)).then(|| chance.below(plan.keys));
        let mut event = Event::new(&*plan.queues[queue].name, format!("e{number}"));
        event = event.tenant(Plan::tenant(tenant));
        if let Some(key) = key {
            event = event.key(format!("k{key}"));
        }
        if chance.one_in(6) {
            event = event.delay(Duration::from_millis(chance.pick(&[1, 500, 30_000])));
        }
        if chance.one_in(8) {
            // After it may first run: what would never run is refused.
            let delay = if let When::After(delay) = event.when { delay } else { Duration::ZERO };
            event = event.expires_after(delay + Duration::from_millis(chance.pick(&[100, 3000, 60_000])));
        }
        let chain = key.filter(|_| plan.queues[queue].ordered);
        let chain = chain.map(|key| (queue * plan.tenants + tenant) * plan.keys + key);
        Self {
            fingerprint: Fingerprint::of(&event),
            event: Arc::new(event),
            queue,
            chain,
            script: script(plan, chance),
            mended: chance.pick(&MENDED),
            child: None,
            sent: Sent::Not,
            near: None,
        }
    }

    /// What an operator makes of another one: a new identity and a new payload, and nothing else is new.
    pub(super) fn edited(&self, number: usize, plan: &Plan, chance: &mut Chance) -> Self {
        let mut event = Event::new(&*self.event.queue, format!("e{number}")).tenant(&*self.event.tenant);
        if let Some(key) = &self.event.key {
            event = event.key(&**key);
        }
        let event = event.payload(*b"mended");
        Self {
            fingerprint: Fingerprint::of(&event),
            event: Arc::new(event),
            queue: self.queue,
            chain: self.chain,
            script: script(plan, chance),
            mended: chance.pick(&MENDED),
            child: None,
            sent: Sent::ByHandler,
            near: None,
        }
    }

    /// The number of the intent with this id.
    pub(super) fn number(id: &str) -> usize {
        id[1..].parse().expect("ids are numbers")
    }

    /// The fingerprint of what it says.
    pub(super) const fn fingerprint(&self) -> Fingerprint {
        self.fingerprint
    }

    /// What its handler does at this attempt.
    pub(super) fn act(&self, attempt: u32, mode: Mode) -> Act {
        if mode == Mode::Redrive {
            return self.mended;
        }
        let index = usize::try_from(attempt.saturating_sub(1)).unwrap_or(usize::MAX);
        self.script[index.min(self.script.len() - 1)]
    }

    /// As it is handed to a store.
    pub(super) fn new_event(&self, at: redrive_core::Moment) -> New {
        New {
            event: Arc::clone(&self.event),
            fingerprint: self.fingerprint,
            at,
            horizon: None,
            near: self.near,
        }
    }
}

/// What a handler does with an event that an operator put back.
const MENDED: [Act; 6] = [Act::Succeed, Act::Transact, Act::Transact, Act::Fail, Act::Permanent, Act::Linger];

fn script(plan: &Plan, chance: &mut Chance) -> Vec<Act> {
    const FAILS: [Act; 9] = [
        Act::Fail,
        Act::Fail,
        Act::Fail,
        Act::FailAsking(Duration::from_secs(7)),
        Act::Overload,
        Act::Panic,
        Act::Linger,
        Act::LateTransact,
        Act::Abort,
    ];
    const ENDS: [Act; 14] = [
        Act::Succeed,
        Act::Succeed,
        Act::Succeed,
        Act::Succeed,
        Act::SucceedWith(7),
        Act::Transact,
        Act::Transact,
        Act::Transact,
        Act::Transact,
        Act::Fail,
        Act::Discard,
        Act::Permanent,
        Act::Unclassified,
        Act::Undecodable,
    ];
    let fails = if chance.one_in(2) { 0 } else { chance.below(4) };
    let mut script: Vec<Act> = (0..fails).map(|_| chance.pick(&FAILS)).collect();
    let kills = chance.one_in(plan.rates.killers);
    script.push(if kills { Act::Kill } else { chance.pick(&ENDS) });
    script
}
