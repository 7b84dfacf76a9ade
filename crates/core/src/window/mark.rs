//! The mark of an id: the 128 bits that the window stores.
//!
//! If the window takes a new id for an old one, an event is lost, so two ids must not have the same mark by
//! chance: with ten million remembered ids, the odds that a new one has the mark of any of them are 10⁷ in
//! 2¹²⁸, about 3 in 10³². With 64 bits they would be one in two trillion for each check, which a busy
//! pipeline makes in weeks. The hash is SHA-256, so that a client that chooses ids cannot search for a
//! collision, and so that a file means the same to every version and every machine.

use sha2::{Digest, Sha256};

/// Bytes that SHA-256 takes at a time.
const BLOCK: usize = 64;
/// The shortest padding after the data in the last block: a bit, and the number of bits.
const PADDING: usize = 1 + size_of::<u64>();
/// The bytes before scope and id: their lengths.
const LENGTHS: usize = 2 * size_of::<u64>();
/// The initial state of SHA-256.
const BEGINNING: [u32; 8] =
    [0x6a09_e667, 0xbb67_ae85, 0x3c6e_f372, 0xa54f_f53a, 0x510e_527f, 0x9b05_688c, 0x1f83_d9ab, 0x5be0_cd19];

/// The first half of a SHA-256 over scope and id, each preceded by its length.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct IdMark(pub [u8; 16]);

impl IdMark {
    /// The mark of an id within a scope: a tenant, a topic, a handler. Equal ids of two scopes have different
    /// marks. Use an empty scope if there is only one.
    #[must_use]
    pub fn of(scope: &str, id: &[u8]) -> Self {
        let length = LENGTHS + scope.len() + id.len();
        if length <= BLOCK - PADDING { Self::of_block(scope, id, length) } else { Self::of_any(scope, id) }
    }

    /// The mark of an input that fits into one block, as most ids do: laid out in place, without copying into
    /// a buffer.
    fn of_block(scope: &str, id: &[u8], length: usize) -> Self {
        let mut block = [0; BLOCK];
        let (scope_length, rest) = block.split_at_mut(size_of::<u64>());
        let (scope_bytes, rest) = rest.split_at_mut(scope.len());
        let (id_length, rest) = rest.split_at_mut(size_of::<u64>());
        let (id_bytes, padding) = rest.split_at_mut(id.len());
        scope_length.copy_from_slice(&(scope.len() as u64).to_be_bytes());
        scope_bytes.copy_from_slice(scope.as_bytes());
        id_length.copy_from_slice(&(id.len() as u64).to_be_bytes());
        id_bytes.copy_from_slice(id);
        padding[0] = 0x80;
        block[BLOCK - size_of::<u64>()..].copy_from_slice(&(length as u64 * 8).to_be_bytes());
        let mut words = BEGINNING;
        sha2::compress256(&mut words, &[block.into()]);
        let mut half = [0; 16];
        for (bytes, word) in half.chunks_exact_mut(size_of::<u32>()).zip(words) {
            bytes.copy_from_slice(&word.to_be_bytes());
        }
        Self(half)
    }

    fn of_any(scope: &str, id: &[u8]) -> Self {
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

    /// 32 bits of it that choose its slot in a table. Never 0, which means an empty slot.
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
        let marks =
            [IdMark::of("ab", b"c"), IdMark::of("a", b"bc"), IdMark::of("", b"abc"), IdMark::of("abc", b"")];
        for (n, mark) in marks.iter().enumerate() {
            assert!(!marks[n + 1..].contains(mark), "{marks:?}");
        }
    }

    #[test]
    fn a_block_and_any_length_are_the_same_hash() {
        let bytes: Vec<u8> = (0..=u8::MAX).collect();
        for scope in ["", "a", "orders/of/a/tenant", "a scope that nearly fills a block itself ----"] {
            for length in 0..100 {
                let id = &bytes[..length];
                assert_eq!(IdMark::of(scope, id), IdMark::of_any(scope, id), "{scope} and {length} bytes");
            }
        }
    }

    /// Files store marks, so they may never change.
    #[test]
    fn a_mark_is_the_same_in_every_version() {
        let mark = IdMark::of("orders", b"order-17").0;
        let hex: String = mark.iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(hex, "8239b9df834362e16b69aab8baaf6a6c");
    }
}
