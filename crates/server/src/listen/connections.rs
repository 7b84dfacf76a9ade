//! Open connections, and which of them makes room for a new one.
//!
//! A client that holds connections without a request would keep every other client out, health checks among them. So
//! when all places are taken, a new connection replaces one that has nothing under way: of the address with the most
//! such connections, and of those the oldest. Connections whose caller has signed in go last. A flood from one address
//! therefore displaces itself, and a connection with a request in progress is never cut.

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};

/// How long to wait for a place before another connection is asked to make room.
const REPLACE_AGAIN: Duration = Duration::from_millis(50);

/// The open connections of a listener.
#[derive(Debug)]
pub(super) struct Connections {
    places: Arc<Semaphore>,
    open: Mutex<BTreeMap<u64, Open>>,
    next: AtomicUsize,
}

#[derive(Debug)]
struct Open {
    address: IpAddr,
    state: Arc<ConnectionState>,
}

#[derive(Debug, Default)]
struct ConnectionState {
    /// Requests whose response has not been written to its end.
    under_way: AtomicUsize,
    /// Whether a request on it was of a known caller.
    known: AtomicBool,
    /// Whether it was asked to make room.
    replaced: AtomicBool,
    end: Notify,
}

/// A connection's place. Each of its requests holds a clone, so that a request that outlives the connection, and a
/// tunnel, still count.
#[derive(Debug, Clone)]
pub(crate) struct ConnectionPermit {
    state: Arc<ConnectionState>,
    _place: Arc<Place>,
}

/// The place itself, which is free again when the last clone is dropped.
#[derive(Debug)]
struct Place {
    of: Arc<Connections>,
    id: u64,
    _permit: OwnedSemaphorePermit,
}

impl Drop for Place {
    fn drop(&mut self) {
        self.of.open().remove(&self.id);
    }
}

/// A request in progress: until it is dropped, its connection makes room for no other.
#[derive(Debug)]
pub(super) struct UnderWay(ConnectionPermit);

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.0.state.under_way.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Connections {
    pub(super) fn new(max: usize) -> Arc<Self> {
        let places = Arc::new(Semaphore::new(max.min(Semaphore::MAX_PERMITS)));
        Arc::new(Self { places, open: Mutex::default(), next: AtomicUsize::new(0) })
    }

    /// A place for a connection from this address: at once, or in place of one with nothing under way, or when one is
    /// free.
    pub(super) async fn take(self: &Arc<Self>, address: IpAddr) -> Option<ConnectionPermit> {
        let permit = loop {
            if let Ok(permit) = self.places.clone().try_acquire_owned() {
                break permit;
            }
            self.replace();
            // One that was asked to make room may have begun a request instead, and a busy one may have become idle.
            let free = tokio::time::timeout(REPLACE_AGAIN, self.places.clone().acquire_owned()).await;
            if let Ok(permit) = free {
                // The semaphore is never closed.
                break permit.ok()?;
            }
        };
        let id = self.next.fetch_add(1, Ordering::Relaxed) as u64;
        let state = Arc::<ConnectionState>::default();
        self.open().insert(id, Open { address, state: state.clone() });
        Some(ConnectionPermit { state, _place: Arc::new(Place { of: self.clone(), id, _permit: permit }) })
    }

    /// Has one connection end that has nothing under way.
    fn replace(&self) {
        let open = self.open();
        let idle = |open: &&Open| {
            open.state.under_way.load(Ordering::Relaxed) == 0 && !open.state.replaced.load(Ordering::Relaxed)
        };
        let is_known = |open: &Open| open.state.known.load(Ordering::Relaxed);
        let mut crowds: HashMap<IpAddr, usize> = HashMap::new();
        for open in open.values().filter(idle).filter(|open| !is_known(open)) {
            *crowds.entry(open.address).or_default() += 1;
        }
        // The first of equals is the oldest, because ids grow.
        let rank = |open: &&Open| (is_known(open), usize::MAX - crowds.get(&open.address).unwrap_or(&0));
        if let Some(victim) = open.values().filter(idle).min_by_key(rank) {
            victim.state.replaced.store(true, Ordering::Relaxed);
            victim.state.end.notify_one();
        }
    }

    fn open(&self) -> MutexGuard<'_, BTreeMap<u64, Open>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ConnectionPermit {
    /// Notes that its caller has signed in.
    pub(crate) fn is_of_a_known_caller(&self) {
        self.state.known.store(true, Ordering::Relaxed);
    }

    /// A request begins.
    pub(super) fn begin(&self) -> UnderWay {
        self.state.under_way.fetch_add(1, Ordering::Relaxed);
        UnderWay(self.clone())
    }

    /// Waits until the connection has to make room. With a request in progress it does not.
    pub(super) async fn replaced(&self) {
        loop {
            self.state.end.notified().await;
            if self.state.under_way.load(Ordering::Relaxed) == 0 {
                return;
            }
            self.state.replaced.store(false, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    fn address(last: u8) -> IpAddr {
        Ipv4Addr::new(10, 0, 0, last).into()
    }

    fn is_replaced(permit: &ConnectionPermit) -> bool {
        permit.state.replaced.load(Ordering::Relaxed)
    }

    #[tokio::test]
    async fn the_oldest_idle_connection_of_the_largest_crowd_makes_room() {
        let connections = Connections::new(5);
        let mut places = Vec::new();
        for last in [1, 2, 3, 3, 3] {
            places.push(connections.take(address(last)).await.expect("a place"));
        }
        let _busy = places[2].begin();
        places[3].is_of_a_known_caller();
        // Of the third address two are idle, and one of those has signed in: so three crowds of one. The oldest goes.
        connections.replace();
        assert_eq!(places.iter().map(is_replaced).collect::<Vec<_>>(), [true, false, false, false, false]);
        connections.replace();
        connections.replace();
        assert_eq!(places.iter().map(is_replaced).collect::<Vec<_>>(), [true, true, false, false, true]);
        connections.replace();
        connections.replace();
        assert_eq!(places.iter().map(is_replaced).collect::<Vec<_>>(), [true, true, false, true, true]);
    }

    #[tokio::test]
    async fn a_crowd_displaces_itself() {
        let connections = Connections::new(3);
        let mut places = Vec::new();
        for last in [1, 2, 2] {
            places.push(connections.take(address(last)).await.expect("a place"));
        }
        connections.replace();
        assert_eq!(places.iter().map(is_replaced).collect::<Vec<_>>(), [false, true, false]);
    }

    #[tokio::test]
    async fn a_place_is_free_when_its_last_request_ends() {
        let connections = Connections::new(1);
        let place = connections.take(address(1)).await.expect("a place");
        let request = place.begin();
        drop(place);
        assert_eq!(connections.places.available_permits(), 0);
        drop(request);
        assert_eq!((connections.places.available_permits(), connections.open().len()), (1, 0));
    }
}
