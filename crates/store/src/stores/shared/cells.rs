//! The columns of a row, whichever database it comes from.

/// A damaged row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::stores) struct Damage;

/// Typed access to columns. A column of another type than it was written with is damaged.
pub(in crate::stores) trait Cells {
    /// A number.
    fn number(&self, at: usize) -> Result<i64, Damage>;

    /// A nullable number.
    fn maybe_number(&self, at: usize) -> Result<Option<i64>, Damage>;

    /// A nullable text, borrowed.
    fn word(&self, at: usize) -> Result<Option<&str>, Damage>;

    /// Nullable bytes, borrowed.
    fn blob(&self, at: usize) -> Result<Option<&[u8]>, Damage>;

    /// A text.
    fn text(&self, at: usize) -> Result<String, Damage> {
        self.maybe_text(at)?.ok_or(Damage)
    }

    /// A nullable text.
    fn maybe_text(&self, at: usize) -> Result<Option<String>, Damage> {
        Ok(self.word(at)?.map(str::to_owned))
    }

    /// Bytes.
    fn bytes(&self, at: usize) -> Result<Vec<u8>, Damage> {
        self.maybe_bytes(at)?.ok_or(Damage)
    }

    /// Nullable bytes.
    fn maybe_bytes(&self, at: usize) -> Result<Option<Vec<u8>>, Damage> {
        Ok(self.blob(at)?.map(<[u8]>::to_vec))
    }

    /// A hash.
    fn hash<const N: usize>(&self, at: usize) -> Result<[u8; N], Damage> {
        self.maybe_hash(at)?.ok_or(Damage)
    }

    /// A nullable hash.
    fn maybe_hash<const N: usize>(&self, at: usize) -> Result<Option<[u8; N]>, Damage> {
        self.blob(at)?.map(|bytes| bytes.try_into().map_err(|_| Damage)).transpose()
    }
}
