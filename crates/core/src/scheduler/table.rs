//! Tables by seq.
//!
//! Seqs are numbers that the store gave, so nobody can choose them to collide, and the standard hasher's care
//! would be a good part of what the scheduler costs.

use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasherDefault, Hasher};

use crate::dice::mix;
use crate::entry::Seq;

/// Spreads seqs over a table.
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct Spread(u64);

impl Hasher for Spread {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.write_u64(u64::from(*byte)));
    }

    fn write_u64(&mut self, number: u64) {
        self.0 = mix(self.0 ^ number);
    }
}

/// A table by seq.
pub(super) type SeqMap<T> = HashMap<Seq, T, BuildHasherDefault<Spread>>;

/// A set of seqs.
pub(super) type SeqSet = HashSet<Seq, BuildHasherDefault<Spread>>;
