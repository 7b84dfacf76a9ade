//! Out-of-order commits in a simulated partition: what is committed is never lost, and a weaker rule is found.
//!
//! The world has a log with gaps (markers, compaction), a broker that commits or aborts or leaves the outcome open, and
//! crashes. A message *hops* when a commit that moves it takes effect. Every message must hop or be done exactly once.
#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]
#![cfg(feature = "planted")]

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use redrive_broker::offsets::done_set::DoneSetRead;
use redrive_broker::offsets::progress::Seen;
use redrive_broker::offsets::{Committer, DoneSet, Progress};
use redrive_broker::planted::{BrokerBug, has, plant};
use redrive_core::{RandomSource, SeededRandom};

/// A commit that the broker has received.
#[derive(Debug, Clone)]
struct Sent {
    number: u64,
    offset: i64,
    metadata: String,
    hops: Vec<i64>,
    /// The progress to go on with if it happens.
    next: Progress,
    plain: bool,
}

struct World {
    random: SeededRandom,
    log: BTreeSet<i64>,
    committed: (i64, String),
    hops: BTreeMap<i64, u32>,
    progress: Progress,
    read: i64,
    running: BTreeSet<i64>,
    committer: Committer<i64>,
    sent: VecDeque<Sent>,
    assignment: u64,
    /// Whether the metadata was read before deliveries began.
    is_loaded: bool,
}

impl World {
    fn new(seed: u64) -> Self {
        let mut random = SeededRandom::new(seed);
        // Offsets that are missing were compacted away or are markers.
        let log = (0..120).filter(|_| !random.roll().is_multiple_of(4)).collect();
        Self {
            random,
            log,
            committed: (0, String::new()),
            hops: BTreeMap::new(),
            progress: Progress::new(0, DoneSet::default(), 0),
            read: 0,
            running: BTreeSet::new(),
            committer: Committer::default(),
            sent: VecDeque::new(),
            assignment: 0,
            is_loaded: true,
        }
    }

    fn chance(&mut self, of: u64) -> bool {
        self.random.roll().is_multiple_of(of)
    }

    /// A process starts: it reads what is committed, then goes on from there.
    fn start(&mut self) {
        self.assignment += 1;
        let (low, metadata) = self.committed.clone();
        self.is_loaded = !has(BrokerBug::DispatchBeforeLoad);
        let done = match DoneSet::decode(low, &metadata) {
            DoneSetRead::Found(done) if self.is_loaded => done,
            _ => DoneSet::default(),
        };
        self.progress = Progress::new(low, done, self.assignment);
        self.read = low;
        self.running.clear();
        self.committer = Committer::default();
    }

    fn deliver(&mut self) {
        let next = self.log.range(self.read..).next().copied();
        let Some(offset) = next.filter(|_| !self.progress.is_pressing()) else { return };
        self.read = offset + 1;
        if self.progress.see(offset) == Seen::New {
            self.running.insert(offset);
        }
    }

    fn finish(&mut self) {
        if self.running.is_empty() {
            return;
        }
        let at = usize::try_from(self.random.roll()).unwrap_or(0) % self.running.len();
        let offset = *self.running.iter().nth(at).unwrap();
        self.running.remove(&offset);
        self.committer.push(offset);
    }

    fn commit(&mut self) {
        let max = 1 + usize::try_from(self.random.roll() % 5).unwrap();
        let beside = has(BrokerBug::PlainBesideTransaction) && self.sent.len() == 1 && !self.sent[0].plain;
        let batch = self.committer.next(max);
        let Some(batch) = batch else {
            // A plain commit of what is done so far, beside the transaction that is under way.
            if beside {
                let next = self.sent[0].next.clone();
                if let Some(mark) = next.mark() {
                    self.sent.push_back(Sent {
                        number: 0,
                        offset: mark.offset,
                        metadata: mark.metadata,
                        hops: vec![],
                        next,
                        plain: true,
                    });
                }
            }
            return;
        };
        // With a planted pipeline, the second builds on the first though its outcome is open.
        let mut next = self.sent.back().map_or_else(|| self.progress.clone(), |sent| sent.next.clone());
        next.settle(batch.items.iter().copied());
        if has(BrokerBug::DoneSetRunsAhead) {
            let decided: Vec<i64> = self
                .log
                .iter()
                .copied()
                .filter(|offset| *offset < self.read && !self.running.contains(offset))
                .collect();
            next.settle(decided);
        }
        let Some(mark) = next.mark() else {
            self.committer.aborted(batch.number);
            return;
        };
        let hops = batch.items;
        self.sent.push_back(Sent {
            number: batch.number,
            offset: mark.offset,
            metadata: mark.metadata,
            hops,
            next,
            plain: false,
        });
    }

    /// The broker decides about one commit: the oldest, or with a planted pipeline any.
    fn answer(&mut self) {
        if self.sent.is_empty() {
            return;
        }
        let at = usize::try_from(self.random.roll()).unwrap_or(0) % self.sent.len();
        let sent = self.sent.remove(at).unwrap();
        if self.chance(3) && !sent.plain {
            self.committer.aborted(sent.number);
            return;
        }
        let answered = !self.chance(4);
        self.apply(&sent);
        if answered || sent.plain {
            self.take_over(&sent);
        } else {
            // The answer is lost: the committed metadata names the commit.
            let name = match DoneSet::decode(self.committed.0, &self.committed.1) {
                DoneSetRead::Found(done) => (done.assignment, done.number),
                _ => (0, 0),
            };
            assert_eq!(name, sent.next.commit_name(), "an unknown commit is recognised");
            self.take_over(&sent);
        }
    }

    fn apply(&mut self, sent: &Sent) {
        for offset in &sent.hops {
            *self.hops.entry(*offset).or_default() += 1;
        }
        self.committed = (sent.offset, sent.metadata.clone());
    }

    fn take_over(&mut self, sent: &Sent) {
        self.committer.committed(sent.number);
        // Deliveries since the commit was formed are not in its copy.
        let mut progress = self.progress.clone();
        progress.settle(sent.hops.iter().copied());
        self.progress = progress;
    }

    /// The process dies: the broker aborts what is open, or it happened just before.
    fn crash(&mut self) {
        let open: Vec<Sent> = self.sent.drain(..).collect();
        for sent in open {
            if self.chance(2) {
                self.apply(&sent);
            }
        }
        self.start();
    }

    fn run(seed: u64) {
        let mut world = Self::new(seed);
        world.start();
        for _ in 0..600 {
            match world.random.roll() % 16 {
                0..=4 => world.deliver(),
                5..=9 => world.finish(),
                10..=12 => world.commit(),
                13..=14 => world.answer(),
                _ => {
                    if world.chance(4) {
                        world.crash();
                    }
                }
            }
        }
        // The rest without faults; every second world after a last restart, because a restart finds what was forgotten.
        if seed.is_multiple_of(2) {
            world.crash();
        }
        for _ in 0..4_000 {
            world.deliver();
            world.finish();
            world.commit();
            while let Some(sent) = world.sent.pop_front() {
                world.apply(&sent);
                world.take_over(&sent);
            }
        }
        let twice: Vec<_> = world.hops.iter().filter(|(_, count)| **count != 1).collect();
        assert!(twice.is_empty(), "seed {seed}: hopped more than once: {twice:?}");
        let lost: Vec<_> = world.log.iter().filter(|offset| !world.hops.contains_key(offset)).collect();
        assert!(lost.is_empty(), "seed {seed}: lost: {lost:?}");
        let last = world.log.last().copied().unwrap_or(0);
        assert_eq!(world.progress.low_mark(), last + 1, "seed {seed}: the low mark stands still");
    }
}

const SEEDS: u64 = 300;

#[test]
fn every_message_hops_once_whatever_fails() {
    (0..SEEDS).for_each(World::run);
}

#[test]
fn each_planted_bug_loses_or_repeats_a_message() {
    let bugs = [
        BrokerBug::PipelinedIds,
        BrokerBug::AbortForgotten,
        BrokerBug::PlainBesideTransaction,
        BrokerBug::MarkCountsByOne,
        BrokerBug::DispatchBeforeLoad,
        BrokerBug::DoneSetRunsAhead,
        BrokerBug::ForgetsDoneAhead,
    ];
    let usual = std::panic::take_hook();
    std::panic::set_hook(Box::new(|_| {}));
    let missed: Vec<_> = bugs
        .into_iter()
        .filter(|bug| {
            plant(Some(*bug));
            let found = (0..SEEDS).any(|seed| std::panic::catch_unwind(|| World::run(seed)).is_err());
            plant(None);
            !found
        })
        .collect();
    std::panic::set_hook(usual);
    assert!(missed.is_empty(), "not found: {missed:?}");
}

/// While the first message is stuck and every second one ends, the done-set stays within its bound, because deliveries
/// stop at three quarters of it and what runs then still fits.
#[test]
fn the_done_set_stays_within_its_bound() {
    let mut progress = Progress::new(0, DoneSet::default(), u64::MAX).bytes_max(4_096);
    let mut running = Vec::new();
    let mut offset = 0;
    while !progress.is_pressing() {
        progress.see(offset);
        if offset % 2 == 1 {
            progress.settle([offset]);
        } else {
            running.push(offset);
        }
        offset += 1;
    }
    let stopped = progress.mark().expect("fits when deliveries stop").metadata.len();
    assert!((3_000..=3_200).contains(&stopped), "{stopped} bytes");
    // Of what runs, 128 end in the worst order: each splits a run.
    for at in running.iter().rev().step_by(2).take(128) {
        progress.settle([*at]);
        assert!(progress.mark().is_some());
    }
    // The stuck one ends: everything below it goes from the done-set.
    progress.settle(running);
    assert_eq!(progress.low_mark(), offset);
    assert!(!progress.is_pressing());
}

#[test]
fn damaged_metadata_is_not_trusted() {
    let text = DoneSet { ranges: vec![(3, 9)], ..DoneSet::default() }.encode(2);
    let damaged = text.replace("AQY", "AQc");
    assert_ne!(text, damaged);
    assert_eq!(DoneSet::decode(2, &damaged), DoneSetRead::Unreadable);
    plant(Some(BrokerBug::DamagedIsTrusted));
    assert_ne!(DoneSet::decode(2, &damaged), DoneSetRead::Unreadable);
    plant(None);
}
