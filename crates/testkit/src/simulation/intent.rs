//! The events that are published, and what their handlers will do.

use std::sync::Arc;
use std::time::Duration;

use redrive_core::Event;
use redrive_core::event::Fingerprint;
use redrive_core::event::{Mode, When};
use redrive_store::NewEvent;

use super::chance::Chance;
use super::choices::Phase;
use super::plan::Plan;

mod words;

/// One identity, with what its handler will do.
#[derive(Debug)]
pub(super) struct Intent {
    pub(super) event: Arc<Event>,
    fingerprint: Fingerprint,
    pub(super) queue: usize,
    /// The number of its key, if its queue is ordered.
    pub(super) chain: Option<usize>,
    /// What the handler does at each attempt; the last entry repeats for ever.
    script: Vec<Act>,
    /// What it does at the first attempt after an operator redrove the event.
    mended: Act,
    /// Another intent, published in the transaction of this one's handler.
    pub(super) child: Option<usize>,
    pub(super) sent: Sent,
    /// The shard that its publisher asks for.
    pub(super) local_shard: Option<u32>,
}

/// What its publisher knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Sent {
    /// The handler of another event publishes it, not a publisher.
    ByHandler,
    /// Not published yet.
    Not,
    /// Its publisher has drawn a sequence number for it, and not committed.
    Begun,
    /// Published, with an unknown outcome.
    Unsure,
    /// A lookup that would have found it did not: it is not there, and its publisher gave up.
    Disproved,
    /// Published and acknowledged.
    Acknowledged,
}

/// What a handler does in an attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Act {
    Succeed,
    /// Succeed and leave a result.
    SucceedWith(u8),
    Fail,
    /// Fail and ask for this pause.
    FailAsking(Duration),
    Overload,
    Permanent,
    Unclassified,
    Discard,
    Panic,
    Undecodable,
    /// Take longer than allowed; answer all the same, too late.
    Linger,
    /// Crash the process.
    Kill,
    /// Work in the domain of the store.
    Transact,
    /// The same, but abort.
    Abort,
    /// Work in the domain of the store, but longer than allowed.
    LateTransact,
}

impl Intent {
    /// The intents of a run. Some are published by the handlers of others.
    pub(super) fn all(plan: &Plan, chance: &mut Chance) -> Vec<Self> {
        let mut intents: Vec<Self> = Vec::with_capacity(plan.intents + 4);
        for _ in 0..plan.intents {
            chance.part(Phase::Setup);
            intents.push(Self::new(intents.len(), plan, chance));
        }
        chance.part(Phase::Setup);
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
            // After its first due time: an event that would never run is refused.
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
            local_shard: None,
        }
    }

    /// An operator's edit of another intent: a new identity and a new payload, everything else unchanged.
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
            local_shard: None,
        }
    }

    /// Leaves out these intents: they are never published.
    pub(super) fn leave_out(intents: &mut [Self], numbers: &[usize]) {
        for intent in &mut *intents {
            intent.child = intent.child.filter(|child| !numbers.contains(child));
        }
        for number in numbers {
            if let Some(intent) = intents.get_mut(*number) {
                intent.sent = Sent::ByHandler;
            }
        }
    }

    /// The number of the intent with this id.
    pub(super) fn number(id: &str) -> usize {
        id[1..].parse().expect("ids are numbers")
    }

    /// The fingerprint of its content.
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

    /// The event as it is passed to a store.
    pub(super) fn new_event(&self, at: redrive_core::Moment) -> NewEvent {
        NewEvent {
            event: Arc::clone(&self.event),
            fingerprint: self.fingerprint,
            at,
            horizon: None,
            local_shard: self.local_shard,
        }
    }
}

/// What a handler does with an event that an operator redrove.
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
