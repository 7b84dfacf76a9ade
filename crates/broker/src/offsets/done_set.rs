//! The done-set: which offsets above the low mark are done, as text for the metadata of a commit.
//!
//! ```text
//!   rd1.<assignment>.<number>.<runs>.<checksum>
//! ```
//!
//! `runs` are lengths, turn by turn: not done, done, not done, …, from the low mark on, each as a variable-length number,
//! together in base64. `(assignment, number)` names the commit, so that one with an unknown outcome is recognised when
//! the metadata is read again. The checksum (CRC-32) tells damage: damaged or foreign metadata counts as an empty set, so
//! some messages run again, instead of some being skipped.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD as BASE64;

use crate::planted::{BrokerBug, has};

/// The most bytes of metadata that a Kafka broker accepts by default (`offset.metadata.max.bytes`).
pub const METADATA_BYTES_MAX: usize = 4_096;
/// Above this share of the bound, a partition delivers nothing new. What is running still fits then.
const PRESSURE_PERCENT: usize = 75;
const MAGIC: &str = "rd1";

/// Offsets that are done, as disjoint ranges in order, and the commit that said so.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct DoneSet {
    /// Which assignment of the partition made the commit: a random number.
    pub assignment: u64,
    /// The number of the commit within that assignment.
    pub number: u64,
    /// The ranges, each `start..end`.
    pub ranges: Vec<(i64, i64)>,
}

/// What a commit's metadata turned out to be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DoneSetRead {
    /// There was none.
    Absent,
    /// A done-set.
    Found(DoneSet),
    /// The metadata is damaged, or another program's: it counts as an empty set.
    Unreadable,
}

impl DoneSet {
    /// The text for a commit at `low`.
    #[must_use]
    pub fn encode(&self, low: i64) -> String {
        let mut runs = Vec::new();
        let mut at = low;
        for (start, end) in &self.ranges {
            put(&mut runs, start.saturating_sub(at));
            put(&mut runs, end.saturating_sub(*start));
            at = *end;
        }
        let body = format!("{MAGIC}.{:x}.{:x}.{}", self.assignment, self.number, BASE64.encode(&runs));
        let sum = checksum(low, &body);
        format!("{body}.{sum:08x}")
    }

    /// Reads the metadata of a commit at `low`.
    #[must_use]
    pub fn decode(low: i64, text: &str) -> DoneSetRead {
        if text.is_empty() {
            return DoneSetRead::Absent;
        }
        Self::decode_body(low, text).map_or(DoneSetRead::Unreadable, DoneSetRead::Found)
    }

    fn decode_body(low: i64, text: &str) -> Option<Self> {
        let (body, sum) = text.rsplit_once('.')?;
        if u32::from_str_radix(sum, 16).ok()? != checksum(low, body) && !has(BrokerBug::DamagedIsTrusted) {
            return None;
        }
        let mut parts = body.split('.');
        if parts.next()? != MAGIC {
            return None;
        }
        let mut hex = || u64::from_str_radix(parts.next()?, 16).ok();
        let (assignment, number) = (hex()?, hex()?);
        let bytes = BASE64.decode(parts.next()?).ok()?;
        let mut bytes = bytes.as_slice();
        let mut ranges = Vec::new();
        let mut at = low;
        while !bytes.is_empty() {
            let start = at.checked_add(take(&mut bytes)?)?;
            let end = start.checked_add(take(&mut bytes)?)?;
            if end <= start {
                return None;
            }
            ranges.push((start, end));
            at = end;
        }
        Some(Self { assignment, number, ranges })
    }

    /// Whether an offset is done.
    #[must_use]
    pub fn contains(&self, offset: i64) -> bool {
        let after = self.ranges.partition_point(|(start, _)| *start <= offset);
        after > 0 && self.ranges[after - 1].1 > offset
    }

    /// Whether a text of this length is so near the bound that nothing new may be started.
    #[must_use]
    pub const fn is_pressing(length: usize, max: usize) -> bool {
        length * 100 > max * PRESSURE_PERCENT
    }
}

/// The low mark is part of the sum: a done-set belongs to its offset.
fn checksum(low: i64, body: &str) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(&low.to_be_bytes());
    hasher.update(body.as_bytes());
    hasher.finalize()
}

/// Adds a number, seven bits a byte, lowest first.
fn put(bytes: &mut Vec<u8>, number: i64) {
    let mut number = number.max(0).cast_unsigned();
    while number >= 0x80 {
        bytes.push(u8::try_from(number & 0x7f).unwrap_or_default() | 0x80);
        number >>= 7;
    }
    bytes.push(u8::try_from(number).unwrap_or_default());
}

fn take(bytes: &mut &[u8]) -> Option<i64> {
    let mut number = 0_u64;
    for shift in (0..63).step_by(7) {
        let (first, rest) = bytes.split_first()?;
        *bytes = rest;
        number |= u64::from(first & 0x7f) << shift;
        if first & 0x80 == 0 {
            return i64::try_from(number).ok();
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_done_set_comes_back_as_it_was() {
        let set = DoneSet { assignment: 7, number: 3, ranges: vec![(101, 105), (110, 111), (500, 90_000)] };
        let text = set.encode(100);
        assert_eq!(DoneSet::decode(100, &text), DoneSetRead::Found(set.clone()));
        let done: Vec<i64> = (95..115).filter(|offset| set.contains(*offset)).collect();
        assert_eq!(done, [101, 102, 103, 104, 110]);
        assert_eq!(DoneSet::decode(100, ""), DoneSetRead::Absent);
    }

    #[test]
    fn foreign_and_damaged_metadata_is_an_empty_set() {
        let text = DoneSet { ranges: vec![(5, 9)], ..DoneSet::default() }.encode(4);
        let damaged = |text: &str| assert_eq!(DoneSet::decode(4, text), DoneSetRead::Unreadable, "{text}");
        for foreign in ["consumer-1-uuid", "bf9,AAAA", "rd1", "rd1.0.0..", "rd1.0.0.!!.00000000", "…"] {
            damaged(foreign);
        }
        // At another offset it says nothing.
        assert_eq!(DoneSet::decode(5, &text), DoneSetRead::Unreadable);
        for at in 0..text.len() {
            let mut bytes = text.clone().into_bytes();
            bytes[at] = if bytes[at] == b'A' { b'B' } else { b'A' };
            damaged(std::str::from_utf8(&bytes).expect("text"));
            // Without any text there is no metadata.
            if at > 0 {
                damaged(&text[..at]);
            }
        }
    }

    proptest! {
        #[test]
        fn any_text_is_read_without_a_panic(low in any::<i64>(), text in ".{0,80}") {
            let _ = DoneSet::decode(low, &text);
            let _ = DoneSet::decode(low, &format!("rd1.{text}"));
        }

        #[test]
        fn any_ranges_come_back(low in 0_i64..1 << 40, steps in prop::collection::vec((0_i64..5_000, 1_i64..5_000), 0..200)) {
            let mut at = low;
            let ranges = steps.into_iter().map(|(gap, length)| {
                let start = at + gap;
                at = start + length;
                (start, at)
            }).collect();
            let set = DoneSet { assignment: 1 << 60, number: 9, ranges };
            prop_assert_eq!(DoneSet::decode(low, &set.encode(low)), DoneSetRead::Found(set));
        }
    }
}
