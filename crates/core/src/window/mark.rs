//! What the window keeps of an id: 128 bits.
//!
//! An id that is taken for another one is a lost event, so the marks of two ids must not be the same by chance:
//! with ten million of them remembered, the odds that a new one has the mark of any of them are 10⁷ in 2¹²⁸, about
//! 3 in 10³². With 64 bits they would be one in two trillion for each check, which a busy pipeline makes in weeks.
//! SHA-256, so that nobody who chooses ids can look for two that collide, and so that a file means the same to
//! every version and every machine.

use sha2::{Digest, Sha256};

/// The first half of a SHA-256 over scope and id, each with its length before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Mark(pub [u8; 16]);

impl Mark {
    /// The mark of an id within a scope: a tenant, a topic, a handler. Ids of two scopes never meet; empty where
    /// there is only one.
    #[must_use]
    pub fn of(scope: &str, id: &[u8]) -> Self {
        let mut hasher = Sha256::new();
        for part in [scope.as_bytes(), id] {
            hasher.update((part.len() as u64).to_be_bytes());
            hasher.update(part);
        }
        let whole: [u8; 32] = hasher.finalize().into();
        let mut half = [0; 16];
        half.copy_from_slice(&whole[..16]);
        Self(half)
    }

    /// 32 bits of it that choose its place in a table. Never 0, which means an empty place there.
    pub(super) fn tag(self) -> u32 {
        let [a, b, c, d, ..] = self.0;
        u32::from_le_bytes([a, b, c, d]).max(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scope_and_id_do_not_run_together() {
        let marks = [Mark::of("ab", b"c"), Mark::of("a", b"bc"), Mark::of("", b"abc"), Mark::of("abc", b"")];
        for (n, mark) in marks.iter().enumerate() {
            assert!(!marks[n + 1..].contains(mark), "{marks:?}");
        }
    }

    /// Files keep marks, so they may never change.
    #[test]
    fn a_mark_is_the_same_in_every_version() {
        let mark = Mark::of("orders", b"order-17").0;
        let hex: String = mark.iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(hex, "8239b9df834362e16b69aab8baaf6a6c");
    }
}
