//! Hints within the process that a request ended, so that who waits for it looks at once. Only hints: it may have run
//! elsewhere, and whoever waits looks by itself as well.

use std::hash::{BuildHasher, RandomState};

use redrive_core::ledger::Scope;
use tokio::sync::Notify;

/// Requests that share a bell wake each other's waiters, who look and wait on.
const BELLS: usize = 64;

/// A bell for each share of requests.
#[derive(Debug)]
pub(super) struct Hints {
    bells: [Notify; BELLS],
    hasher: RandomState,
}

impl Default for Hints {
    fn default() -> Self {
        Self { bells: std::array::from_fn(|_| Notify::new()), hasher: RandomState::new() }
    }
}

impl Hints {
    pub(super) fn ended(&self, scope: &Scope) {
        self.bell(scope).notify_waiters();
    }

    pub(super) fn bell(&self, scope: &Scope) -> &Notify {
        let hash = self.hasher.hash_one(&scope.key) % BELLS as u64;
        &self.bells[usize::try_from(hash).unwrap_or_default()]
    }
}
