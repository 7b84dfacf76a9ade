//! Values derived from an event: the fingerprint of its content, the idempotency key for downstream calls,
//! and its shard.
//!
//! All three are SHA-256 over length-prefixed parts, so that no two lists of parts hash alike (`("ab", "c")`
//! and `("a", "bc")`), and so that another program, or SQL, can compute the same value.

use sha2::{Digest, Sha256};

use super::Event;

/// The content published under an identity, in 16 bytes: the first half of a SHA-256 over content type and
/// payload. Headers do not count: traces and dates differ between two tries of one publisher.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Fingerprint(pub [u8; 16]);

impl Fingerprint {
    /// The fingerprint of an event.
    #[must_use]
    pub fn of(event: &Event) -> Self {
        let content_type = event.meta.as_ref().and_then(|meta| meta.content_type.as_deref());
        Self(hash(&[content_type.unwrap_or_default().as_bytes(), &event.payload]))
    }
}

/// The idempotency key for a downstream call, so that the receiver can recognise a repetition. It is the same
/// for all attempts, and different for two queues that use the same id (`charge/17` and `refund/17`).
///
/// `step` separates the calls of one handler; leave it empty if there is only one.
#[must_use]
pub fn downstream_key(tenant: &str, queue: &str, id: &str, step: &str) -> String {
    let hash = hash(&[tenant.as_bytes(), queue.as_bytes(), id.as_bytes(), step.as_bytes()]);
    hash.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The hash of a token. The store keeps only the hash, so reading the store does not allow settling for the
/// lease holder.
#[must_use]
pub fn token_hash(token: &str) -> [u8; 16] {
    hash(&[b"lease", token.as_bytes()])
}

/// The shard of an event: by its ordering key, so that one owner sees all events of the key; by its id if it
/// has no key.
#[must_use]
pub fn shard(event: &Event, shards: u32) -> u32 {
    if shards <= 1 {
        return 0;
    }
    let spread = event.key.as_deref().unwrap_or(&event.id);
    let hash = hash(&[event.tenant.as_bytes(), event.queue.as_bytes(), spread.as_bytes()]);
    let [a, b, c, d, ..] = hash;
    u32::from_be_bytes([a, b, c, d]) % shards
}

fn hash(parts: &[&[u8]]) -> [u8; 16] {
    let mut hasher = Sha256::new();
    for part in parts {
        hasher.update((part.len() as u64).to_be_bytes());
        hasher.update(part);
    }
    let whole: [u8; 32] = hasher.finalize().into();
    let mut half = [0; 16];
    half.copy_from_slice(&whole[..16]);
    half
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fingerprint_tells_payloads_apart_and_headers_not() {
        let event = Event::new("orders", "1").payload(*b"one");
        let print = Fingerprint::of(&event);
        assert_eq!(print, Fingerprint::of(&event.clone().header("traceparent", "00-1")));
        assert_ne!(print, Fingerprint::of(&event.clone().payload(*b"two")));
        assert_ne!(print, Fingerprint::of(&event.content_type("text/plain")));
    }

    #[test]
    fn keys_for_downstream_differ_by_queue_and_step() {
        let keys = [
            downstream_key("", "charge", "17", ""),
            downstream_key("", "refund", "17", ""),
            downstream_key("", "charge", "17", "mail"),
            downstream_key("a", "charge", "17", ""),
        ];
        for (n, key) in keys.iter().enumerate() {
            assert!(!keys[n + 1..].contains(key) && key.len() == 32, "{keys:?}");
        }
    }

    #[test]
    fn a_key_stays_on_one_shard_and_ids_spread() {
        let of = |id: usize, key: Option<&str>| {
            let event = Event::new("orders", id.to_string());
            shard(&key.map_or(event.clone(), |key| event.key(key)), 8)
        };
        assert!((0..100).all(|id| of(id, Some("k")) == of(0, Some("k"))));
        let used: std::collections::HashSet<_> = (0..100).map(|id| of(id, None)).collect();
        assert_eq!(used.len(), 8);
    }
}
