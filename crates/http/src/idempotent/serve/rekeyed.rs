//! The commonest mistake of clients: a key minted for each attempt instead of for each intent.
//!
//! This cannot be distinguished from a customer who wants the same thing twice, so it is counted and not refused. A
//! fixed-size table holds recent fingerprints; a newer request replaces an older one.

use std::sync::{Mutex, PoisonError};

use redrive_core::ledger::RequestFingerprint;

/// How many requests are remembered: 16 KiB for each operation.
const PLACES: usize = 1024;

/// Recent requests and their keys: the first words of their hashes.
#[derive(Debug)]
pub(in crate::idempotent) struct RecentRequests(Mutex<Box<[(u64, u64)]>>);

impl Default for RecentRequests {
    fn default() -> Self {
        Self(Mutex::new(vec![(0, 0); PLACES].into_boxed_slice()))
    }
}

impl RecentRequests {
    /// Notes a request that is new to the ledger; `true` if the same request was seen under another key.
    pub(in crate::idempotent) fn is_repeated(&self, print: &RequestFingerprint, key: &str) -> bool {
        let word = |hash: &[u8; 32]| u64::from_le_bytes(std::array::from_fn(|at| hash[at]));
        let (asked, key) = (word(&print.hash), word(blake3::hash(key.as_bytes()).as_bytes()));
        let place = usize::try_from(asked % PLACES as u64).unwrap_or_default();
        let mut places = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (before, under) = std::mem::replace(&mut places[place], (asked, key));
        before == asked && under != key
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_under_another_key_is_seen_and_other_things_are_not() {
        let minted = RecentRequests::default();
        let print = |byte| RequestFingerprint { version: 1, hash: [byte; 32] };
        assert!(!minted.is_repeated(&print(1), "a"));
        assert!(!minted.is_repeated(&print(1), "a"));
        assert!(minted.is_repeated(&print(1), "b"));
        assert!(minted.is_repeated(&print(1), "c"));
        assert!(!minted.is_repeated(&print(2), "c"));
    }
}
