//! Ids for events that are made from other events.
//!
//! A stage that joins, counts or averages makes an event that has no owner to mint its id. A random id would
//! differ at every retry, and the event would exist twice. The id is therefore computed from the inputs, and
//! is the same whenever and wherever the stage runs again.

use std::fmt;

use sha2::{Digest, Sha256};

/// The prefix of every derived id. It names the way in which the id was computed. A new way gets a new
/// number, so that old ids keep their meaning.
const VERSION: &str = "d1-";

/// The identity of an event, accepted wherever an id is expected.
///
/// ```
/// use redrive_core::Event;
/// use redrive_core::event::EventId;
///
/// // A mean over the readings of one minute: the readings' ids, in any order, and which minute of which sensor.
/// let id = EventId::derive(["reading-3", "reading-1", "reading-2"], "mean/sensor-7/12:04");
/// assert_eq!(id, EventId::derive(["reading-1", "reading-2", "reading-3"], "mean/sensor-7/12:04"));
/// let event = Event::new("means", id);
/// assert!(event.id.starts_with("d1-"));
/// ```
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EventId(String);

impl EventId {
    /// The id of an event made from `inputs` in a named window (or stage, or step).
    ///
    /// The inputs are a set: neither their order nor a duplicate changes the id, because a transport that
    /// redelivers may cause both. `window` separates the events that several stages make from the same
    /// inputs, and the several events that one stage makes: `"split/0"`, `"split/1"`.
    ///
    /// The id is `d1-` followed by half a SHA-256 in hexadecimal. The hash covers a fixed word, the window,
    /// the number of inputs, and the inputs sorted by their bytes, each preceded by its length (eight bytes,
    /// big-endian).
    #[must_use]
    pub fn derive<I>(inputs: I, window: &str) -> Self
    where
        I: IntoIterator,
        I::Item: AsRef<str>,
    {
        let mut inputs: Vec<I::Item> = inputs.into_iter().collect();
        inputs.sort_unstable_by(|a, b| a.as_ref().cmp(b.as_ref()));
        inputs.dedup_by(|a, b| a.as_ref() == b.as_ref());

        let mut hasher = Sha256::new();
        let mut part = |part: &[u8]| {
            hasher.update((part.len() as u64).to_be_bytes());
            hasher.update(part);
        };
        part(b"redrive.derived.1");
        part(window.as_bytes());
        part(&(inputs.len() as u64).to_be_bytes());
        inputs.iter().for_each(|input| part(input.as_ref().as_bytes()));

        let hash = hasher.finalize();
        let hex = hash.iter().take(16).map(|byte| format!("{byte:02x}"));
        Self(std::iter::once(VERSION.to_owned()).chain(hex).collect())
    }

    /// The id as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for EventId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl AsRef<str> for EventId {
    fn as_ref(&self) -> &str {
        &self.0
    }
}

impl From<EventId> for String {
    fn from(id: EventId) -> Self {
        id.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A different value would give a new identity to every event that is retried across an update.
    #[test]
    fn a_derived_id_is_the_same_in_every_version() {
        let id = EventId::derive(["reading-2", "reading-1"], "mean/12:04");
        assert_eq!(id.as_str(), "d1-c8b6ff4a2adc3e6e646798ff3e41a0fe");
    }

    #[test]
    fn neither_order_nor_a_second_delivery_changes_it() {
        let id = EventId::derive(["a", "b", "c"], "w");
        assert_eq!(id, EventId::derive(["c", "a", "b"], "w"));
        assert_eq!(id, EventId::derive(["c", "a", "a", "b", "c"], "w"));
    }

    #[test]
    fn whatever_else_differs_does() {
        let ids = [
            EventId::derive(["a", "b"], "w"),
            EventId::derive(["ab"], "w"),
            EventId::derive(["a", "b"], "v"),
            EventId::derive(["a"], "w"),
            EventId::derive(["a", "w"], "b"),
            EventId::derive::<[&str; 0]>([], "w"),
            EventId::derive([""], "w"),
        ];
        for (n, id) in ids.iter().enumerate() {
            assert!(!ids[n + 1..].contains(id), "{ids:?}");
            assert!(crate::Event::new("orders", id.clone()).check().is_ok());
        }
    }
}
