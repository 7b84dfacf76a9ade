//! The faults injected, and the violations found.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::watch;

/// Maximum number of violations kept.
const VIOLATIONS_MAX: usize = 20;

/// The count of a campaign. All worlds share it.
#[derive(Debug, Default)]
pub(crate) struct FaultCounts {
    counts: Mutex<Counts>,
    wrong: watch::Sender<bool>,
}

/// The counters.
#[derive(Debug, Clone, Default)]
pub(crate) struct Counts {
    /// Faults by their kind.
    pub(crate) faults: BTreeMap<String, u64>,
    /// What the clients saw, by description.
    pub(crate) seen: BTreeMap<&'static str, u64>,
    /// The violations.
    pub(crate) violations: Vec<String>,
}

impl Counts {
    /// Faults in all.
    pub(crate) fn all(&self) -> u64 {
        self.faults.values().sum()
    }

    /// How often something was seen.
    pub(crate) fn of(&self, what: &str) -> u64 {
        self.seen.get(what).copied().unwrap_or_default()
    }
}

impl FaultCounts {
    /// A fault happened.
    pub(crate) fn count(&self, kind: impl Into<String>) {
        *self.counts().faults.entry(kind.into()).or_default() += 1;
    }

    /// Adds to a counter.
    pub(crate) fn saw(&self, what: &'static str, times: usize) {
        *self.counts().seen.entry(what).or_default() += u64::try_from(times).unwrap_or(u64::MAX);
    }

    /// Something does not hold.
    pub(crate) fn violation(&self, what: String) {
        let mut counts = self.counts();
        if counts.violations.len() < VIOLATIONS_MAX {
            counts.violations.push(what);
        }
        drop(counts);
        self.wrong.send_replace(true);
    }

    /// Whether nothing was found wrong.
    pub(crate) fn is_fine(&self) -> bool {
        !*self.wrong.borrow()
    }

    /// Waits until something is.
    pub(crate) async fn wrong(&self) {
        // The sender is here: this does not fail.
        let _ = self.wrong.subscribe().wait_for(|wrong| *wrong).await;
    }

    /// How often a fault of this kind happened.
    pub(crate) fn times(&self, kind: &str) -> u64 {
        self.counts().faults.get(kind).copied().unwrap_or_default()
    }

    /// Everything so far.
    pub(crate) fn so_far(&self) -> Counts {
        self.counts().clone()
    }

    fn counts(&self) -> MutexGuard<'_, Counts> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
