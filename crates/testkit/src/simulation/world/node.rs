//! A process: the scheduler, and the messages on their way to it and from it.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use redrive_core::local_slots::LocalSlots;
use redrive_core::queue_entry::{FencingToken, LoadRequest, Seq, SettleRequest};
use redrive_core::scheduler::{DispatchedAttempt, Input, LoadId, NoteId, Scheduler};
use redrive_core::triage::ActiveRules;
use redrive_core::{Moment, SeededRandom};
use redrive_store::memory::Memory;
use redrive_store::{Arrivals, prelude::*};

use super::perform::at_once;
use crate::simulation::intent::Act;
use crate::simulation::model::Word;
use crate::simulation::order::LastHeard;
use crate::simulation::plan::Plan;

/// A process.
pub(super) struct Node {
    /// How often it was started before.
    pub(super) life: u32,
    pub(super) up: bool,
    pub(super) scheduler: Scheduler,
    /// The local slots for publishers in the same process.
    pub(super) local_slots: LocalSlots,
    pub(super) random: SeededRandom,
    /// Its own handle to the store.
    pub(super) store: Memory,
    heard: Arc<Mutex<Vec<Arrivals>>>,
    /// What happened, and the scheduler has not received yet.
    pub(super) inbox: Vec<Mail>,
    /// What the scheduler wants done, and has not been done.
    pub(super) ops: Vec<Op>,
    /// Running handlers, including abandoned ones.
    pub(super) attempts: Vec<Attempt>,
    /// What is known of each attempt: (epoch, seq, rev).
    pub(super) ledger: BTreeMap<(u64, Seq, u32), Entry>,
    pub(super) tokens: Vec<FencingToken>,
    /// Whether it is to stop, and whether its scheduler knows.
    pub(super) draining: bool,
    pub(super) drained: bool,
    /// The rules that its scheduler knows.
    pub(super) told: ActiveRules,
    /// The last commit whose commands its scheduler has processed.
    pub(super) recalled: u64,
    /// Whether the rules are being read, and whether they are to be read again after that.
    pub(super) is_asking: bool,
    pub(super) is_asked_again: bool,
    /// The last input of its scheduler in each shard.
    pub(super) last_heard: LastHeard,
}

/// A message to the scheduler.
#[derive(Debug)]
pub(super) struct Mail {
    /// Whether a recall comes first, because a command may have taken events from it.
    pub(super) recall: bool,
    pub(super) input: Input,
    pub(super) order: Order,
}

/// The delivery order of messages. Numbers are those of commits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Order {
    /// At any time.
    Free,
    /// Arrivals, in order.
    Arrival(u64),
    /// After every arrival of an earlier commit.
    Answer(u64),
    /// The same, and before every arrival of a later one.
    Own(u64),
}

/// Something to be done with the store.
#[derive(Debug)]
pub(super) enum Op {
    Load(LoadId, LoadRequest),
    /// Read the rules.
    Rules,
    Note(NoteId, Vec<Seq>),
    Settle(SettleRequest),
    /// Only of a process that died: a transaction that was on its way.
    Transact(Box<DispatchedAttempt>),
}

/// A running handler.
#[derive(Debug, Clone)]
pub(super) struct Attempt {
    pub(super) ticket: Box<DispatchedAttempt>,
    pub(super) act: Act,
    /// Whether the scheduler is notified that it ended, because it took too long.
    pub(super) late: bool,
}

/// What is known of an attempt.
#[derive(Debug, Default)]
pub(super) struct Entry {
    pub(super) attempt: u32,
    /// The queue whose handler runs it.
    pub(super) via: usize,
    pub(super) expires: Option<Moment>,
    pub(super) word: Option<Word>,
    pub(super) settle: Option<SettleRequest>,
}

impl Node {
    /// A process that starts at `now`, after this many commits. It knows the rules before it owns anything.
    pub(super) fn start(
        life: u32,
        store: &Memory,
        plan: &Plan,
        mut random: SeededRandom,
        now: Moment,
        stamp: u64,
    ) -> Self {
        let mut scheduler = Scheduler::new();
        for queue in plan.queues.iter().filter(|queue| !queue.pull) {
            scheduler.add_queue(queue.plan());
        }
        let run = plan.queues.iter().filter(|queue| !queue.pull).map(|queue| queue.name.clone());
        let local_slots = LocalSlots::new(run, plan.shards);
        let store = store.reopen();
        let heard: Arc<Mutex<Vec<Arrivals>>> = Arc::default();
        let ear = Arc::clone(&heard);
        store.watch(Arc::new(move |arrivals| {
            ear.lock().unwrap_or_else(PoisonError::into_inner).push(arrivals);
        }));
        let told = at_once(store.controls()).expect("a store that was just opened says its rules");
        scheduler.handle(Input::Ruled(told.clone()), now, &mut random);
        Self {
            life,
            up: true,
            scheduler,
            local_slots,
            random,
            store,
            heard,
            inbox: Vec::new(),
            ops: Vec::new(),
            attempts: Vec::new(),
            ledger: BTreeMap::new(),
            tokens: Vec::new(),
            draining: false,
            drained: false,
            told,
            recalled: stamp,
            is_asking: false,
            is_asked_again: false,
            last_heard: LastHeard::default(),
        }
    }

    /// The last commit whose commands it has processed: all of them, if no message is on its way to it.
    pub(super) fn recalled(&self) -> u64 {
        let told_soon = |mail: &Mail| mail.recall || matches!(mail.input, Input::Missed(_));
        if self.is_asking || self.inbox.iter().any(told_soon) { self.recalled } else { u64::MAX }
    }

    /// The store's announcements since the last call.
    pub(super) fn hear(&self) -> Vec<Arrivals> {
        std::mem::take(&mut *self.heard.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Attempts in its shards that have not ended for the scheduler.
    pub(super) fn under_way(&self) -> Vec<(FencingToken, Seq)> {
        let own = |attempt: &&Attempt| !attempt.late && self.tokens.contains(&attempt.ticket.token);
        let own = self.attempts.iter().filter(own);
        own.map(|attempt| (attempt.ticket.token, attempt.ticket.entry.seq)).collect()
    }

    /// When handlers that take too long are to be ended.
    pub(super) fn deadlines(&self) -> impl Iterator<Item = Moment> + '_ {
        self.attempts.iter().filter(|attempt| !attempt.late).filter_map(|attempt| attempt.ticket.deadline)
    }

    /// The message that must be delivered first, if this one is wanted.
    pub(super) fn first_before(&self, index: usize) -> usize {
        let earliest = |wanted: &dyn Fn(Order) -> Option<u64>| {
            let stamped = self.inbox.iter().enumerate();
            stamped.filter_map(|(index, mail)| Some((wanted(mail.order)?, index))).min()
        };
        let arrival = earliest(&|order| if let Order::Arrival(stamp) = order { Some(stamp) } else { None });
        let own = earliest(&|order| if let Order::Own(stamp) = order { Some(stamp) } else { None });
        let (arrival, own) = (arrival.unwrap_or(LAST), own.unwrap_or(LAST));
        match self.inbox[index].order {
            Order::Free => index,
            Order::Answer(stamp) if stamp <= arrival.0 => index,
            Order::Answer(_) | Order::Arrival(_) | Order::Own(_) => arrival.min(own).1,
        }
    }
}

/// Later than anything.
const LAST: (u64, usize) = (u64::MAX, usize::MAX);

impl fmt::Debug for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Node").field("life", &self.life).field("up", &self.up).finish_non_exhaustive()
    }
}
