//! Where an event comes from: what a handler publishes belongs to what it handles.

use std::future::Future;
use std::sync::Arc;

use redrive_core::Event;

/// The event that is being handled.
#[derive(Debug, Clone)]
pub(super) struct Lineage(Arc<Event>);

tokio::task_local! {
    static HANDLED: Lineage;
}

impl Lineage {
    pub(super) fn of(event: &Arc<Event>) -> Self {
        Self(event.clone())
    }

    /// Gives what it has to an event that does not say otherwise.
    pub(super) fn give(&self, event: &mut Event) {
        let Event { id, meta, .. } = &*self.0;
        let correlation = meta.as_ref().and_then(|meta| meta.correlation.as_ref()).unwrap_or(id);
        let meta = event.meta_mut();
        meta.correlation.get_or_insert_with(|| correlation.clone());
        meta.causation.get_or_insert_with(|| id.clone());
    }

    /// That of the handler in which this is called, if it is in one.
    pub(super) fn current() -> Option<Self> {
        HANDLED.try_with(Clone::clone).ok()
    }

    /// Runs a handler under it.
    pub(super) fn around<F: Future>(self, handler: F) -> impl Future<Output = F::Output> {
        HANDLED.scope(self, handler)
    }

    pub(super) fn enter<R>(self, handler: impl FnOnce() -> R) -> R {
        HANDLED.sync_scope(self, handler)
    }
}

/// Gives an event the lineage of the handler that publishes it, if one does.
pub(super) fn inherit(event: &mut Event) {
    let _ = HANDLED.try_with(|lineage| lineage.give(event));
}
