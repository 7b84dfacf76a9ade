//! The ledger's headers in a response.

use std::time::SystemTime;

use http::HeaderMap;
use redrive_core::names::header;

/// The status of a request in the server's ledger. Absent or unreadable headers are `None`.
///
/// ```
/// use redrive_http::ledger_status::{RecordStatus, LedgerStatus};
///
/// let mut headers = http::HeaderMap::new();
/// headers.insert("idempotency-status", "resumed".parse().unwrap());
/// headers.insert("idempotency-attempt", "2".parse().unwrap());
/// let status = LedgerStatus::of(&headers);
/// assert_eq!((status.record, status.attempt), (Some(RecordStatus::Resumed), Some(2)));
/// assert!(!status.replayed);
/// ```
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct LedgerStatus {
    /// How the ledger handled this request.
    pub record: Option<RecordStatus>,
    /// Whether the answer is the first one's, again.
    pub replayed: bool,
    /// The number of attempts, if more than one.
    pub attempt: Option<u32>,
    /// Until when the answer is replayed.
    pub expires: Option<SystemTime>,
    /// When the request first came; of a replay.
    pub first_received: Option<SystemTime>,
    /// Whether the server waited for the first one's end, as it was asked to.
    pub waited: bool,
}

/// How the ledger handled a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum RecordStatus {
    /// It ran, and its answer is kept.
    Created,
    /// It ran once more, after a run that did not end, and its answer is kept.
    Resumed,
    /// It has no key.
    None,
    /// The request ran although the ledger was down; there is no record.
    Bypassed,
    /// It ran, and its answer could not be kept.
    Unrecorded,
}

impl LedgerStatus {
    /// What these headers say.
    #[must_use]
    pub fn of(headers: &HeaderMap) -> Self {
        let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok()).map(str::trim);
        let date = |name: &str| text(name).and_then(|date| httpdate::parse_http_date(date).ok());
        let applied = headers.get_all(header::PREFERENCE_APPLIED).iter();
        Self {
            record: text(header::IDEMPOTENCY_STATUS).and_then(RecordStatus::named),
            replayed: is_replayed(headers),
            attempt: text(header::IDEMPOTENCY_ATTEMPT).and_then(|number| number.parse().ok()),
            expires: date(header::IDEMPOTENCY_EXPIRES),
            first_received: date(header::IDEMPOTENCY_FIRST_RECEIVED),
            waited: applied.filter_map(|value| value.to_str().ok()).any(names_wait),
        }
    }
}

impl RecordStatus {
    fn named(word: &str) -> Option<Self> {
        Some(match word {
            "created" => Self::Created,
            "resumed" => Self::Resumed,
            "none" => Self::None,
            "bypassed" => Self::Bypassed,
            "unrecorded" => Self::Unrecorded,
            _ => return None,
        })
    }
}

/// Whether a response is a replay: the next one will be the same.
pub(crate) fn is_replayed(headers: &HeaderMap) -> bool {
    headers.get(header::IDEMPOTENT_REPLAYED).is_some_and(|value| value.as_bytes().trim_ascii() == b"true")
}

fn names_wait(applied: &str) -> bool {
    applied.split(',').any(|word| word.split('=').next().is_some_and(|name| name.trim() == "wait"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_read_was_not_said() {
        for (name, value) in [
            (header::IDEMPOTENCY_STATUS, "perhaps"),
            (header::IDEMPOTENCY_ATTEMPT, "-1"),
            (header::IDEMPOTENCY_EXPIRES, "tomorrow"),
            (header::IDEMPOTENT_REPLAYED, "maybe"),
            (header::IDEMPOTENT_REPLAYED, "false"),
            (header::PREFERENCE_APPLIED, "respond-async"),
        ] {
            let mut headers = HeaderMap::new();
            headers.insert(name, value.parse().unwrap());
            assert_eq!(LedgerStatus::of(&headers), LedgerStatus::default(), "{name}: {value}");
        }
    }

    #[test]
    fn a_replay_says_when_it_first_came_and_until_when_it_is_kept() {
        let mut headers = HeaderMap::new();
        headers.insert(header::IDEMPOTENT_REPLAYED, "true".parse().unwrap());
        headers.insert(header::IDEMPOTENCY_EXPIRES, "Sun, 06 Nov 1994 08:49:37 GMT".parse().unwrap());
        headers.insert(header::IDEMPOTENCY_FIRST_RECEIVED, "Sat, 05 Nov 1994 08:49:37 GMT".parse().unwrap());
        headers.insert(header::PREFERENCE_APPLIED, "respond-async, wait=5".parse().unwrap());
        let status = LedgerStatus::of(&headers);
        assert!(status.replayed && status.waited);
        let kept = status.expires.unwrap().duration_since(status.first_received.unwrap());
        assert_eq!(kept.unwrap().as_secs(), 86_400);
    }
}
