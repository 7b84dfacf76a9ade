//! Somebody outside who leases events, as short to write as a promise wants it.

use std::sync::Arc;

use redrive_core::Event;
use redrive_core::entry::{Change, Entry, Park, Progress};
use redrive_core::event::{DeadReason, Mode, Record, Story};
use redrive_store::lease::{Decide, Held, Lapse, Lease, LeaseSettle, LeaseSettled, Leased};
use redrive_store::{By, Found, QueueSpec};

use super::Subject;
use super::owner::{HORIZON, Owner, WINDOW, at, id, secs};

/// A queue that is pulled from, and keeps the order of keys.
pub(super) const PULLED: &str = "pulled";

pub(super) fn work(id: &str) -> Event {
    Event::new(PULLED, id).payload(id.as_bytes())
}

/// The lease of an attempt, with the token that it was given.
pub(super) fn held(event: &Event, attempt: u32, token: u8) -> Held {
    let (tenant, queue, id) = (event.tenant.clone(), event.queue.clone(), event.id.clone());
    Held { tenant, queue, id, attempt, token: [token; 16] }
}

/// One more attempt, of which this is known.
pub(super) fn after(entry: &Entry, disposition: &str, due: u64) -> Progress {
    let attempt = entry.progress.attempts + 1;
    let story = entry.progress.story.as_deref().cloned().unwrap_or_default();
    let story = story.with(Record {
        attempt,
        mode: "live".to_owned(),
        at_ms: 1,
        took_ms: 1,
        disposition: disposition.to_owned(),
        executed: None,
        cause: None,
        delay_ms: None,
    });
    Progress {
        due: at(due),
        attempts: attempt,
        mode: Mode::Retry,
        story: Some(Arc::new(story)),
        ..entry.progress.clone()
    }
}

pub(super) fn again(disposition: &'static str, due: u64) -> Decide {
    Box::new(move |entry, _| Change::Again(after(entry, disposition, due)))
}

pub(super) fn dies(park: Park) -> Decide {
    Box::new(move |entry, _| Change::Dead {
        reason: DeadReason::AttemptsSpent,
        progress: after(entry, "retry", 0),
        park,
    })
}

pub(super) fn done() -> Decide {
    Box::new(|_, _| Change::Done)
}

/// The same for a lease that is over, whenever it was.
pub(super) fn lapse(mut decide: Decide) -> Lapse {
    Box::new(move |entry, _| decide(entry, None))
}

pub(super) fn dispositions(story: Option<&Arc<Story>>) -> Vec<String> {
    story.map(|story| story.records().map(|record| record.disposition.clone()).collect()).unwrap_or_default()
}

impl<S: Subject> Owner<S> {
    pub(super) async fn pulled(subject: S) -> Self {
        let owner = Self::of(subject).await;
        let (name, window, horizon) = (PULLED.to_owned(), secs(WINDOW), secs(HORIZON));
        let queue = QueueSpec { name, ordered: true, window, horizon, pull: true, ..QueueSpec::default() };
        owner.store.declare(queue, By::Runner).await.unwrap();
        owner
    }

    /// Leases for ten seconds; what has lapsed is due again a second later.
    pub(super) async fn lease(&self, tokens: &[u8], when: u64) -> Leased {
        self.lease_or(tokens, when, again("lapsed", when + 1)).await
    }

    pub(super) async fn lease_or(&self, tokens: &[u8], when: u64, lapsed: Decide) -> Leased {
        self.lease_of(None, tokens, when, lapsed).await
    }

    /// The same for one tenant.
    pub(super) async fn lease_of(
        &self,
        tenant: Option<&str>,
        tokens: &[u8],
        when: u64,
        lapsed: Decide,
    ) -> Leased {
        let tokens = tokens.iter().map(|token| [*token; 16]).collect();
        let (queue, tenant, bytes_max) = (PULLED.to_owned(), tenant.map(str::to_owned), usize::MAX);
        let lapsed = lapse(lapsed);
        let call = Lease { queue, tenant, at: at(when), until: at(when + 10), tokens, bytes_max, lapsed };
        self.store.lease(call).await.unwrap()
    }

    pub(super) async fn lease_ids(&self, tokens: &[u8], when: u64) -> Vec<String> {
        self.lease(tokens, when).await.entries.iter().map(id).collect()
    }

    pub(super) async fn settle_lease(&self, lease: Held, when: u64, decide: Decide) -> LeaseSettled {
        let settle = LeaseSettle { lease, at: at(when), decide };
        self.store.settle_leased(vec![settle]).await.unwrap().remove(0)
    }

    pub(super) async fn extend(&self, lease: Held, when: u64, until: u64) -> LeaseSettled {
        self.store.extend(vec![lease], at(when), at(until)).await.unwrap().remove(0)
    }
}

pub(super) fn lapsed(settled: LeaseSettled) -> Found {
    match settled {
        LeaseSettled::Lapsed(found) => *found,
        other => panic!("it is not that it is over: {other:?}"),
    }
}

pub(super) fn conflict(settled: LeaseSettled) -> Found {
    match settled {
        LeaseSettled::Conflict(found) => *found,
        other => panic!("it is no conflict: {other:?}"),
    }
}
