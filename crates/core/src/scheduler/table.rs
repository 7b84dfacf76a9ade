//! Hash tables by sequence number.
//!
//! The store assigns sequence numbers, so no client can choose them to collide, and the standard hasher's
//! protection would be a good part of the scheduler's cost.

use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasherDefault, Hasher};

use crate::queue_entry::Seq;
use crate::random::mix;

/// Spreads sequence numbers over a table.
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

/// A table by sequence number.
pub(super) type SeqMap<T> = HashMap<Seq, T, BuildHasherDefault<Spread>>;

/// A set of sequence numbers.
pub(super) type SeqSet = HashSet<Seq, BuildHasherDefault<Spread>>;
