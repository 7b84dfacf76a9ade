//! The headers that travel with a message from attempt to attempt.
//!
//! They are replaced and never appended, so a message does not grow from hop to hop. Headers of Spring Kafka, Kafka
//! Connect, Kafka Streams and others are read, so that their retries and dead letters keep their attempt and cause
//! ([`foreign`]). A counter that cannot be read counts as none; one that is absurdly large is clamped.

use std::time::{Duration, SystemTime};

use redrive_core::Moment;
use redrive_core::event::bounds::ID_BYTES_MAX;
use redrive_core::event::history::MESSAGE_BYTES_MAX;
use redrive_core::event::{Cause, Mode};
use redrive_core::names::header;
use sha2::{Digest, Sha256};

use crate::message::{Headers, Message, Partition};
use crate::planted::{BrokerBug, has};

pub mod foreign;

/// The largest attempt number that is believed.
pub const ATTEMPTS_MAX: u32 = 1_000_000;
/// The most bytes of one text that is copied into a header.
const TEXT_BYTES_MAX: usize = MESSAGE_BYTES_MAX;

/// What the headers of a message say.
#[derive(Debug, Clone, PartialEq)]
pub struct Metadata {
    /// The identity of the message; the same for all deliveries and attempts.
    pub id: String,
    /// Attempts made so far.
    pub attempts: u32,
    /// Why the next attempt runs.
    pub mode: Mode,
    /// When a consumer first saw it.
    pub first_seen: Moment,
    /// Where it first came from: `topic/partition/offset`.
    pub origin: String,
    /// The consumer group that retries it.
    pub group: Option<String>,
    /// The wait that was chosen before this attempt.
    pub delay: Duration,
    /// When this attempt is due.
    pub due: Option<Moment>,
    /// After this moment no attempt makes sense.
    pub deadline: Option<Moment>,
}

impl Metadata {
    /// Reads the headers of a message that was received from `partition` at `position`.
    #[must_use]
    pub fn read(message: &Message, partition: &Partition, position: i64, now: Moment) -> Self {
        let headers = &message.headers;
        let attempt = foreign::attempt(headers);
        let attempts = attempt.saturating_sub(1);
        let mode = headers.text(header::MODE).and_then(Mode::from_word);
        Self {
            id: identity(headers, partition, position, now),
            attempts,
            mode: mode.unwrap_or(if attempts > 0 { Mode::Retry } else { Mode::Live }),
            first_seen: foreign::first_seen(headers).unwrap_or(now),
            origin: foreign::origin(headers).unwrap_or_else(|| format!("{partition}/{position}")),
            group: headers.text(header::GROUP).map(str::to_owned),
            delay: foreign::delay(headers),
            due: foreign::due(headers),
            deadline: headers.text(header::DEADLINE).and_then(parse_time),
        }
    }

    /// The headers of a message that waits for its next attempt.
    #[must_use]
    pub fn retry_headers(&self, headers: &Headers, attempts: u32, delay: Duration, due: Moment) -> Headers {
        let mut headers = self.common_headers(headers);
        put(&mut headers, header::ATTEMPT, attempts.saturating_add(1).to_string());
        put(&mut headers, header::MODE, Mode::Retry.as_str());
        put(&mut headers, header::NEXT_DELAY_MS, delay.as_millis().to_string());
        put(&mut headers, header::DUE, format_time(due));
        for name in DEAD_HEADERS {
            headers.remove(name);
        }
        headers
    }

    /// The headers of a dead letter.
    #[must_use]
    pub fn dead_headers(
        &self,
        headers: &Headers,
        attempts: u32,
        reason: &str,
        cause: Option<&Cause>,
    ) -> Headers {
        let mut headers = self.common_headers(headers);
        put(&mut headers, header::DEAD_REASON, reason);
        put(&mut headers, header::DEAD_ATTEMPTS, attempts.to_string());
        put(&mut headers, header::ATTEMPT, attempts.to_string());
        put(&mut headers, header::DEAD_KIND, cause.map_or(String::new(), |cause| cause.kind.clone()));
        put(&mut headers, header::DEAD_MESSAGE, cause.map_or(String::new(), |cause| cause.message.clone()));
        for name in [header::DUE, header::NEXT_DELAY_MS] {
            headers.remove(name);
        }
        headers
    }

    /// The headers of a dead letter that is put back: it starts anew, under its own identity.
    #[must_use]
    pub fn redrive_headers(&self, headers: &Headers, now: Moment) -> Headers {
        let again = Self { first_seen: now, ..self.clone() };
        let mut headers = again.common_headers(headers);
        put(&mut headers, header::ATTEMPT, "1");
        put(&mut headers, header::MODE, Mode::Redrive.as_str());
        for name in DEAD_HEADERS.iter().chain(&[header::DUE, header::NEXT_DELAY_MS]) {
            headers.remove(name);
        }
        headers
    }

    fn common_headers(&self, headers: &Headers) -> Headers {
        let mut headers = headers.clone();
        foreign::remove(&mut headers);
        put(&mut headers, header::ID, self.id.as_str());
        put(&mut headers, header::ORIGIN, self.origin.as_str());
        put(&mut headers, header::FIRST_SEEN, format_time(self.first_seen));
        if let Some(group) = &self.group {
            put(&mut headers, header::GROUP, group.as_str());
        }
        headers
    }
}

/// Why a message died, as its headers say.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct DeadCause {
    /// The reason, a word.
    pub reason: String,
    /// The kind of error.
    pub kind: String,
    /// Its message.
    pub message: String,
    /// Attempts made.
    pub attempts: u32,
}

impl DeadCause {
    /// Reads the headers of a dead letter, of Redrive or of another program.
    #[must_use]
    pub fn read(headers: &Headers) -> Self {
        foreign::dead_cause(headers)
    }
}

/// The headers that only a dead letter has.
const DEAD_HEADERS: [&str; 4] =
    [header::DEAD_REASON, header::DEAD_KIND, header::DEAD_MESSAGE, header::DEAD_ATTEMPTS];

fn put(headers: &mut Headers, name: &str, value: impl AsRef<str>) {
    let value = cut(value.as_ref(), TEXT_BYTES_MAX);
    if has(BrokerBug::HeadersAppended) {
        headers.push(name, Some(value.as_bytes().to_vec()));
    } else {
        headers.set(name, value);
    }
}

/// The first `max` bytes of a text, at a boundary of characters.
fn cut(text: &str, max: usize) -> &str {
    if text.len() <= max {
        return text;
    }
    let end = (0..=max).rev().find(|end| text.is_char_boundary(*end)).unwrap_or(0);
    &text[..end]
}

/// The identity: as the producer gave it, else the place of the message, which does not change.
fn identity(headers: &Headers, partition: &Partition, position: i64, now: Moment) -> String {
    if has(BrokerBug::IdentityRenewed) {
        return format!("{partition}/{position}@{}", now.as_nanos());
    }
    let given = [header::ID, "ce_id", "ce-id", header::WEBHOOK_ID, "nats-msg-id"];
    let given = given.into_iter().find_map(|name| headers.text(name)).filter(|id| !id.trim().is_empty());
    let id = given.map_or_else(|| format!("{partition}/{position}"), str::to_owned);
    if id.len() <= ID_BYTES_MAX {
        return id;
    }
    let digest = Sha256::digest(id.as_bytes());
    let hex: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("sha256:{hex}")
}

/// A moment as RFC 3339, to the millisecond, rounded up: a retry is never early.
pub(crate) fn format_time(moment: Moment) -> String {
    let millis = moment.as_nanos().div_ceil(1_000_000);
    let time = SystemTime::UNIX_EPOCH + Duration::from_millis(millis);
    humantime::format_rfc3339_millis(time).to_string()
}

/// A moment from RFC 3339.
pub(crate) fn parse_time(text: &str) -> Option<Moment> {
    humantime::parse_rfc3339_weak(text.trim()).ok().map(Moment::from)
}

#[cfg(test)]
mod tests;
