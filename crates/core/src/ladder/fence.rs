//! The receiver's side of a fence: refuse calls that come after a later one.
//!
//! Every attempt carries `(epoch, start)`. The epoch grows with every change of owner; the start number grows with every
//! attempt that an owner starts. Attempts of one ordering key never overlap while their owner lives, so for a key the
//! larger pair is the later attempt. A receiver that keeps the largest pair of each `(tenant, queue, key)` refuses the
//! calls of a process that was replaced, and those of an attempt that timed out and arrives after the next one.
//!
//! The place of an event in its queue would not do instead of the start number: an event that commits late, or one that
//! an operator redrives, has a smaller place than events that ran before it, and the receiver would refuse what never
//! ran.
//!
//! ```
//! use redrive_core::ladder::fence::{StartFence, StartFences};
//!
//! let mut fences = StartFences::default();
//! let (old, new): (StartFence, StartFence) = ("3.17".parse()?, "4.1".parse()?);
//! assert!(fences.pass("acme", "orders", "customer-7", old));
//! assert!(fences.pass("acme", "orders", "customer-7", new), "another owner started it");
//! assert!(!fences.pass("acme", "orders", "customer-7", old), "the old owner's call arrives late");
//! assert!(fences.pass("acme", "orders", "customer-7", new), "the same attempt, sent again");
//! # Ok::<(), redrive_core::ladder::fence::FenceFormatError>(())
//! ```

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

/// The fence of an attempt: `3.17` is the 17th start of the owner with epoch 3.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StartFence {
    /// Grows with every change of owner.
    pub epoch: u64,
    /// Grows with every attempt that the owner starts.
    pub start: u64,
}

impl fmt::Display for StartFence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.epoch, self.start)
    }
}

/// A text that is no fence.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("a fence is two numbers with a dot between them, such as 3.17")]
pub struct FenceFormatError;

impl FromStr for StartFence {
    type Err = FenceFormatError;

    fn from_str(text: &str) -> Result<Self, FenceFormatError> {
        let (epoch, start) = text.split_once('.').ok_or(FenceFormatError)?;
        let number = |digits: &str| {
            let plain = !digits.is_empty() && digits.bytes().all(|digit| digit.is_ascii_digit());
            if plain { digits.parse().ok() } else { None }
        };
        let (epoch, start) = number(epoch).zip(number(start)).ok_or(FenceFormatError)?;
        Ok(Self { epoch, start })
    }
}

/// The largest fence of each key, in memory. A receiver with a database keeps them there, and checks in the transaction
/// of the effect; `docs/guides/ladder.md` has the statement.
#[derive(Debug, Clone, Default)]
pub struct StartFences {
    largest: BTreeMap<(String, String, String), StartFence>,
}

impl StartFences {
    /// Whether a call with this fence may have its effect; remembers it if so. An event without an ordering key is
    /// fenced by its own id.
    pub fn pass(&mut self, tenant: &str, queue: &str, key: &str, fence: StartFence) -> bool {
        let key = (tenant.to_owned(), queue.to_owned(), key.to_owned());
        let largest = self.largest.entry(key).or_insert(fence);
        if fence < *largest {
            return false;
        }
        *largest = fence;
        true
    }

    /// Forgets a key: call it when no earlier attempt of it can be on its way any more.
    pub fn forget(&mut self, tenant: &str, queue: &str, key: &str) {
        self.largest.remove(&(tenant.to_owned(), queue.to_owned(), key.to_owned()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fences_are_read_as_they_are_written_and_compared_as_numbers() {
        let fence = |text: &str| text.parse::<StartFence>();
        assert_eq!(fence("3.17").unwrap().to_string(), "3.17");
        assert!(fence("9.100").unwrap() < fence("10.2").unwrap());
        assert!(fence("9.9").unwrap() < fence("9.10").unwrap());
        for wrong in ["", "3", "3.", ".3", "3.x", "+3.1", "3.1.2", "99999999999999999999.1"] {
            assert_eq!(fence(wrong), Err(FenceFormatError), "{wrong}");
        }
    }
}
