//! What the loop is told by the store, and what it could not be told in time.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use redrive_core::Event;
use redrive_core::entry::StreamId;
use redrive_store::{Arrivals, Store};
use tokio::sync::mpsc;
use tokio::sync::mpsc::error::TrySendError;

/// Has the store tell the loop. Where that cannot keep up it is told that there is more, and loads it.
pub(super) fn watch_store(store: &Arc<dyn Store>, tell: mpsc::Sender<Arrivals>, missed: Arc<Missed>) {
    store.watch(Arc::new(move |arrivals| {
        if let Err(TrySendError::Full(arrivals)) = tell.try_send(arrivals) {
            missed.add(arrivals);
        }
    }));
}

/// Streams with their queues' names and tenants.
type Streams = Vec<(StreamId, String, String)>;

/// What the loop could not be told in time: which streams to load again.
#[derive(Debug, Default)]
pub(super) struct Missed {
    any: AtomicBool,
    recall: AtomicBool,
    streams: Mutex<BTreeMap<StreamId, (String, String)>>,
}

impl Missed {
    fn add(&self, arrivals: Arrivals) {
        let Arrivals { entries, streams, recall, .. } = arrivals;
        let mut all = self.streams.lock().unwrap_or_else(PoisonError::into_inner);
        for entry in entries {
            let Event { queue, tenant, .. } = &*entry.event;
            all.entry(entry.stream).or_insert_with(|| (queue.clone(), tenant.clone()));
        }
        all.extend(streams.into_iter().map(|(stream, queue, tenant)| (stream, (queue, tenant))));
        self.recall.fetch_or(recall, Ordering::AcqRel);
        self.any.store(true, Ordering::Release);
    }

    /// The streams, and whether something was recalled.
    pub(super) fn take(&self) -> Option<(Streams, bool)> {
        if !self.any.swap(false, Ordering::Acquire) {
            return None;
        }
        let all = std::mem::take(&mut *self.streams.lock().unwrap_or_else(PoisonError::into_inner));
        let streams = all.into_iter().map(|(stream, (queue, tenant))| (stream, queue, tenant)).collect();
        Some((streams, self.recall.swap(false, Ordering::AcqRel)))
    }
}
