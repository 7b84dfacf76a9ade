//! A message as the broker keeps it: bytes.
//!
//! Nothing is decoded here. A body that a handler cannot decode is a dead letter with its original bytes, never an error
//! of the source.

use std::fmt;
use std::sync::Arc;

use redrive_core::Moment;

/// A message: optional key, optional body, headers.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Message {
    /// The ordering key. A message without one has no order.
    pub key: Option<Vec<u8>>,
    /// The body; `None` is a tombstone in a compacted Kafka topic.
    pub body: Option<Vec<u8>>,
    /// The headers.
    pub headers: Headers,
    /// When the broker or the producer stamped it.
    pub timestamp: Option<Moment>,
}

impl Message {
    /// A message with this body.
    pub fn new(body: impl Into<Vec<u8>>) -> Self {
        Self { body: Some(body.into()), ..Self::default() }
    }

    /// Sets the ordering key.
    #[must_use]
    pub fn key(mut self, key: impl Into<Vec<u8>>) -> Self {
        self.key = Some(key.into());
        self
    }

    /// Sets a header.
    #[must_use]
    pub fn header(mut self, name: &str, value: impl Into<Vec<u8>>) -> Self {
        self.headers.set(name, value);
        self
    }

    /// The bytes that it takes in a broker: key, body, headers, and the lengths in between.
    #[must_use]
    pub fn size(&self) -> usize {
        /// Offsets, lengths and checksums around a record, rounded up.
        const FRAME: usize = 100;
        let len = |part: &Option<Vec<u8>>| part.as_ref().map_or(0, Vec::len);
        len(&self.key) + len(&self.body) + self.headers.size() + FRAME
    }
}

/// The headers of a message, in order. A name is there at most once if only [`set`](Self::set) was used; brokers accept
/// repeated names, and then the last one counts.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Headers(Vec<(String, Option<Vec<u8>>)>);

impl Headers {
    /// The value of a header. Names are compared without case.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&[u8]> {
        let last = self.0.iter().rev().find(|(known, _)| known.eq_ignore_ascii_case(name));
        last.and_then(|(_, value)| value.as_deref())
    }

    /// The value of a header, if it is text.
    #[must_use]
    pub fn text(&self, name: &str) -> Option<&str> {
        self.get(name).and_then(|value| std::str::from_utf8(value).ok())
    }

    /// Replaces a header: the old values are gone, so that headers do not grow from hop to hop.
    pub fn set(&mut self, name: &str, value: impl Into<Vec<u8>>) {
        self.remove(name);
        self.0.push((name.to_owned(), Some(value.into())));
    }

    /// Removes every value of a header.
    pub fn remove(&mut self, name: &str) {
        self.0.retain(|(known, _)| !known.eq_ignore_ascii_case(name));
    }

    /// Adds a header as a broker delivers it, also if the name is there already.
    pub fn push(&mut self, name: impl Into<String>, value: Option<Vec<u8>>) {
        self.0.push((name.into(), value));
    }

    /// All headers, in order.
    pub fn iter(&self) -> impl Iterator<Item = (&str, Option<&[u8]>)> {
        self.0.iter().map(|(name, value)| (name.as_str(), value.as_deref()))
    }

    /// How often a name is there.
    #[must_use]
    pub fn count(&self, name: &str) -> usize {
        self.0.iter().filter(|(known, _)| known.eq_ignore_ascii_case(name)).count()
    }

    /// Bytes of names and values.
    #[must_use]
    pub fn size(&self) -> usize {
        self.0.iter().map(|(name, value)| name.len() + value.as_ref().map_or(0, Vec::len) + 4).sum()
    }
}

/// A partition of a topic, or a whole queue of a broker that has no partitions.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Partition {
    /// The topic or queue.
    pub topic: Arc<str>,
    /// The number of the partition; 0 without partitions.
    pub number: i32,
}

impl Partition {
    /// Partition `number` of `topic`.
    pub fn new(topic: impl Into<Arc<str>>, number: i32) -> Self {
        Self { topic: topic.into(), number }
    }
}

impl fmt::Display for Partition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.topic, self.number)
    }
}

impl fmt::Debug for Partition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

/// A message to publish.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outgoing {
    /// The topic or queue.
    pub topic: Arc<str>,
    /// The partition; `None` leaves the choice to the broker's client, by key.
    pub partition: Option<i32>,
    /// The message.
    pub message: Message,
}

impl Outgoing {
    /// A message for a topic.
    pub fn new(topic: impl Into<Arc<str>>, message: Message) -> Self {
        Self { topic: topic.into(), partition: None, message }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_that_is_set_again_is_there_once() {
        let mut headers = Headers::default();
        headers.push("A", Some(b"1".to_vec()));
        headers.push("a", Some(b"2".to_vec()));
        assert_eq!((headers.get("A"), headers.count("a")), (Some(&b"2"[..]), 2));
        headers.set("a", *b"3");
        assert_eq!((headers.text("A"), headers.count("A")), (Some("3"), 1));
        headers.remove("A");
        assert_eq!(headers, Headers::default());
    }
}
