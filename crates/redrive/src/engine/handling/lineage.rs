//! The lineage of an event: an event that a handler publishes belongs to the one it handles.

use std::future::Future;
use std::sync::Arc;

use redrive_core::Event;

/// The event that is being handled.
#[derive(Debug, Clone)]
pub(in crate::engine) struct Lineage(Arc<Event>);

tokio::task_local! {
    static HANDLED: Lineage;
}

impl Lineage {
    pub(in crate::engine) fn of(event: &Arc<Event>) -> Self {
        Self(event.clone())
    }

    /// Copies the lineage to an event that does not set its own.
    pub(in crate::engine) fn give(&self, event: &mut Event) {
        let Event { id, meta, .. } = &*self.0;
        let correlation = meta.as_ref().and_then(|meta| meta.correlation.as_ref()).unwrap_or(id);
        let meta = event.meta_mut();
        meta.correlation.get_or_insert_with(|| correlation.clone());
        meta.causation.get_or_insert_with(|| id.clone());
    }

    /// The lineage of the calling handler, if there is one.
    pub(in crate::engine) fn current() -> Option<Self> {
        HANDLED.try_with(Clone::clone).ok()
    }

    /// Runs a handler with this lineage.
    pub(in crate::engine) fn around<F: Future>(self, handler: F) -> impl Future<Output = F::Output> {
        HANDLED.scope(self, handler)
    }

    pub(in crate::engine) fn enter<R>(self, handler: impl FnOnce() -> R) -> R {
        HANDLED.sync_scope(self, handler)
    }
}

/// Gives an event the lineage of the handler that publishes it, if any.
pub(in crate::engine) fn inherit(event: &mut Event) {
    let _ = HANDLED.try_with(|lineage| lineage.give(event));
}
