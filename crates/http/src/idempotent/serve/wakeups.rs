//! Wakes waiting requests of this process when a run ends. Only a hint: the run may be in another process, so waiters
//! poll as well.

use std::hash::{BuildHasher, RandomState};

use redrive_core::ledger::RequestScope;
use tokio::sync::Notify;

/// Requests that share a notifier wake each other's waiters, which look and wait again.
const BELLS: usize = 64;

/// A bell for each share of requests.
#[derive(Debug)]
pub(in crate::idempotent) struct Wakeups {
    bells: [Notify; BELLS],
    hasher: RandomState,
}

impl Default for Wakeups {
    fn default() -> Self {
        Self { bells: std::array::from_fn(|_| Notify::new()), hasher: RandomState::new() }
    }
}

impl Wakeups {
    pub(in crate::idempotent) fn ended(&self, scope: &RequestScope) {
        self.bell(scope).notify_waiters();
    }

    pub(in crate::idempotent) fn bell(&self, scope: &RequestScope) -> &Notify {
        let hash = self.hasher.hash_one(&scope.key) % BELLS as u64;
        &self.bells[usize::try_from(hash).unwrap_or_default()]
    }
}
