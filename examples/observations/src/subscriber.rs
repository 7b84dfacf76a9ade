//! The subscriber: another service, which counts what it is told and knows nothing of retries.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

/// Counts how often it was told of each id.
#[derive(Debug, Clone, Default)]
pub(crate) struct Subscriber(Arc<Mutex<HashMap<String, u32>>>);

impl Subscriber {
    pub(crate) fn tell(&self, id: &str) {
        *self.told().entry(id.to_owned()).or_default() += 1;
    }

    /// Ids that begin so, and those of them that it was told of more than once.
    pub(crate) fn counted(&self, beginning: &str) -> (usize, usize) {
        let told = self.told();
        let of_these = || told.iter().filter(|(id, _)| id.starts_with(beginning));
        (of_these().count(), of_these().filter(|(_, times)| **times > 1).count())
    }

    fn told(&self) -> std::sync::MutexGuard<'_, HashMap<String, u32>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
