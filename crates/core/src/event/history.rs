//! The attempt history of an event: its first and its last attempts.
//!
//! The history is bounded, because an event that is retried for a month must not grow for a month. The first
//! attempts show how the failure began, the last ones how it ended; the attempts between them are counted.

use std::error::Error;
use std::fmt::Write as _;

use crate::disposition::Executed;

/// How many of the first attempts are kept.
pub const FIRST_MAX: usize = 4;
/// How many of the last attempts are kept.
pub const LAST_MAX: usize = 12;
/// The most bytes of a cause's message, including the chain of its sources.
pub const MESSAGE_BYTES_MAX: usize = 512;

/// The attempt history of an event.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(default))]
pub struct AttemptHistory {
    /// The first attempts.
    pub first: Vec<AttemptRecord>,
    /// How many attempts between `first` and `last` were left out.
    pub left_out: u32,
    /// The last attempts, except those in `first`.
    pub last: Vec<AttemptRecord>,
}

impl AttemptHistory {
    /// The history with one more attempt.
    #[must_use]
    pub fn with(mut self, record: AttemptRecord) -> Self {
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

    /// The history without its last attempt, if that is `attempt`.
    #[must_use]
    pub fn without(mut self, attempt: u32) -> Self {
        let records = if self.last.is_empty() { &mut self.first } else { &mut self.last };
        records.pop_if(|record| record.attempt == attempt);
        self
    }

    /// The kept attempts, oldest first.
    pub fn records(&self) -> impl DoubleEndedIterator<Item = &AttemptRecord> {
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
pub struct AttemptRecord {
    /// The number of the attempt, from 1.
    pub attempt: u32,
    /// Why it ran.
    pub mode: String,
    /// When it began, in milliseconds since the Unix epoch.
    pub at_ms: u64,
    /// How long it took, in milliseconds.
    pub took_ms: u64,
    /// The disposition it ended with: `ok`, `retry`, `permanent`, `drop`, `unclassified`, `timeout`,
    /// `panic`.
    pub disposition: String,
    /// Whether it had its effect, if it failed.
    #[cfg_attr(feature = "serde", serde(default, skip_serializing_if = "Option::is_none"))]
    pub executed: Option<Executed>,
    /// Why it failed.
    #[cfg_attr(feature = "serde", serde(default, skip_serializing_if = "Option::is_none"))]
    pub cause: Option<Cause>,
    /// The wait chosen after it, in milliseconds.
    #[cfg_attr(feature = "serde", serde(default, skip_serializing_if = "Option::is_none"))]
    pub delay_ms: Option<u64>,
}

/// Why an attempt failed.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Cause {
    /// The kind of error, to group similar ones: by default the name of the error's type.
    pub kind: String,
    /// The downstream's code: an HTTP status, a SQLSTATE.
    #[cfg_attr(feature = "serde", serde(default, skip_serializing_if = "Option::is_none"))]
    pub code: Option<String>,
    /// The error and its sources, outermost first, at most [`MESSAGE_BYTES_MAX`] bytes.
    pub message: String,
}

impl Cause {
    /// A cause of this kind with this message.
    #[must_use]
    pub fn new(kind: impl Into<String>, message: impl Into<String>) -> Self {
        let mut message = message.into();
        shorten(&mut message);
        Self { kind: kind.into(), code: None, message }
    }

    /// The cause for an error, including its sources.
    #[must_use]
    pub fn of<E: Error + ?Sized>(error: &E) -> Self {
        let mut message = error.to_string();
        let mut source = error.source();
        while let Some(inner) = source {
            let text = inner.to_string();
            // Many errors already print their source.
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

    /// The cause with a code.
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

    fn record(attempt: u32) -> AttemptRecord {
        AttemptRecord {
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
        let history = (1..=100).fold(AttemptHistory::default(), |history, n| history.with(record(n)));
        let kept: Vec<_> = history.records().map(|record| record.attempt).collect();
        assert_eq!(kept[..4], [1, 2, 3, 4]);
        assert_eq!(kept[4..], (89..=100).collect::<Vec<_>>());
        assert_eq!(history.left_out, 84);
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
