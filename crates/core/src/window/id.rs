//! An id as callers pass it in: its mark, and its rank among other ids.
//!
//! Ids that come from a clock or a counter ascend, if only roughly. If an id ranks above all ids in a table,
//! it is certainly not in the table, and no lookup is needed. The rank decides nothing else: two ids may
//! share a rank, and then the table is searched.

use super::mark::IdMark;

/// How many bytes of an id count for its rank: enough for a UUID as text.
const HEAD_BYTES: usize = 40;
const WORDS: usize = HEAD_BYTES / 8;

/// An id within its scope.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ScopedId {
    pub(super) mark: IdMark,
    pub(super) rank: Rank,
}

impl ScopedId {
    /// An id within a scope; see [`IdMark::of`].
    #[must_use]
    pub fn of(scope: &str, id: &[u8]) -> Self {
        Self { mark: IdMark::of(scope, id), rank: Rank::of(id) }
    }

    /// Its mark, which is what the window stores.
    #[must_use]
    pub const fn mark(&self) -> IdMark {
        self.mark
    }
}

/// An id of which only the mark is known. It is found like any other, but always needs a lookup.
impl From<IdMark> for ScopedId {
    fn from(mark: IdMark) -> Self {
        Self { mark, rank: Rank::UNKNOWN }
    }
}

/// The rank of an id: longer ids rank higher, so that a counter ascends when it gets another digit, and ids
/// of equal length rank by their first bytes. The scope does not count, because ids of several scopes that
/// come from one clock ascend together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Rank {
    length: u64,
    head: [u64; WORDS],
}

impl Rank {
    /// The lowest rank.
    pub(super) const LEAST: Self = Self { length: 0, head: [0; WORDS] };
    /// The rank of an id of which only the mark is known: nothing is above it, and it is above nothing.
    pub(super) const UNKNOWN: Self = Self { length: u64::MAX, head: [u64::MAX; WORDS] };

    /// Whether it is certainly above another rank.
    pub(super) fn is_above(&self, other: &Self) -> bool {
        self > other && *self != Self::UNKNOWN
    }

    pub(super) fn of(id: &[u8]) -> Self {
        let mut bytes = [0; HEAD_BYTES];
        let head = id.len().min(HEAD_BYTES);
        bytes[..head].copy_from_slice(&id[..head]);
        let mut words = [0; WORDS];
        for (word, bytes) in words.iter_mut().zip(bytes.as_chunks().0) {
            *word = u64::from_be_bytes(*bytes);
        }
        Self { length: id.len() as u64, head: words }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn longer_ids_are_above_shorter_ones_and_else_the_bytes_decide() {
        let ascending: [&[u8]; 8] = [
            b"",
            b"\0",
            b"9",
            b"10",
            b"order-9",
            b"order-10",
            b"018f5c3e-7b1a-7000-8000-000000000009",
            b"018f5c3e-7b1a-7000-8000-00000000000a",
        ];
        for pair in ascending.windows(2) {
            assert!(Rank::of(pair[0]) < Rank::of(pair[1]), "{pair:?}");
        }
        assert_eq!(Rank::of(b""), Rank::LEAST);
    }

    #[test]
    fn what_is_not_known_is_above_nothing_and_nothing_is_above_it() {
        let highest = Rank::of(&[0xff; 100]);
        assert!(highest.is_above(&Rank::LEAST) && !highest.is_above(&highest));
        assert!(!highest.is_above(&Rank::UNKNOWN));
        assert!(!Rank::UNKNOWN.is_above(&highest));
        assert!(highest.max(Rank::UNKNOWN) == Rank::UNKNOWN, "it is kept as the highest");
    }

    #[test]
    fn what_differs_late_shares_a_rank() {
        let (one, two) = ([b'x'; 41], {
            let mut two = [b'x'; 41];
            two[40] = b'y';
            two
        });
        assert_eq!(Rank::of(&one), Rank::of(&two));
    }
}
