//! The state: what the ledger has, what the workers know, and what really happened, which is nobody's to read but the
//! rules', the probe's and the person's.

use std::cmp::Ordering;

use redrive_core::ledger::age;

use crate::row::{Row, at};

/// All of it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct World {
    pub(crate) clock: u8,
    /// How many faults there were.
    pub(crate) faults: u8,
    /// The ledger.
    pub(crate) rows: Vec<Option<Row>>,
    /// What happened, by key.
    pub(crate) tales: Vec<Tale>,
    /// In order: which is which makes no difference.
    pub(crate) workers: Vec<Worker>,
    /// What must not happen, and did.
    pub(crate) wrong: Wrong,
}

/// What must not happen at a step.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub(crate) struct Wrong {
    /// A run that was taken over changed something.
    pub(crate) zombie_changed: bool,
    /// An answer that was there became another.
    pub(crate) answer_changed: bool,
}

/// What really happened to a key.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Tale {
    /// Who had it last: runs, probes and people are counted.
    pub(crate) owner: u8,
    /// How often its handler was begun.
    pub(crate) runs: u8,
    /// How often a person said that it may be run again.
    pub(crate) resolved: u8,
    /// How often a run proved that nothing had happened.
    pub(crate) proven: u8,
    /// The effects, by the run that had them.
    pub(crate) effects: Vec<u8>,
    /// What was sent and did not arrive yet, and until when it may.
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
    /// It asks whether the run before it happened.
    Probing {
        key: usize,
        run: u8,
        epoch: u64,
        until: u8,
    },
    /// It runs a request, and has it until then, as far as it knows.
    Running {
        key: usize,
        run: u8,
        epoch: u64,
        until: u8,
        sent: bool,
    },
}

impl Worker {
    /// Which run it is of those that there were.
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

    /// Which key it has, and until when.
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

    /// Of states that differ only in which worker or which key it is, one stands for all.
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

    /// Looks at what a step did to answers that were there.
    pub(crate) fn judge(&mut self, before: &Self) {
        for (row, old) in self.rows.iter().zip(&before.rows) {
            let Some(old) = old.as_ref().filter(|old| old.answer().is_some()) else { continue };
            // What is forgotten by now may be replaced.
            if row.as_ref() != Some(old) && age(old.0.clone(), at(self.clock)).is_some() {
                self.wrong.answer_changed = true;
            }
        }
    }
}
