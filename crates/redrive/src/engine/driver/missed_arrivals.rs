//! Arrivals that the store reports to the loop, and those that overflowed.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use redrive_core::Event;
use redrive_core::queue_entry::StreamId;
use redrive_store::{Arrivals, Store};
use tokio::sync::mpsc;
use tokio::sync::mpsc::error::TrySendError;

/// Sends the store's arrivals to the loop. If the loop cannot keep up, it is notified that there is more, and loads
/// it.
pub(in crate::engine) fn watch_store(
    store: &Arc<dyn Store>,
    tell: mpsc::Sender<Arrivals>,
    missed: Arc<MissedArrivals>,
) {
    store.watch(Arc::new(move |arrivals| {
        if let Err(TrySendError::Full(arrivals)) = tell.try_send(arrivals) {
            missed.add(arrivals);
        }
    }));
}

/// Streams with their queues' names and tenants.
type Streams = Vec<(StreamId, String, String)>;

/// Arrivals that the loop was too slow for: which streams to load again.
#[derive(Debug, Default)]
pub(in crate::engine) struct MissedArrivals {
    any: AtomicBool,
    recall: AtomicBool,
    streams: Mutex<BTreeMap<StreamId, (String, String)>>,
}

impl MissedArrivals {
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

    /// The streams, and whether events were recalled.
    pub(in crate::engine) fn take(&self) -> Option<(Streams, bool)> {
        if !self.any.swap(false, Ordering::Acquire) {
            return None;
        }
        let all = std::mem::take(&mut *self.streams.lock().unwrap_or_else(PoisonError::into_inner));
        let streams = all.into_iter().map(|(stream, (queue, tenant))| (stream, queue, tenant)).collect();
        Some((streams, self.recall.swap(false, Ordering::AcqRel)))
    }
}
