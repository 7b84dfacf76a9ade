//! Memory for what is held whole: the bodies of enrolled requests, and their replies.
//!
//! Room is taken as bytes arrive, never before, so that a client that sends nothing holds nothing; and each client
//! address has a share, so that one client that does send cannot fill all of it.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// What a chunk costs beside its bytes: many small chunks cost more than they carry.
const CHUNK: usize = 64;

/// A bound on bytes in memory.
#[derive(Debug, Clone)]
pub(super) struct Room(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    max: usize,
    /// How much of it one client may have.
    share: usize,
    used: Mutex<Used>,
}

#[derive(Debug, Default)]
struct Used {
    all: usize,
    by_client: HashMap<ClientAddress, usize>,
}

/// The address that a client is counted by: an IPv4 address, or a network of IPv6, of which a client has a whole one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct ClientAddress(IpAddr);

impl From<IpAddr> for ClientAddress {
    fn from(address: IpAddr) -> Self {
        Self(match address.to_canonical() {
            IpAddr::V6(address) => {
                let [a, b, c, d, ..] = address.segments();
                IpAddr::from([a, b, c, d, 0, 0, 0, 0])
            }
            address => address,
        })
    }
}

impl Room {
    /// For `max` bytes, of which one client may have `share`.
    pub(super) fn new(max: usize, share: usize) -> Self {
        Self(Arc::new(Inner { max, share: share.min(max), used: Mutex::default() }))
    }

    /// Whether so many bytes would fit just now. Nothing is taken.
    pub(super) fn has(&self, client: Option<ClientAddress>, bytes: usize) -> bool {
        self.0.fits(&self.0.used(), client, bytes)
    }

    /// Opens an account with nothing in it. Without a client, only the whole is a bound.
    pub(super) fn open(&self, client: Option<ClientAddress>) -> HeldBytes {
        HeldBytes { room: self.clone(), client, bytes: AtomicUsize::new(0) }
    }
}

impl Inner {
    fn used(&self) -> std::sync::MutexGuard<'_, Used> {
        self.used.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn fits(&self, used: &Used, client: Option<ClientAddress>, bytes: usize) -> bool {
        let own = client.and_then(|client| used.by_client.get(&client)).copied().unwrap_or(0);
        used.all.saturating_add(bytes) <= self.max
            && (client.is_none() || own.saturating_add(bytes) <= self.share)
    }
}

/// Bytes that are held, given back when this is dropped.
#[derive(Debug)]
pub(super) struct HeldBytes {
    room: Room,
    client: Option<ClientAddress>,
    bytes: AtomicUsize,
}

impl HeldBytes {
    /// Takes room for a chunk; `false` if there is none.
    pub(super) fn take(&self, chunk: usize) -> bool {
        let bytes = chunk.saturating_add(CHUNK);
        let mut used = self.room.0.used();
        if !self.room.0.fits(&used, self.client, bytes) {
            return false;
        }
        used.all += bytes;
        if let Some(client) = self.client {
            *used.by_client.entry(client).or_default() += bytes;
        }
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
        true
    }
}

impl Drop for HeldBytes {
    fn drop(&mut self) {
        let bytes = *self.bytes.get_mut();
        let mut used = self.room.0.used();
        used.all = used.all.saturating_sub(bytes);
        if let Some(client) = self.client
            && let Some(own) = used.by_client.get_mut(&client)
        {
            *own = own.saturating_sub(bytes);
            if *own == 0 {
                used.by_client.remove(&client);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn client(address: &str) -> Option<ClientAddress> {
        Some(address.parse::<IpAddr>().expect("an address").into())
    }

    #[test]
    fn room_is_taken_as_bytes_arrive_and_given_back() {
        let room = Room::new(1000, 1000);
        let held = room.open(client("192.0.2.1"));
        assert!(room.has(None, 1000), "an open account holds nothing");
        assert!(held.take(500 - CHUNK) && held.take(500 - CHUNK));
        assert!(!held.take(1) && !room.has(None, 1));
        drop(held);
        assert!(room.has(None, 1000));
        assert!(room.0.used().by_client.is_empty());
    }

    #[test]
    fn one_client_has_its_share_and_others_theirs() {
        let room = Room::new(1000, 300);
        let greedy = room.open(client("192.0.2.1"));
        assert!(greedy.take(300 - CHUNK) && !greedy.take(0));
        assert!(!room.open(client("192.0.2.1")).take(0), "over all its requests");
        assert!(room.open(client("192.0.2.2")).take(300 - CHUNK));
        assert!(room.open(None).take(700 - CHUNK));
    }

    #[test]
    fn a_network_of_ipv6_is_one_client() {
        assert_eq!(client("2001:db8::1"), client("2001:db8::ffff:1"));
        assert_ne!(client("2001:db8::1"), client("2001:db8:0:1::1"));
        assert_eq!(client("::ffff:192.0.2.1"), client("192.0.2.1"));
        assert_ne!(client("192.0.2.1"), client("192.0.2.2"));
    }
}
