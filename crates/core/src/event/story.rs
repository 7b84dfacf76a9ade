//! What happened to an event: its attempts, the first few and the last several.
//!
//! Bounded, because an event that is retried for a month must not grow for a month. The first attempts show
//! how it began, the last ones how it ended; what was left out between them is counted.

use std::error::Error;
use std::fmt::Write as _;

use crate::disposition::Executed;

/// How many attempts of the beginning are kept.
pub const FIRST_MAX: usize = 4;
/// How many attempts of the end are kept.
pub const LAST_MAX: usize = 12;
/// Bytes of the text of a cause, its chain included.
pub const MESSAGE_BYTES_MAX: usize = 512;

/// The attempts of an event.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(default))]
pub struct Story {
    /// The first attempts.
    pub first: Vec<Record>,
    /// How many were left out between first and last.
    pub left_out: u32,
    /// The last attempts, without those that are in `first`.
    pub last: Vec<Record>,
}

impl Story {
    /// The same with one more attempt.
    #[must_use]
    pub fn with(mut self, record: Record) -> Self {
        if self.first.len() < FIRST_MAX {
            self.first.push(record);
            return self;
        }
        if self.last.len() == LAST_MAX {
            self.last.remove(0);
            self.left_out += 1;
        }
        self.last.push(record);
        self
    }

    /// The same without its last attempt, if it is this one.
    #[must_use]
    pub fn without(mut self, attempt: u32) -> Self {
        let records = if self.last.is_empty() { &mut self.first } else { &mut self.last };
        records.pop_if(|record| record.attempt == attempt);
        self
    }

    /// The attempts that are kept, oldest first.
    pub fn records(&self) -> impl DoubleEndedIterator<Item = &Record> {
        self.first.iter().chain(&self.last)
    }

    /// Whether the effect of some attempt is unknown.
    #[must_use]
    pub fn is_unsure(&self) -> bool {
        self.records().any(|record| record.executed == Some(Executed::Unknown))
    }
}

/// One attempt.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Record {
    /// Which attempt, from 1.
    pub attempt: u32,
    /// Why it ran.
    pub mode: String,
    /// When it began, in milliseconds since the Unix epoch.
    pub at_ms: u64,
    /// How long it took, in milliseconds.
    pub took_ms: u64,
    /// What it said of itself: `ok`, `retry`, `permanent`, `discard`, `unclassified`, `timeout`, `panic`.
    pub disposition: String,
    /// What is known of its effect, where it failed.
    #[cfg_attr(feature = "serde", serde(default, skip_serializing_if = "Option::is_none"))]
    pub executed: Option<Executed>,
    /// What went wrong.
    #[cfg_attr(feature = "serde", serde(default, skip_serializing_if = "Option::is_none"))]
    pub cause: Option<Cause>,
    /// The wait that was chosen after it, in milliseconds.
    #[cfg_attr(feature = "serde", serde(default, skip_serializing_if = "Option::is_none"))]
    pub delay_ms: Option<u64>,
}

/// Why an attempt failed.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Cause {
    /// What kind of error, so that like ones can be found: by default the type's name.
    pub kind: String,
    /// The other side's code: an HTTP status, a SQLSTATE.
    #[cfg_attr(feature = "serde", serde(default, skip_serializing_if = "Option::is_none"))]
    pub code: Option<String>,
    /// The error and its sources, outermost first, at most [`MESSAGE_BYTES_MAX`] bytes.
    pub message: String,
}

impl Cause {
    /// A cause of this kind that says this.
    #[must_use]
    pub fn new(kind: impl Into<String>, message: impl Into<String>) -> Self {
        let mut message = message.into();
        shorten(&mut message);
        Self { kind: kind.into(), code: None, message }
    }

    /// The cause that an error is, with its sources.
    #[must_use]
    pub fn of<E: Error + ?Sized>(error: &E) -> Self {
        let mut message = error.to_string();
        let mut source = error.source();
        while let Some(inner) = source {
            let text = inner.to_string();
            // Many errors print their source already.
            if !message.ends_with(&text) {
                let _ = write!(message, ": {text}");
            }
            if message.len() > MESSAGE_BYTES_MAX {
                break;
            }
            source = inner.source();
        }
        Self::new(short_type_name::<E>(), message)
    }

    /// The same with a code.
    #[must_use]
    pub fn code(mut self, code: impl Into<String>) -> Self {
        self.code = Some(code.into());
        self
    }
}

/// The name of a type without the paths before it.
fn short_type_name<E: ?Sized>() -> String {
    let name = std::any::type_name::<E>();
    let head = name.split('<').next().unwrap_or(name);
    head.rsplit("::").next().unwrap_or(head).to_owned()
}

fn shorten(text: &mut String) {
    if text.len() <= MESSAGE_BYTES_MAX {
        return;
    }
    let mut end = MESSAGE_BYTES_MAX - '…'.len_utf8();
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text.truncate(end);
    text.push('…');
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(attempt: u32) -> Record {
        Record {
            attempt,
            mode: "retry".to_owned(),
            at_ms: 0,
            took_ms: 0,
            disposition: "retry".to_owned(),
            executed: Some(Executed::No),
            cause: None,
            delay_ms: None,
        }
    }

    #[test]
    fn a_long_story_keeps_its_beginning_and_its_end() {
        let story = (1..=100).fold(Story::default(), |story, n| story.with(record(n)));
        let kept: Vec<_> = story.records().map(|record| record.attempt).collect();
        assert_eq!(kept[..4], [1, 2, 3, 4]);
        assert_eq!(kept[4..], (89..=100).collect::<Vec<_>>());
        assert_eq!(story.left_out, 84);
    }

    #[test]
    fn a_cause_has_its_sources_and_a_bound() {
        #[derive(Debug, thiserror::Error)]
        #[error("cannot charge")]
        struct Charge(#[source] std::io::Error);

        let cause = Cause::of(&Charge(std::io::Error::other("refused")));
        assert_eq!(cause, Cause::new("Charge", "cannot charge: refused"));
        let long = Cause::new("Long", "ö".repeat(1000));
        assert!(long.message.len() <= MESSAGE_BYTES_MAX && long.message.ends_with('…'));
    }
}
