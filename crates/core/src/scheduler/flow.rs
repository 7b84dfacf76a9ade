//! One tenant's part of one queue in one shard: what of it is in memory, and what may be in the store.

use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};

use super::loading::lane;
use super::queue::Lane;
use super::table::SeqSet;
use crate::entry::{Entry, Seq, StreamId};
use crate::moment::Moment;

/// Which flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FlowKey {
    /// In which shard.
    pub shard: u32,
    /// In which time as its owner: what was asked for in an earlier one is not what is in memory now.
    pub epoch: u64,
    /// Of which stream.
    pub stream: StreamId,
}

/// One tenant's part of one queue in one shard.
#[derive(Debug)]
pub(super) struct Flow {
    pub(super) queue: usize,
    pub(super) tenant: Box<str>,
    /// What is ready to run, by lane.
    pub(super) ready: [VecDeque<Seq>; 2],
    /// All that is in memory, wherever it is.
    pub(super) held: SeqSet,
    /// What is in memory of each key, by the hash of the key.
    keys: HashMap<u64, Kin>,
    /// Whether those of a key run one at a time.
    is_ordered: bool,
    /// How many events with a key are in memory, if they are: more than there are keys, where one has several.
    keyed: usize,
    /// Whether there may be more in the store that is due, by lane.
    pub(super) hungry: [bool; 2],
    pub(super) loading: Option<Loading>,
    /// How many arrived for the first time that no load has been begun for.
    pub(super) aside: u32,
    /// The earliest time at which something in the store becomes due.
    pub(super) next_due: Option<Moment>,
    /// The earliest timer that is set for it.
    pub(super) armed: Option<Moment>,
    /// Not before this, because the last load failed.
    pub(super) load_after: Option<Moment>,
    /// Whether everything that was due when the shard was taken has been loaded, by lane.
    pub(super) is_past_care: [bool; 2],
}

/// What is in memory of one key: mostly one event, for which nothing is allocated.
#[derive(Debug, Default)]
struct Kin {
    /// The last of those that came, while it is there.
    last: Option<Seq>,
    /// Those that came before it, where there is an order.
    others: Vec<Seq>,
}

/// How many arrivals are kept while a load is under way, and how many bytes of them.
const TOLD_MAX: usize = 256;
const TOLD_BYTES_MAX: usize = 256 << 10;

/// What happens while a load is under way, that its snapshot may not have seen.
#[derive(Debug, Default)]
pub(super) struct Loading {
    /// Events that left memory: the snapshot may show them as they were.
    pub(super) gone: SeqSet,
    /// Whether something arrived that the snapshot may not have, by lane.
    pub(super) arrived: [bool; 2],
    /// What arrived, as it was told: it is taken in when the load is there, unless there is older work in the store.
    pub(super) told: Vec<Entry>,
    /// How many bytes that is.
    pub(super) told_bytes: usize,
    /// The earliest new due time.
    pub(super) due: Option<Moment>,
    /// How many events it may bring, by lane.
    pub(super) coming: [usize; 2],
    /// How many arrived for the first time before it began, or are kept until it is there.
    pub(super) aside: u32,
    /// Whether an order came since, that its snapshot may not have seen.
    pub(super) recalled: bool,
    /// Whether something left memory since that has not ended, and was left out because it was there.
    pub(super) is_blind: bool,
}

impl Loading {
    /// Keeps what arrived until the load is there, if that is not too much.
    pub(super) fn keep(&mut self, entry: Entry) -> bool {
        let bytes = self.told_bytes + entry.event.payload.len();
        let is_kept = !self.recalled && self.told.len() < TOLD_MAX && bytes <= TOLD_BYTES_MAX;
        if is_kept {
            self.told_bytes = bytes;
            self.aside += u32::from(lane(&entry) == Lane::Live);
            self.told.push(entry);
        }
        is_kept
    }
}

impl Flow {
    pub(super) fn new(queue: usize, tenant: Box<str>, is_ordered: bool) -> Self {
        Self {
            queue,
            tenant,
            ready: [VecDeque::new(), VecDeque::new()],
            held: SeqSet::default(),
            keys: HashMap::new(),
            is_ordered,
            keyed: 0,
            hungry: [false; 2],
            loading: None,
            aside: 0,
            next_due: None,
            armed: None,
            load_after: None,
            is_past_care: [true; 2],
        }
    }

    /// Puts an event at the end of its lane; tells whether the lane was empty and wants a turn.
    pub(super) fn push(&mut self, lane: Lane, seq: Seq) -> bool {
        let ready = &mut self.ready[lane.index()];
        ready.push_back(seq);
        ready.len() == 1
    }

    /// Something in the store becomes due then.
    pub(super) fn note_due(&mut self, due: Moment) {
        if let Some(loading) = &mut self.loading {
            loading.due = Some(loading.due.map_or(due, |earlier| earlier.min(due)));
        }
        self.next_due = Some(self.next_due.map_or(due, |next| next.min(due)));
    }

    /// An event comes into memory; tells whether it was not there.
    pub(super) fn hold(&mut self, entry: &Entry) -> bool {
        let new = self.held.insert(entry.seq);
        if let Some(key) = hash_of_key(entry).filter(|_| new) {
            let kin = self.keys.entry(key).or_default();
            // One that comes late is followed by whoever came before it.
            let is_late = self.is_ordered && kin.last.is_some_and(|last| last > entry.seq);
            let other = if is_late { Some(entry.seq) } else { kin.last.replace(entry.seq) };
            if self.is_ordered {
                kin.others.extend(other);
                self.keyed += 1;
            }
        }
        new
    }

    /// Whether one that follows it in the order of its key has been in memory since it came. Two keys with
    /// the same hash look so, too.
    pub(super) fn is_followed(&self, entry: &Entry) -> bool {
        hash_of_key(entry).is_some_and(|key| self.last_of(key) != Some(entry.seq))
    }

    fn last_of(&self, key: u64) -> Option<Seq> {
        self.keys.get(&key)?.last
    }

    /// The others of its key in memory, where there is an order. Those of a key with the same hash are among them.
    /// Where no key has two events there, not even the hash is made.
    pub(super) fn others_of(&self, entry: &Entry) -> impl Iterator<Item = Seq> {
        let key = if self.keyed > self.keys.len() { hash_of_key(entry) } else { None };
        let (kin, seq) = (key.and_then(|key| self.keys.get(&key)), entry.seq);
        let all = kin.into_iter().flat_map(|kin| kin.others.iter().copied().chain(kin.last));
        all.filter(move |other| *other != seq)
    }

    /// Whether there is nothing to remember of it.
    pub(super) fn is_empty(&self) -> bool {
        self.held.is_empty()
            && self.loading.is_none()
            && self.hungry == [false; 2]
            && self.next_due.is_none()
            && self.is_past_care == [true; 2]
    }

    /// An event leaves memory.
    pub(super) fn let_go(&mut self, entry: &Entry) {
        let seq = entry.seq;
        let was_held = self.held.remove(&seq);
        if let Some(key) = hash_of_key(entry).filter(|_| was_held)
            && let Some(kin) = self.keys.get_mut(&key)
        {
            self.keyed -= usize::from(self.is_ordered);
            kin.last = kin.last.filter(|last| *last != seq);
            kin.others.retain(|other| *other != seq);
            if kin.last.is_none() && kin.others.is_empty() {
                self.keys.remove(&key);
            }
        }
        if let Some(loading) = &mut self.loading {
            loading.gone.insert(seq);
        }
        // Only an event of a lost shard, or one that is dropped by a test, is still in line.
        for ready in &mut self.ready {
            if ready.front() == Some(&seq) {
                ready.pop_front();
            }
        }
    }
}

fn hash_of_key(entry: &Entry) -> Option<u64> {
    entry.event.key.as_ref().map(|key| BuildHasherDefault::<DefaultHasher>::default().hash_one(key))
}
