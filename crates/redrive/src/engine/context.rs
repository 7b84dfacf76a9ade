//! The parts of the engine that attempts and answers need.

use std::collections::HashSet;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};

use redrive_store::Store;
use redrive_store::nodes::NodeLease as Tenure;

use super::EventClock;
use super::queue::{Queue, Queues};

/// The parts of the engine that attempts and answers need.
#[derive(Debug)]
pub(super) struct Context {
    pub(super) store: Arc<dyn Store>,
    /// The lease of this process, if the store is shared.
    pub(super) tenure: Option<Arc<Tenure>>,
    pub(super) clock: Arc<EventClock>,
    /// The queues that run here, by their numbers.
    pub(super) queues: Vec<Arc<Queue>>,
    pub(super) all: Arc<Queues>,
    /// Damaged rows that were reported: every load finds them again.
    pub(super) damaged: Mutex<HashSet<String>>,
}

/// How many damaged rows are remembered; beyond that, each is reported once more.
const DAMAGED_MAX: usize = 1000;

impl Context {
    /// Whether a blocking handler is still running, though its attempt may be over.
    pub(super) fn is_blocked(&self) -> bool {
        self.queues.iter().any(|queue| queue.blocking.load(Ordering::Acquire) > 0)
    }

    /// Whether a damaged row was not reported yet.
    pub(super) fn is_news(&self, row: &str) -> bool {
        let mut damaged = self.damaged.lock().unwrap_or_else(PoisonError::into_inner);
        if damaged.len() >= DAMAGED_MAX {
            damaged.clear();
        }
        damaged.insert(row.to_owned())
    }
}
