//! Which dead letters died of the same thing.
//!
//! A cause's kind and code say it best. The text says it too, once everything is taken out that differs from
//! letter to letter: numbers, ids, hashes. So `order 17 not found` and `order 18 not found` are one cause.

use std::fmt;

use sha2::{Digest, Sha256};

use crate::event::{Cause, DeadReason, Story};

/// Bytes of a title.
const TITLE_BYTES_MAX: usize = 160;

/// What stands for a number or an id.
const TAKEN_OUT: char = '#';

/// How long a word of hexadecimal letters is at least that is taken for an id.
const HEX_MIN: usize = 8;

/// A cause, as a number: the same for all that died of it, in every process and version.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct CauseId(pub u64);

impl CauseId {
    /// Where there are too many causes to be told apart.
    pub const OTHER: Self = Self(0);

    /// The one that is written like this.
    #[must_use]
    pub fn from_text(text: &str) -> Option<Self> {
        (text.len() == 16).then(|| u64::from_str_radix(text, 16).ok().map(Self))?
    }
}

impl fmt::Display for CauseId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

/// Why an event died, as its last attempt that failed tells it, and in words without numbers and ids.
#[must_use]
pub fn of(reason: DeadReason, story: Option<&Story>) -> (CauseId, String) {
    let cause = story.and_then(|story| story.records().rev().find_map(|record| record.cause.as_ref()));
    let title = title(reason, cause);
    let mut hasher = Sha256::new();
    let (kind, code) =
        cause.map_or(("", ""), |cause| (&cause.kind, cause.code.as_deref().unwrap_or_default()));
    for part in [reason.as_str(), kind, code, &title] {
        hasher.update((part.len() as u64).to_be_bytes());
        hasher.update(part);
    }
    let [a, b, c, d, e, f, g, h, ..]: [u8; 32] = hasher.finalize().into();
    (CauseId(u64::from_be_bytes([a, b, c, d, e, f, g, h]).max(1)), title)
}

fn title(reason: DeadReason, cause: Option<&Cause>) -> String {
    let Some(cause) = cause else { return reason.as_str().to_owned() };
    let mut title = cause.kind.clone();
    if let Some(code) = &cause.code {
        title.push(' ');
        title.push_str(code);
    }
    title.push_str(": ");
    title.push_str(&without_numbers(&cause.message));
    if title.len() > TITLE_BYTES_MAX {
        let end = (0..=TITLE_BYTES_MAX - '…'.len_utf8()).rev().find(|at| title.is_char_boundary(*at));
        title.truncate(end.unwrap_or_default());
        title.push('…');
    }
    title
}

/// A text with a mark in place of each number and id. A word is what letters, digits, `-` and `_` make.
#[must_use]
pub fn without_numbers(text: &str) -> String {
    let is_word = |c: char| c.is_alphanumeric() || c == '-' || c == '_';
    let mut plain = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let end = rest.find(|c| is_word(c) != is_word(first)).unwrap_or(rest.len());
        let (word, after) = rest.split_at(end);
        rest = after;
        if is_word(first) && is_id(word) { plain.push(TAKEN_OUT) } else { plain.push_str(word) }
    }
    plain
}

fn is_id(word: &str) -> bool {
    let hex = word.len() >= HEX_MIN && word.bytes().all(|byte| byte.is_ascii_hexdigit() || byte == b'-');
    hex || word.chars().any(|c| c.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::Record;

    fn story(cause: Cause) -> Story {
        Story::default().with(Record {
            attempt: 1,
            mode: "live".to_owned(),
            at_ms: 0,
            took_ms: 0,
            disposition: "permanent".to_owned(),
            executed: None,
            cause: Some(cause),
            delay_ms: None,
        })
    }

    #[test]
    fn numbers_and_ids_are_taken_out() {
        let texts = [
            ("order 17 not found", "order # not found"),
            ("timeout after 30s at 10.0.0.7:5432", "timeout after # at #.#.#.#:#"),
            ("no row deadbeef-cafe-babe-feed-facefacefeed", "no row #"),
            ("user_8 said »ö«", "# said »ö«"),
            ("added a bad facade", "added a bad facade"),
            ("", ""),
        ];
        for (text, plain) in texts {
            assert_eq!(without_numbers(text), plain);
        }
    }

    #[test]
    fn what_died_of_the_same_has_the_same_cause() {
        let of = |kind: &str, code: &str, text: &str| {
            of(DeadReason::Permanent, Some(&story(Cause::new(kind, text).code(code)))).0
        };
        assert_eq!(of("Http", "404", "order 17 not found"), of("Http", "404", "order 18 not found"));
        assert_ne!(of("Http", "404", "order 17 not found"), of("Http", "410", "order 17 not found"));
        assert_ne!(of("Http", "404", "order 17 not found"), of("Db", "404", "order 17 not found"));
        assert_ne!(of("Http", "404", "order 17 not found"), of("Http", "404", "customer 17 not found"));
    }

    #[test]
    fn a_cause_never_changes_its_number() {
        let cause = Cause::new("Http", "order 17 not found").code("404");
        let (id, title) = of(DeadReason::Permanent, Some(&story(cause)));
        assert_eq!(title, "Http 404: order # not found");
        assert_eq!(CauseId::from_text(&id.to_string()), Some(id));
        assert_eq!(of(DeadReason::KilledProcess, None).1, "killed-process");
    }

    #[test]
    fn a_title_is_short_whatever_the_letters() {
        let (_, title) = of(DeadReason::Permanent, Some(&story(Cause::new("K", "ö".repeat(400)))));
        assert!(title.len() <= TITLE_BYTES_MAX && title.ends_with('…'));
    }
}
