//! Groups dead letters by cause.
//!
//! A cause's kind and code identify it best. Its message does too, once the parts that differ between dead
//! letters are removed: numbers, ids, hashes. `order 17 not found` and `order 18 not found` are then one
//! cause.

use std::fmt;

use sha2::{Digest, Sha256};

use crate::event::{AttemptHistory, Cause, DeadReason};

/// The most bytes of a title.
const TITLE_BYTES_MAX: usize = 160;

/// The placeholder for a number or an id.
const TAKEN_OUT: char = '#';

/// The word for events that failed and are retried; dead letters have their reason instead.
const RETRYING: &str = "retrying";

/// The shortest word of hexadecimal digits that counts as an id.
const HEX_MIN: usize = 8;

/// A cause as a number: the same in every process and version.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct CauseId(pub u64);

impl CauseId {
    /// Used if there are too many causes to tell apart.
    pub const OTHER: Self = Self(0);

    /// Parses its text form.
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

/// The cause of a dead letter, from its last failed attempt, and its title without numbers and ids.
#[must_use]
pub fn of(reason: DeadReason, history: Option<&AttemptHistory>) -> (CauseId, String) {
    told(reason.as_str(), last_cause(history))
}

/// The cause of a retrying event's last failure, and its title without numbers and ids. The number differs
/// from that of dead letters with the same title: one is retried by itself, the other is not.
#[must_use]
pub fn of_failing(history: Option<&AttemptHistory>) -> (CauseId, String) {
    told(RETRYING, last_cause(history))
}

fn last_cause(history: Option<&AttemptHistory>) -> Option<&Cause> {
    history.and_then(|history| history.records().rev().find_map(|record| record.cause.as_ref()))
}

/// The number and the title of a cause; the word separates dead letters from retrying events.
fn told(word: &str, cause: Option<&Cause>) -> (CauseId, String) {
    let title = title(word, cause);
    let mut hasher = Sha256::new();
    let (kind, code) =
        cause.map_or(("", ""), |cause| (&cause.kind, cause.code.as_deref().unwrap_or_default()));
    for part in [word, kind, code, &title] {
        hasher.update((part.len() as u64).to_be_bytes());
        hasher.update(part);
    }
    let [a, b, c, d, e, f, g, h, ..]: [u8; 32] = hasher.finalize().into();
    (CauseId(u64::from_be_bytes([a, b, c, d, e, f, g, h]).max(1)), title)
}

fn title(word: &str, cause: Option<&Cause>) -> String {
    let Some(cause) = cause else { return word.to_owned() };
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

/// The text with a placeholder for each number and id. A word consists of letters, digits, `-` and `_`.
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
    use crate::event::AttemptRecord;

    fn history(cause: Cause) -> AttemptHistory {
        AttemptHistory::default().with(AttemptRecord {
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
            of(DeadReason::Permanent, Some(&history(Cause::new(kind, text).code(code)))).0
        };
        assert_eq!(of("Http", "404", "order 17 not found"), of("Http", "404", "order 18 not found"));
        assert_ne!(of("Http", "404", "order 17 not found"), of("Http", "410", "order 17 not found"));
        assert_ne!(of("Http", "404", "order 17 not found"), of("Db", "404", "order 17 not found"));
        assert_ne!(of("Http", "404", "order 17 not found"), of("Http", "404", "customer 17 not found"));
    }

    #[test]
    fn what_is_retried_has_another_number_than_what_died_of_the_same() {
        let history = history(Cause::new("Http", "order 17 not found").code("404"));
        let (dead, failing) = (of(DeadReason::Permanent, Some(&history)), of_failing(Some(&history)));
        assert_eq!(dead.1, failing.1);
        assert_ne!(dead.0, failing.0);
        assert_eq!(of_failing(None).1, "retrying");
    }

    #[test]
    fn a_cause_never_changes_its_number() {
        let cause = Cause::new("Http", "order 17 not found").code("404");
        let (id, title) = of(DeadReason::Permanent, Some(&history(cause)));
        assert_eq!(title, "Http 404: order # not found");
        assert_eq!(CauseId::from_text(&id.to_string()), Some(id));
        assert_eq!(of(DeadReason::KilledProcess, None).1, "killed-process");
    }

    #[test]
    fn a_title_is_short_whatever_the_letters() {
        let (_, title) = of(DeadReason::Permanent, Some(&history(Cause::new("K", "ö".repeat(400)))));
        assert!(title.len() <= TITLE_BYTES_MAX && title.ends_with('…'));
    }
}
