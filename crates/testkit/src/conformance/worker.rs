//! An outside worker that leases events: helpers that keep promises short.

use std::sync::Arc;

use redrive_core::Event;
use redrive_core::event::{AttemptHistory, AttemptRecord, DeadReason, Mode};
use redrive_core::queue_entry::{EventChange, EventProgress, ParkFollowers, QueueEntry};
use redrive_store::lease::{
    DecideExpiry, DecideSettle, LeaseRef, LeaseRequest, LeaseSettle, LeaseSettleResult, LeasedEvents,
};
use redrive_store::{DeclaredBy, EventStatus, QueueSpec};

use super::Subject;
use super::owner::{HORIZON, Owner, WINDOW, at, id, secs};

/// A pulled queue that is ordered.
pub(super) const PULLED: &str = "pulled";

pub(super) fn work(id: &str) -> Event {
    Event::new(PULLED, id).payload(id.as_bytes())
}

/// The lease of an attempt, with its token.
pub(super) fn held(event: &Event, attempt: u32, token: u8) -> LeaseRef {
    let (tenant, queue, id) = (event.tenant.clone(), event.queue.clone(), event.id.clone());
    LeaseRef { tenant, queue, id, attempt, token: [token; 16] }
}

/// The progress with one more attempt, with this disposition.
pub(super) fn after(entry: &QueueEntry, disposition: &str, due: u64) -> EventProgress {
    let attempt = entry.progress.attempts + 1;
    let history = entry.progress.history.as_deref().cloned().unwrap_or_default();
    let history = history.with(AttemptRecord {
        attempt,
        mode: "live".to_owned(),
        at_ms: 1,
        took_ms: 1,
        disposition: disposition.to_owned(),
        executed: None,
        cause: None,
        delay_ms: None,
    });
    EventProgress {
        due: at(due),
        attempts: attempt,
        mode: Mode::Retry,
        history: Some(Arc::new(history)),
        ..entry.progress.clone()
    }
}

pub(super) fn again(disposition: &'static str, due: u64) -> DecideSettle {
    Box::new(move |entry, _| EventChange::Retry(after(entry, disposition, due)))
}

pub(super) fn dies(park: ParkFollowers) -> DecideSettle {
    Box::new(move |entry, _| EventChange::Dead {
        reason: DeadReason::AttemptsSpent,
        progress: after(entry, "retry", 0),
        park,
    })
}

pub(super) fn done() -> DecideSettle {
    Box::new(|_, _| EventChange::Done)
}

/// The same decision for a lapsed lease, whenever it lapsed.
pub(super) fn lapse(mut decide: DecideSettle) -> DecideExpiry {
    Box::new(move |entry, _| decide(entry, None))
}

pub(super) fn dispositions(history: Option<&Arc<AttemptHistory>>) -> Vec<String> {
    history
        .map(|history| history.records().map(|record| record.disposition.clone()).collect())
        .unwrap_or_default()
}

impl<S: Subject> Owner<S> {
    pub(super) async fn pulled(subject: S) -> Self {
        let owner = Self::of(subject).await;
        let (name, window, horizon) = (PULLED.to_owned(), secs(WINDOW), secs(HORIZON));
        let queue = QueueSpec { name, ordered: true, window, horizon, pull: true, ..QueueSpec::default() };
        owner.store.declare(queue, DeclaredBy::Runner).await.unwrap();
        owner
    }

    /// Leases for ten seconds; lapsed events are due again a second later.
    pub(super) async fn lease(&self, tokens: &[u8], when: u64) -> LeasedEvents {
        self.lease_or(tokens, when, again("lapsed", when + 1)).await
    }

    pub(super) async fn lease_or(&self, tokens: &[u8], when: u64, lapsed: DecideSettle) -> LeasedEvents {
        self.lease_of(None, tokens, when, lapsed).await
    }

    /// The same for one tenant.
    pub(super) async fn lease_of(
        &self,
        tenant: Option<&str>,
        tokens: &[u8],
        when: u64,
        lapsed: DecideSettle,
    ) -> LeasedEvents {
        let tokens = tokens.iter().map(|token| [*token; 16]).collect();
        let (queue, tenant, bytes_max) = (PULLED.to_owned(), tenant.map(str::to_owned), usize::MAX);
        let lapsed = lapse(lapsed);
        let call =
            LeaseRequest { queue, tenant, at: at(when), until: at(when + 10), tokens, bytes_max, lapsed };
        self.store.lease(call).await.unwrap()
    }

    pub(super) async fn lease_ids(&self, tokens: &[u8], when: u64) -> Vec<String> {
        self.lease(tokens, when).await.entries.iter().map(id).collect()
    }

    pub(super) async fn settle_lease(
        &self,
        lease: LeaseRef,
        when: u64,
        decide: DecideSettle,
    ) -> LeaseSettleResult {
        let settle = LeaseSettle { lease, at: at(when), decide };
        self.store.settle_leased(vec![settle]).await.unwrap().remove(0)
    }

    pub(super) async fn extend(&self, lease: LeaseRef, when: u64, until: u64) -> LeaseSettleResult {
        self.store.extend(vec![lease], at(when), at(until)).await.unwrap().remove(0)
    }
}

pub(super) fn lapsed(settled: LeaseSettleResult) -> EventStatus {
    match settled {
        LeaseSettleResult::Lapsed(found) => *found,
        other => panic!("it is not that it is over: {other:?}"),
    }
}

pub(super) fn conflict(settled: LeaseSettleResult) -> EventStatus {
    match settled {
        LeaseSettleResult::Conflict(found) => *found,
        other => panic!("it is no conflict: {other:?}"),
    }
}
