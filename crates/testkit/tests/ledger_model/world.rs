//! The state: the ledger's records, the workers' knowledge, and what really happened, which only the rules,
//! the probe and the operator may read.

use std::cmp::Ordering;

use redrive_core::ledger::age;

use crate::row::{Row, at};

/// The whole state.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct World {
    pub(crate) clock: u8,
    /// How many faults there were.
    pub(crate) faults: u8,
    /// The ledger.
    pub(crate) rows: Vec<Option<Row>>,
    /// What really happened, by key.
    pub(crate) tales: Vec<Tale>,
    /// Sorted: which worker is which makes no difference.
    pub(crate) workers: Vec<Worker>,
    /// Violations so far.
    pub(crate) wrong: Wrong,
}

/// Violations at a step.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub(crate) struct Wrong {
    /// A run that was taken over changed something.
    pub(crate) zombie_changed: bool,
    /// A stored reply changed.
    pub(crate) answer_changed: bool,
}

/// What really happened to a key.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Tale {
    /// The last holder: runs, probes and operators are counted.
    pub(crate) owner: u8,
    /// How often its handler was started.
    pub(crate) runs: u8,
    /// How often an operator allowed another run.
    pub(crate) resolved: u8,
    /// How often a run proved that it had no effect.
    pub(crate) proven: u8,
    /// The effects, by the run that had them.
    pub(crate) effects: Vec<u8>,
    /// The requests that were sent and have not arrived, and until when they may.
    pub(crate) wire: Vec<(u8, u8)>,
    /// When the client first sent it.
    pub(crate) first_sent: Option<u8>,
}

/// A worker, and what it knows.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Worker {
    Idle,
    /// It has read a record, and not written yet.
    Looked {
        key: usize,
        at: u8,
        found: Option<Row>,
    },
    /// It probes whether the run before it took effect.
    Probing {
        key: usize,
        run: u8,
        epoch: u64,
        until: u8,
    },
    /// It runs a request, and holds its lease until then, as far as it knows.
    Running {
        key: usize,
        run: u8,
        epoch: u64,
        until: u8,
        sent: bool,
    },
}

impl Worker {
    /// The number of its run.
    pub(crate) const fn run(&self) -> Option<u8> {
        match self {
            Self::Running { run, .. } | Self::Probing { run, .. } => Some(*run),
            Self::Idle | Self::Looked { .. } => None,
        }
    }

    const fn swap_keys(&mut self) {
        if let Self::Running { key, .. } | Self::Probing { key, .. } | Self::Looked { key, .. } = self {
            *key = 1 - *key;
        }
    }

    /// The key that it holds, and until when.
    pub(crate) const fn lease(&self) -> Option<(usize, u8)> {
        match self {
            Self::Running { key, until, .. } | Self::Probing { key, until, .. } => Some((*key, *until)),
            Self::Idle | Self::Looked { .. } => None,
        }
    }
}

impl World {
    pub(crate) fn new(keys: usize, workers: usize) -> Self {
        Self {
            clock: 0,
            faults: 0,
            rows: vec![None; keys],
            tales: vec![Tale::default(); keys],
            workers: vec![Worker::Idle; workers],
            wrong: Wrong::default(),
        }
    }

    /// Of states that differ only in the order of workers or keys, one represents all.
    pub(crate) fn sort(&mut self) {
        self.workers.sort_unstable();
        let [one, other] = &self.tales[..] else { return };
        match one.cmp(other) {
            Ordering::Less => {}
            Ordering::Greater => self.swap_keys(),
            Ordering::Equal => {
                let mut swapped = self.clone();
                swapped.swap_keys();
                if (&swapped.workers, &swapped.rows) < (&self.workers, &self.rows) {
                    *self = swapped;
                }
            }
        }
    }

    fn swap_keys(&mut self) {
        self.rows.swap(0, 1);
        self.tales.swap(0, 1);
        self.workers.iter_mut().for_each(Worker::swap_keys);
        self.workers.sort_unstable();
    }

    /// Checks what a step did to stored replies.
    pub(crate) fn judge(&mut self, before: &Self) {
        for (row, old) in self.rows.iter().zip(&before.rows) {
            let Some(old) = old.as_ref().filter(|old| old.answer().is_some()) else { continue };
            // A reply that has expired by now may be replaced.
            if row.as_ref() != Some(old) && age(old.0.clone(), at(self.clock)).is_some() {
                self.wrong.answer_changed = true;
            }
        }
    }
}
