//! Several processes that share one store: who they are, who owns which shard, and how long this one may.
//!
//! A store that has one owner at a time has none of this ([`Store::tenure`](crate::Store::tenure) is none). One that is
//! shared renews its process' lease by itself, and says through the [`Tenure`] what came of it.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use redrive_core::Moment;
pub use redrive_core::nodes::{NodeId, Row, Term, beat_every};
use tokio::sync::Notify;

/// Those who share a store, as of one look.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Nodes {
    /// Who looked.
    pub me: NodeId,
    /// The store's own time at that moment.
    pub at: Moment,
    /// All that are known, those that were not heard of for a while included, in the order of their numbers.
    pub list: Vec<Node>,
    /// The shards, in their order.
    pub shards: Vec<Row>,
}

/// A process that shares a store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Node {
    /// Its number. Another start of the same program has another one.
    pub id: NodeId,
    /// What it is called.
    pub name: String,
    /// Since when it is there.
    pub since: Moment,
    /// What is left of its lease; nothing where that is over.
    pub left: Duration,
    /// Whether it runs handlers, and has a share of the shards. Others publish and look.
    pub runs: bool,
}

impl Node {
    /// Whether its lease is not over.
    #[must_use]
    pub const fn is_alive(&self) -> bool {
        !self.left.is_zero()
    }
}

impl Nodes {
    /// Those among whom the shards are shared out.
    #[must_use]
    pub fn sharing(&self) -> Vec<NodeId> {
        self.list.iter().filter(|node| node.runs && node.is_alive()).map(|node| node.id).collect()
    }

    /// What is left of the leases of all others who own something, whether they run or not.
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

/// This process among those that share a store: how long it may act as the owner of what it took, and what time it is
/// in the store. Kept up to date by the store.
#[derive(Debug)]
pub struct Tenure {
    me: NodeId,
    name: String,
    lease: Duration,
    last: Mutex<Last>,
    /// How often it was renewed.
    renewals: AtomicU64,
    /// Whether this process runs handlers.
    runs: AtomicBool,
    /// Whether it is to be heard of no more.
    has_resigned: AtomicBool,
    stirred: Notify,
}

/// The last renewal.
#[derive(Debug, Clone, Copy)]
struct Last {
    asked: Asked,
    /// What time it was in the store, at the latest when the answer came.
    at: Moment,
    answered: Instant,
}

/// When a renewal was about to be sent.
#[derive(Debug, Clone, Copy)]
pub struct Asked {
    instant: Instant,
    /// The machine may sleep, and the monotonic clock with it; the time of day does not.
    day: SystemTime,
}

impl Asked {
    /// Now.
    #[must_use]
    pub fn now() -> Self {
        Self { instant: Instant::now(), day: SystemTime::now() }
    }

    /// How long ago that was, by whichever clock says more.
    fn passed(&self) -> Duration {
        let by_day = SystemTime::now().duration_since(self.day).unwrap_or_default();
        self.instant.elapsed().max(by_day)
    }
}

impl Tenure {
    /// That of a process whose first lease was asked for then, and given at that moment of the store's.
    #[must_use]
    pub fn new(me: NodeId, name: String, lease: Duration, asked: Asked, at: Moment) -> Self {
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

    /// The lease was renewed, at that moment of the store's, by a statement that was about to be sent then.
    pub fn renewed(&self, asked: Asked, at: Moment) {
        let answered = Instant::now();
        let mut last = self.last();
        // Answers come in any order.
        if asked.instant >= last.asked.instant {
            *last = Last { asked, at, answered };
            self.renewals.fetch_add(1, Relaxed);
        }
    }

    /// The store said what time it is, and nothing was renewed.
    pub fn told(&self, at: Moment) {
        let mut last = self.last();
        (last.at, last.answered) = (at, Instant::now());
        self.renewals.fetch_add(1, Relaxed);
    }

    /// Who this process is.
    #[must_use]
    pub const fn me(&self) -> NodeId {
        self.me
    }

    /// What it is called.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// How long a lease is.
    #[must_use]
    pub const fn lease(&self) -> Duration {
        self.lease
    }

    /// The lease as it is now, in moments of a clock that says `now`.
    #[must_use]
    pub fn term(&self, now: Moment) -> Term {
        let asked = self.last().asked;
        Term::new(self.lease, asked.passed(), now)
    }

    /// Whether the lease is over: nothing that was taken is this process' own any more.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.term(Moment::default()).is_over(Moment::default())
    }

    /// What time it is in the store: never later than it really is, while both clocks run equally fast.
    #[must_use]
    pub fn time(&self) -> Moment {
        let last = *self.last();
        last.at + last.answered.elapsed()
    }

    /// How often it was renewed: where that has not changed, neither has anything else.
    #[must_use]
    pub fn renewals(&self) -> u64 {
        self.renewals.load(Relaxed)
    }

    /// Says whether this process runs handlers. The store tells the others with the next renewal.
    pub fn set_runs(&self, runs: bool) {
        self.runs.store(runs, Relaxed);
    }

    /// Whether this process runs handlers.
    #[must_use]
    pub fn runs(&self) -> bool {
        self.runs.load(Relaxed)
    }

    /// Has the lease run out: nothing renews it from now on. Whatever is still owned under it goes to others then.
    pub fn resign(&self) {
        self.has_resigned.store(true, Relaxed);
    }

    /// Whether the lease is not to be renewed.
    #[must_use]
    pub fn has_resigned(&self) -> bool {
        self.has_resigned.load(Relaxed)
    }

    /// Says that somebody may own other shards than before.
    pub fn stir(&self) {
        self.stirred.notify_one();
    }

    /// Returns when somebody may own other shards than before. A hint: it may be lost.
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
            Asked { instant: Instant::now().checked_sub(ago).unwrap(), day: SystemTime::now() - ago }
        };
        let tenure = Tenure::new(NodeId(1), "one".to_owned(), lease, ago(7), AT);
        assert!(tenure.is_over(), "it took seven seconds to hear of it, and one is margin");
        tenure.renewed(ago(2), AT + lease);
        assert!(!tenure.is_over());
        let left = tenure.term(AT).left(AT);
        assert!(left <= Duration::from_secs(5) && left > Duration::from_secs(4), "{left:?}");
        tenure.renewed(ago(7), AT);
        assert!(!tenure.is_over(), "an answer that was overtaken changes nothing");
        assert!(tenure.time() >= AT + lease);
        // The monotonic clock stood still while the machine slept.
        let slept = Asked { instant: Instant::now(), day: SystemTime::now() - lease };
        tenure.renewed(slept, AT);
        assert!(tenure.is_over());
    }
}
