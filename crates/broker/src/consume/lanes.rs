//! Key lanes: many keys at once, one message of a key at a time.
//!
//! A message without a key is a lane of its own. A lane is busy from the start of an attempt until its message has ended
//! or gives way; a retry that waits in place keeps its lane, so that followers of the key wait behind it, and frees its
//! place of the concurrency, so that other keys go on.

use std::collections::{HashMap, VecDeque};

use crate::message::Partition;
use crate::planted::{BrokerBug, has};

/// The messages of one consumer, by key.
#[derive(Debug)]
pub struct KeyLanes<T> {
    lanes: HashMap<LaneKey, Lane<T>>,
    ready: VecDeque<LaneKey>,
    ordered: bool,
    waiting: usize,
    count: u64,
}

/// Which lane.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct LaneKey {
    partition: Partition,
    key: Option<Vec<u8>>,
    /// The number of a message that has no order.
    alone: u64,
}

impl LaneKey {
    /// The partition of its messages.
    #[must_use]
    pub const fn partition(&self) -> &Partition {
        &self.partition
    }
}

#[derive(Debug)]
struct Lane<T> {
    waiting: VecDeque<T>,
    /// Whether an attempt runs, or a retry of its head waits.
    is_busy: bool,
}

impl<T> KeyLanes<T> {
    /// Without messages. If `ordered` is false, every message is a lane of its own.
    #[must_use]
    pub fn new(ordered: bool) -> Self {
        Self { lanes: HashMap::new(), ready: VecDeque::new(), ordered, waiting: 0, count: 0 }
    }

    /// Adds a message behind the others of its key.
    pub fn push(&mut self, partition: &Partition, key: Option<&[u8]>, item: T) {
        self.count += 1;
        let key = key.filter(|_| self.ordered);
        let alone =
            if key.is_some() || (self.ordered && has(BrokerBug::NullKeysShareLane)) { 0 } else { self.count };
        let lane = LaneKey { partition: partition.clone(), key: key.map(<[u8]>::to_vec), alone };
        let held =
            self.lanes.entry(lane.clone()).or_insert(Lane { waiting: VecDeque::new(), is_busy: false });
        held.waiting.push_back(item);
        self.waiting += 1;
        if !held.is_busy && held.waiting.len() == 1 {
            self.ready.push_back(lane);
        }
    }

    /// The next message that may start; its lane is busy until [`free`](Self::free).
    pub fn start_next(&mut self) -> Option<(LaneKey, T)> {
        while let Some(key) = self.ready.pop_front() {
            let Some(lane) = self.lanes.get_mut(&key).filter(|lane| !lane.is_busy) else { continue };
            let Some(item) = lane.waiting.pop_front() else { continue };
            lane.is_busy = true;
            self.waiting -= 1;
            return Some((key, item));
        }
        None
    }

    /// Puts a message that could not start back to the head of its lane.
    pub fn put_back(&mut self, key: &LaneKey, item: T) {
        let Some(lane) = self.lanes.get_mut(key) else { return };
        lane.waiting.push_front(item);
        lane.is_busy = false;
        self.waiting += 1;
        self.ready.push_front(key.clone());
    }

    /// The message of a lane has ended: the next one may start.
    pub fn free(&mut self, key: &LaneKey) {
        let Some(lane) = self.lanes.get_mut(key) else { return };
        lane.is_busy = false;
        if lane.waiting.is_empty() {
            self.lanes.remove(key);
        } else {
            self.ready.push_back(key.clone());
        }
    }

    /// Forgets the waiting messages of a partition that was revoked. A lane whose attempt still runs stays busy: if the
    /// partition comes back, the key waits for that attempt.
    pub fn forget(&mut self, partition: &Partition) -> usize {
        let mut gone = 0;
        self.lanes.retain(|key, lane| {
            if key.partition != *partition {
                return true;
            }
            gone += lane.waiting.len();
            lane.waiting.clear();
            lane.is_busy && !has(BrokerBug::BouncedKeyRunsTwice)
        });
        self.waiting -= gone;
        gone
    }

    /// How many messages wait in lanes.
    #[must_use]
    pub const fn waiting(&self) -> usize {
        self.waiting
    }
}
