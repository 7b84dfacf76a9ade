//! One queue of the broker in memory.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use redrive_core::Moment;

use crate::message::Message;
use crate::planted::{BrokerBug, has};
use crate::source::MessageOutcome;

/// How many settled deliveries are remembered, so that a repeated settle is recognised.
const REMEMBERED_MAX: usize = 10_000;

#[derive(Debug, Default)]
pub(super) struct Queue {
    pub(super) messages: BTreeMap<i64, Stored>,
    /// Dead letters, by number.
    pub(super) dead: BTreeMap<i64, Message>,
    deaths: i64,
    next: i64,
    /// Settled deliveries, by position.
    settled: HashMap<i64, u64>,
}

/// A message that is not done.
#[derive(Debug)]
pub(super) struct Stored {
    pub(super) message: Arc<Message>,
    pub(super) due: Moment,
    pub(super) deliveries: u32,
    pub(super) lease: Option<LeaseState>,
}

/// Who has a message, and until when.
#[derive(Debug, Clone, Copy)]
pub(super) struct LeaseState {
    pub(super) consumer: u64,
    pub(super) delivery: u64,
    pub(super) until: Moment,
}

impl Queue {
    pub(super) fn add(&mut self, message: Message, due: Moment) {
        let stored = Stored { message: Arc::new(message), due, deliveries: 0, lease: None };
        self.messages.insert(self.next, stored);
        self.next += 1;
    }

    /// The positions that may be delivered at `now`.
    pub(super) fn deliverable(&mut self, now: Moment, ordered: bool, max: usize) -> Vec<i64> {
        let mut keys = HashSet::new();
        let mut found = Vec::new();
        for (position, stored) in &mut self.messages {
            if stored.lease.is_some_and(|lease| lease.until <= now) {
                stored.lease = None;
            }
            let is_free = stored.lease.is_none() && stored.due <= now;
            // The first living message of a key holds up the others, whatever it waits for.
            let is_head = !ordered || stored.message.key.clone().is_none_or(|key| keys.insert(key));
            if is_free && is_head && found.len() < max {
                found.push(*position);
            }
        }
        found
    }

    /// When the next message may become deliverable.
    pub(super) fn next_due(&self) -> Option<Moment> {
        let due = |stored: &Stored| stored.lease.map_or(stored.due, |lease| lease.until.max(stored.due));
        self.messages.values().map(due).min()
    }

    /// Whether this delivery may settle.
    pub(super) fn is_leased(&self, position: i64, delivery: u64) -> bool {
        let Some(stored) = self.messages.get(&position) else { return false };
        has(BrokerBug::StaleReceiptSettles) || stored.lease.is_some_and(|lease| lease.delivery == delivery)
    }

    /// Whether this delivery has settled before.
    pub(super) fn was_settled(&self, position: i64, delivery: u64) -> bool {
        self.settled.get(&position) == Some(&delivery)
    }

    pub(super) fn settle(&mut self, position: i64, delivery: u64, outcome: &MessageOutcome) {
        if self.settled.len() >= REMEMBERED_MAX {
            self.settled.clear();
        }
        self.settled.insert(position, delivery);
        match outcome {
            MessageOutcome::Done | MessageOutcome::Park => {
                self.messages.remove(&position);
            }
            MessageOutcome::Retry { at, headers } => {
                if let Some(stored) = self.messages.get_mut(&position) {
                    let message = Message { headers: headers.clone(), ..(*stored.message).clone() };
                    (stored.message, stored.due, stored.lease) = (Arc::new(message), *at, None);
                }
            }
            MessageOutcome::Dead { headers } => {
                if let Some(stored) = self.messages.remove(&position) {
                    self.bury(Message { headers: headers.clone(), ..(*stored.message).clone() });
                }
            }
        }
    }

    /// Adds a dead letter.
    pub(super) fn bury(&mut self, message: Message) {
        self.dead.insert(self.deaths, message);
        self.deaths += 1;
    }

    /// Gives back what a consumer has.
    pub(super) fn release(&mut self, consumer: u64) {
        for stored in self.messages.values_mut() {
            stored.lease.take_if(|lease| lease.consumer == consumer);
        }
    }
}
