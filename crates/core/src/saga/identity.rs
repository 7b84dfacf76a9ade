//! The identity of a step's event.

use sha2::{Digest, Sha256};

/// Which way a step goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Direction {
    /// The action.
    Forward,
    /// Its compensation.
    Compensation,
}

impl Direction {
    /// The word used in identities and records.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Forward => "forward",
            Self::Compensation => "compensation",
        }
    }
}

/// The id of a step's event: `s1-` and half a SHA-256 in hexadecimal over tenant, saga, id, direction and step, each
/// preceded by its length. The compensation carries the forward id as well, so that its receiver refuses a forward step
/// that comes late.
///
/// ```
/// use redrive_core::saga::{Direction, step_id};
///
/// let charge = step_id("acme", "order", "17", Direction::Forward, "payment");
/// assert_ne!(charge, step_id("acme", "order", "17", Direction::Compensation, "payment"));
/// assert_ne!(step_id("a", "bc", "", Direction::Forward, "x"), step_id("ab", "c", "", Direction::Forward, "x"));
/// ```
#[must_use]
pub fn step_id(tenant: &str, saga: &str, id: &str, direction: Direction, step: &str) -> String {
    let hash = hash([tenant, saga, id, direction.as_str(), step]);
    let digits: String = hash[..16].iter().map(|byte| format!("{byte:02x}")).collect();
    format!("s1-{digits}")
}

/// SHA-256 over length-prefixed parts.
pub(super) fn hash<'a>(parts: impl IntoIterator<Item = &'a str>) -> [u8; 32] {
    let mut hasher = Sha256::new();
    for part in parts {
        hasher.update((part.len() as u64).to_be_bytes());
        hasher.update(part);
    }
    hasher.finalize().into()
}
