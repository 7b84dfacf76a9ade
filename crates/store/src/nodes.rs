//! Several processes that share one store: the nodes, their shards, and the lease of this one.
//!
//! A store with one owner at a time has none of this ([`ShardStore::node_lease`](crate::ShardStore::node_lease) is
//! `None`). A shared store renews the lease of its process by itself, and reports the result through the
//! [`NodeLease`].

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use redrive_core::Moment;
pub use redrive_core::nodes::{LeaseClock, NodeId, ShardRow, beat_every};
use tokio::sync::Notify;

/// The processes that share a store, as of one query.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeList {
    /// This process.
    pub me: NodeId,
    /// The store's own time at that moment.
    pub at: Moment,
    /// All known nodes by number, including nodes that have not renewed their lease for a while.
    pub list: Vec<Node>,
    /// The shards, in order.
    pub shards: Vec<ShardRow>,
}

/// A process that shares a store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Node {
    /// Its number. Each start of a program gets a new one.
    pub id: NodeId,
    /// Its name.
    pub name: String,
    /// When it joined.
    pub since: Moment,
    /// The rest of its lease; zero if that has run out.
    pub left: Duration,
    /// Whether it runs handlers, and takes part in sharing out the shards. Others publish and read.
    pub runs: bool,
}

impl Node {
    /// Whether its lease has not run out.
    #[must_use]
    pub const fn is_alive(&self) -> bool {
        !self.left.is_zero()
    }
}

impl NodeList {
    /// The nodes among which the shards are shared out.
    #[must_use]
    pub fn sharing(&self) -> Vec<NodeId> {
        self.list.iter().filter(|node| node.runs && node.is_alive()).map(|node| node.id).collect()
    }

    /// The rest of the leases of all other nodes that own a shard, whether they run or not.
    pub fn leases_of_others(&self) -> impl Iterator<Item = Duration> {
        let owns = |node: &&Node| self.shards.iter().any(|row| row.owner == Some(node.id));
        let others = self.list.iter().filter(|node| node.id != self.me && node.is_alive());
        others.filter(owns).map(|node| node.left)
    }

    /// How many shards a node owns.
    #[must_use]
    pub fn owned_by(&self, node: NodeId) -> usize {
        self.shards.iter().filter(|row| row.owner == Some(node)).count()
    }
}

/// The lease of this process in a shared store: how long it may act as the owner of its shards, and the store's time.
/// The store keeps it up to date.
#[derive(Debug)]
pub struct NodeLease {
    me: NodeId,
    name: String,
    lease: Duration,
    last: Mutex<Last>,
    /// How often it was renewed.
    renewals: AtomicU64,
    /// Whether this process runs handlers.
    runs: AtomicBool,
    /// Whether the lease is not renewed any more.
    has_resigned: AtomicBool,
    stirred: Notify,
}

/// The last renewal.
#[derive(Debug, Clone, Copy)]
struct Last {
    asked: RenewalSent,
    /// The store's time, at the latest when the answer came.
    at: Moment,
    answered: Instant,
}

/// When a renewal was about to be sent.
#[derive(Debug, Clone, Copy)]
pub struct RenewalSent {
    instant: Instant,
    /// The machine may sleep, and the monotonic clock with it; the time of day goes on.
    day: SystemTime,
}

impl RenewalSent {
    /// Now.
    #[must_use]
    pub fn now() -> Self {
        Self { instant: Instant::now(), day: SystemTime::now() }
    }

    /// How long ago that was, by the clock that says more.
    fn passed(&self) -> Duration {
        let by_day = SystemTime::now().duration_since(self.day).unwrap_or_default();
        self.instant.elapsed().max(by_day)
    }
}

impl NodeLease {
    /// The lease of a process: requested at `asked`, given at `at` by the store's clock.
    #[must_use]
    pub fn new(me: NodeId, name: String, lease: Duration, asked: RenewalSent, at: Moment) -> Self {
        let last = Last { asked, at, answered: Instant::now() };
        Self {
            me,
            name,
            lease,
            last: Mutex::new(last),
            renewals: AtomicU64::new(1),
            runs: AtomicBool::new(false),
            has_resigned: AtomicBool::new(false),
            stirred: Notify::new(),
        }
    }

    /// The lease was renewed at `at` by the store's clock; the request was about to be sent at `asked`.
    pub fn renewed(&self, asked: RenewalSent, at: Moment) {
        let answered = Instant::now();
        let mut last = self.last();
        // Answers come in any order.
        if asked.instant >= last.asked.instant {
            *last = Last { asked, at, answered };
            self.renewals.fetch_add(1, Relaxed);
        }
    }

    /// The store reported its time without a renewal.
    pub fn told(&self, at: Moment) {
        let mut last = self.last();
        (last.at, last.answered) = (at, Instant::now());
        self.renewals.fetch_add(1, Relaxed);
    }

    /// The number of this process.
    #[must_use]
    pub const fn me(&self) -> NodeId {
        self.me
    }

    /// The name of this process.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The length of a lease.
    #[must_use]
    pub const fn lease(&self) -> Duration {
        self.lease
    }

    /// The present lease, in moments of a clock that says `now`.
    #[must_use]
    pub fn term(&self, now: Moment) -> LeaseClock {
        let asked = self.last().asked;
        LeaseClock::new(self.lease, asked.passed(), now)
    }

    /// Whether the lease has run out: this process owns none of its shards any more.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.term(Moment::default()).is_over(Moment::default())
    }

    /// The store's time: never ahead of it, while both clocks run equally fast.
    #[must_use]
    pub fn time(&self) -> Moment {
        let last = *self.last();
        last.at + last.answered.elapsed()
    }

    /// How often it was renewed: while that is unchanged, so is everything else.
    #[must_use]
    pub fn renewals(&self) -> u64 {
        self.renewals.load(Relaxed)
    }

    /// Says whether this process runs handlers. The next renewal publishes that.
    pub fn set_runs(&self, runs: bool) {
        self.runs.store(runs, Relaxed);
    }

    /// Whether this process runs handlers.
    #[must_use]
    pub fn runs(&self) -> bool {
        self.runs.load(Relaxed)
    }

    /// Stops renewing the lease. When it runs out, other nodes take the shards that are still owned.
    pub fn resign(&self) {
        self.has_resigned.store(true, Relaxed);
    }

    /// Whether the lease is not renewed any more.
    #[must_use]
    pub fn has_resigned(&self) -> bool {
        self.has_resigned.load(Relaxed)
    }

    /// Signals that shards may have changed owners.
    pub fn stir(&self) {
        self.stirred.notify_one();
    }

    /// Waits until shards may have changed owners. A hint: it may be lost.
    pub async fn stirred(&self) {
        self.stirred.notified().await;
    }

    fn last(&self) -> std::sync::MutexGuard<'_, Last> {
        self.last.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const AT: Moment = Moment::from_nanos(1 << 60);

    #[test]
    fn a_lease_counts_from_before_it_was_asked_for() {
        let lease = Duration::from_secs(8);
        let ago = |secs| {
            let ago = Duration::from_secs(secs);
            RenewalSent { instant: Instant::now().checked_sub(ago).unwrap(), day: SystemTime::now() - ago }
        };
        let node_lease = NodeLease::new(NodeId(1), "one".to_owned(), lease, ago(7), AT);
        assert!(node_lease.is_over(), "it took seven seconds to hear of it, and one is margin");
        node_lease.renewed(ago(2), AT + lease);
        assert!(!node_lease.is_over());
        let left = node_lease.term(AT).left(AT);
        assert!(left <= Duration::from_secs(5) && left > Duration::from_secs(4), "{left:?}");
        node_lease.renewed(ago(7), AT);
        assert!(!node_lease.is_over(), "an answer that was overtaken changes nothing");
        assert!(node_lease.time() >= AT + lease);
        // The monotonic clock stood still while the machine slept.
        let slept = RenewalSent { instant: Instant::now(), day: SystemTime::now() - lease };
        node_lease.renewed(slept, AT);
        assert!(node_lease.is_over());
    }
}
