//! How many outcomes may become unknown: by tenant, and by client address and hour.
//!
//! An unknown record stays until an operator resolves it, and is never dropped. So a client that makes an API fail (a
//! rate limiter that answers 429, say) could fill the ledger. Beyond the bounds, requests that might become unknown are
//! refused with 429 before they are sent; replays, and requests that may run again, go on.
//!
//! Tenants are counted in the store, and what was added since in memory. Records do not have the address of their
//! client, so an address is counted here: a bucket that empties within an hour.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use super::room::ClientAddress;

/// How long a full bucket takes to empty.
const HOUR: Duration = Duration::from_secs(3600);

/// The bounds, and what is used of them.
#[derive(Debug, Clone)]
pub(super) struct UnknownBudget(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    tenant_max: u64,
    client_max: u64,
    counts: Mutex<Counts>,
}

#[derive(Debug, Default)]
struct Counts {
    tenants: HashMap<String, u64>,
    clients: HashMap<ClientAddress, Bucket>,
}

/// How full, at which time.
#[derive(Debug, Clone, Copy)]
struct Bucket {
    level: f64,
    at: Instant,
}

impl Bucket {
    #[expect(clippy::cast_precision_loss, reason = "a bound far below 2^52")]
    fn level_at(&self, now: Instant, max: u64) -> f64 {
        let emptied = now.duration_since(self.at).as_secs_f64() / HOUR.as_secs_f64() * max as f64;
        (self.level - emptied).max(0.0)
    }
}

/// Which bound is reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Exceeded {
    /// `gateway.unknown_max`.
    Tenant,
    /// `gateway.client_unknown_max`.
    Client,
}

impl UnknownBudget {
    pub(super) fn new(tenant_max: u64, client_max: u64) -> Self {
        Self(Arc::new(Inner { tenant_max, client_max, counts: Mutex::default() }))
    }

    /// Sets what the store counts. Buckets that are empty are forgotten.
    pub(super) fn counted(&self, tenants: impl IntoIterator<Item = (String, u64)>) {
        let now = Instant::now();
        let mut counts = self.counts();
        counts.tenants = tenants.into_iter().collect();
        counts.clients.retain(|_, bucket| bucket.level_at(now, self.0.client_max) > 0.0);
    }

    /// A request that is about to be sent. Unless it is [settled](PossiblyUnknown::settle), it counts as unknown.
    ///
    /// # Errors
    /// If a bound is reached.
    #[expect(clippy::cast_precision_loss, reason = "a bound far below 2^52")]
    pub(super) fn enter(
        &self,
        tenant: &str,
        client: Option<ClientAddress>,
    ) -> Result<PossiblyUnknown, Exceeded> {
        let counts = self.counts();
        if counts.tenants.get(tenant).is_some_and(|count| *count >= self.0.tenant_max) {
            return Err(Exceeded::Tenant);
        }
        let bucket = client.and_then(|client| counts.clients.get(&client));
        let level = bucket.map_or(0.0, |bucket| bucket.level_at(Instant::now(), self.0.client_max));
        if client.is_some() && level + 1.0 > self.0.client_max as f64 {
            return Err(Exceeded::Client);
        }
        Ok(PossiblyUnknown { budget: self.clone(), of: Some((tenant.to_owned(), client)) })
    }

    fn counts(&self) -> MutexGuard<'_, Counts> {
        self.0.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn add(&self, tenant: String, client: Option<ClientAddress>) {
        let now = Instant::now();
        let mut counts = self.counts();
        *counts.tenants.entry(tenant).or_default() += 1;
        if let Some(client) = client {
            let bucket = counts.clients.entry(client).or_insert(Bucket { level: 0.0, at: now });
            *bucket = Bucket { level: bucket.level_at(now, self.0.client_max) + 1.0, at: now };
        }
    }
}

/// A request under way. Counted as unknown when this is dropped before its outcome is known: also if it is aborted.
#[derive(Debug)]
pub(super) struct PossiblyUnknown {
    budget: UnknownBudget,
    of: Option<(String, Option<ClientAddress>)>,
}

impl PossiblyUnknown {
    /// The outcome is known.
    pub(super) fn settle(mut self) {
        self.of = None;
    }
}

impl Drop for PossiblyUnknown {
    fn drop(&mut self) {
        if let Some((tenant, client)) = self.of.take() {
            self.budget.add(tenant, client);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use super::*;

    fn client(last: u8) -> Option<ClientAddress> {
        Some(IpAddr::from([192, 0, 2, last]).into())
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_has_its_bound_by_the_hour_and_others_have_theirs() {
        let budget = UnknownBudget::new(100, 2);
        for _ in 0..2 {
            drop(budget.enter("acme", client(1)).expect("within the bound"));
        }
        assert_eq!(budget.enter("acme", client(1)).err(), Some(Exceeded::Client));
        assert!(budget.enter("acme", client(2)).is_ok());
        tokio::time::advance(HOUR / 2).await;
        assert!(budget.enter("acme", client(1)).is_ok(), "the bucket empties");
        tokio::time::advance(HOUR * 2).await;
        budget.counted([]);
        assert!(budget.counts().clients.is_empty(), "and is forgotten");
    }

    #[tokio::test(start_paused = true)]
    async fn a_tenant_has_what_the_store_counts_and_what_came_since() {
        let budget = UnknownBudget::new(3, 100);
        budget.counted([("acme".to_owned(), 2)]);
        drop(budget.enter("acme", None).expect("within the bound"));
        assert_eq!(budget.enter("acme", None).err(), Some(Exceeded::Tenant));
        assert!(budget.enter("other", None).is_ok());
        budget.counted([("acme".to_owned(), 1)]);
        assert!(budget.enter("acme", None).is_ok(), "an operator resolved some");
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_known_does_not_count() {
        let budget = UnknownBudget::new(1, 1);
        for _ in 0..5 {
            budget.enter("acme", client(1)).expect("nothing is unknown").settle();
        }
    }
}
