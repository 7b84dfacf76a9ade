//! One tenant's part of one queue in one shard: its events in memory, and what may be in the store.

use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};

use super::LoadId;
use super::load::lane;
use super::queue::Lane;
use super::table::SeqSet;
use crate::moment::Moment;
use crate::planted::{PlantedBug, has};
use crate::queue_entry::{QueueEntry, Seq, StreamId};

/// Identifies a flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FlowKey {
    /// Its shard.
    pub shard: u32,
    /// The owner's epoch: answers to requests of an earlier epoch do not match the events in memory now.
    pub epoch: u64,
    /// Its stream.
    pub stream: StreamId,
}

/// One tenant's part of one queue in one shard.
#[derive(Debug)]
pub(super) struct Flow {
    pub(super) queue: usize,
    pub(super) tenant: Box<str>,
    /// The events that are ready to run, by lane.
    pub(super) ready: [VecDeque<Seq>; 2],
    /// All its events in memory, in any state.
    pub(super) held: SeqSet,
    /// The events of each key in memory, by the hash of the key.
    keys: HashMap<u64, Kin>,
    /// Whether the events of a key run one at a time.
    is_ordered: bool,
    /// How many events with a key are in memory, if they are ordered: more than there are keys, if a key has
    /// several.
    keyed: usize,
    /// Whether the store may have more due events, by lane.
    pub(super) needs_load: [bool; 2],
    pub(super) loading: Option<Loading>,
    /// How many first arrivals wait for a load that has not begun.
    pub(super) aside: u32,
    /// The earliest moment at which an event in the store becomes due.
    pub(super) next_due: Option<Moment>,
    /// The earliest timer that is set for it.
    pub(super) armed: Option<Moment>,
    /// No load before this, because the last one failed.
    pub(super) load_after: Option<Moment>,
    /// Whether all events that were due when the shard was taken have been loaded, by lane.
    pub(super) is_past_care: [bool; 2],
}

/// The events of one key in memory: mostly one, which needs no allocation.
#[derive(Debug, Default)]
struct Kin {
    /// The last event that arrived, while it is in memory.
    last: Option<Seq>,
    /// The events that arrived before it, if they are ordered.
    others: Vec<Seq>,
}

/// The most arrivals that are kept during a load, by count and by bytes.
const TOLD_MAX: usize = 256;
const TOLD_BYTES_MAX: usize = 256 << 10;

/// What happens during a load, which its snapshot may have missed.
#[derive(Debug, Default)]
pub(super) struct Loading {
    /// The number of the load.
    pub(super) number: u64,
    /// Events that left memory: the snapshot may show them as they were.
    pub(super) gone: SeqSet,
    /// Whether events arrived that the snapshot may not have, by lane.
    pub(super) arrived: [bool; 2],
    /// Those arrivals. They are accepted when the load is finished, unless the store has older work.
    pub(super) told: Vec<QueueEntry>,
    /// Their bytes.
    pub(super) told_bytes: usize,
    /// The earliest new due time.
    pub(super) due: Option<Moment>,
    /// How many events the load may bring, by lane.
    pub(super) coming: [usize; 2],
    /// How many first arrivals came before it began, or are kept until it is finished.
    pub(super) aside: u32,
    /// Whether a command came since, which its snapshot may have missed.
    pub(super) recalled: bool,
    /// Whether an event left memory since without ending; the load skipped it because it was in memory.
    pub(super) is_blind: bool,
}

impl Loading {
    /// Keeps an arrival until the load is finished, if there is room.
    pub(super) fn keep(&mut self, entry: QueueEntry) -> bool {
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
            needs_load: [false; 2],
            loading: None,
            aside: 0,
            next_due: None,
            armed: None,
            load_after: None,
            is_past_care: [true; 2],
        }
    }

    /// Ends a load; returns what happened meanwhile, or `None` if the answer belongs to another load.
    pub(super) fn end_load(&mut self, load: LoadId) -> Option<Loading> {
        self.loading.take_if(|loading| loading.number == load.number || has(PlantedBug::AnswersUnmatched))
    }

    /// Puts an event at the end of its lane; returns whether the lane was empty and needs a turn.
    pub(super) fn push(&mut self, lane: Lane, seq: Seq) -> bool {
        let ready = &mut self.ready[lane.index()];
        ready.push_back(seq);
        ready.len() == 1
    }

    /// Records that an event in the store becomes due then.
    pub(super) fn note_due(&mut self, due: Moment) {
        if let Some(loading) = &mut self.loading {
            loading.due = Some(loading.due.map_or(due, |earlier| earlier.min(due)));
        }
        self.next_due = Some(self.next_due.map_or(due, |next| next.min(due)));
    }

    /// Adds an event to memory; returns whether it was new.
    pub(super) fn hold(&mut self, entry: &QueueEntry) -> bool {
        let new = self.held.insert(entry.seq);
        if let Some(key) = hash_of_key(entry).filter(|_| new) {
            let kin = self.keys.entry(key).or_default();
            // A late event is followed by the events that arrived before it.
            let is_late = self.is_ordered && kin.last.is_some_and(|last| last > entry.seq);
            let other = if is_late { Some(entry.seq) } else { kin.last.replace(entry.seq) };
            if self.is_ordered {
                kin.others.extend(other);
                self.keyed += 1;
            }
        }
        new
    }

    /// Whether a later event of its key has been in memory since it arrived. Two keys with the same hash look
    /// so, too.
    pub(super) fn is_followed(&self, entry: &QueueEntry) -> bool {
        hash_of_key(entry).is_some_and(|key| self.last_of(key) != Some(entry.seq))
    }

    fn last_of(&self, key: u64) -> Option<Seq> {
        self.keys.get(&key)?.last
    }

    /// The other events of its key in memory, if they are ordered, including those of a key with the same
    /// hash. If no key has two events in memory, not even the hash is computed.
    pub(super) fn others_of(&self, entry: &QueueEntry) -> impl Iterator<Item = Seq> {
        let key = if self.keyed > self.keys.len() { hash_of_key(entry) } else { None };
        let (kin, seq) = (key.and_then(|key| self.keys.get(&key)), entry.seq);
        let all = kin.into_iter().flat_map(|kin| kin.others.iter().copied().chain(kin.last));
        all.filter(move |other| *other != seq)
    }

    /// Whether it holds no state.
    pub(super) fn is_empty(&self) -> bool {
        self.held.is_empty()
            && self.loading.is_none()
            && self.needs_load == [false; 2]
            && self.next_due.is_none()
            && self.is_past_care == [true; 2]
    }

    /// Removes an event from memory.
    pub(super) fn let_go(&mut self, entry: &QueueEntry) {
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
        // Only an event of a lost shard, or one that a test drops, is still in a lane.
        for ready in &mut self.ready {
            if ready.front() == Some(&seq) {
                ready.pop_front();
            }
        }
    }
}

fn hash_of_key(entry: &QueueEntry) -> Option<u64> {
    entry.event.key.as_ref().map(|key| BuildHasherDefault::<DefaultHasher>::default().hash_one(key))
}
