//! What attempts and answers need of the engine.

use std::collections::HashSet;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};

use redrive_store::Store;
use redrive_store::nodes::Tenure;

use super::Timepiece;
use super::queue::{Queue, Queues};

/// What attempts and answers need.
#[derive(Debug)]
pub(super) struct Context {
    pub(super) store: Arc<dyn Store>,
    /// This process among those that share the store, where it is one that is shared.
    pub(super) tenure: Option<Arc<Tenure>>,
    pub(super) clock: Arc<Timepiece>,
    /// Those that run here, by their numbers.
    pub(super) queues: Vec<Arc<Queue>>,
    pub(super) all: Arc<Queues>,
    /// Damaged rows that were told of: a load finds them again each time.
    pub(super) damaged: Mutex<HashSet<String>>,
}

/// How many damaged rows are remembered; of more than that, each is told once more.
const DAMAGED_MAX: usize = 1000;

impl Context {
    /// Whether a blocking handler goes on, though its attempt may be over.
    pub(super) fn is_blocked(&self) -> bool {
        self.queues.iter().any(|queue| queue.blocking.load(Ordering::Acquire) > 0)
    }

    /// Whether a damaged row was not told of yet.
    pub(super) fn is_news(&self, row: &str) -> bool {
        let mut damaged = self.damaged.lock().unwrap_or_else(PoisonError::into_inner);
        if damaged.len() >= DAMAGED_MAX {
            damaged.clear();
        }
        damaged.insert(row.to_owned())
    }
}
