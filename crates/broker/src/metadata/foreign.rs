//! Headers that other programs write.
//!
//! | program | read |
//! |---|---|
//! | Spring Kafka, retry topics | attempt (`retry_topic-attempts`, big-endian), due time, first timestamp, original topic, exception |
//! | Spring Kafka, dead letters | `kafka_dlt-original-*`, `kafka_dlt-exception-*` |
//! | Kafka Connect | `__connect.errors.*` |
//! | Kafka Streams | `__streams.errors.*` |
//! | share groups | `__dlq.errors.*` |
//! | Watermill, MassTransit, RabbitMQ, Azure, NServiceBus | reason and attempt |

use std::time::Duration;

use redrive_core::Moment;
use redrive_core::names::header;

use super::{ATTEMPTS_MAX, DeadCause, cut, parse_time};
use crate::message::Headers;

/// The most bytes of a foreign message.
const MESSAGE_BYTES_MAX: usize = 512;
/// Headers of others that Redrive replaces by its own when it writes a message: with both, two truths would travel.
const REPLACED: [&str; 8] = [
    "retry-attempt",
    "next-delay-ms",
    "first-seen-ts",
    "retry_topic-attempts",
    "retry_topic-backoff-timestamp",
    "kafka_exception-stacktrace",
    "kafka_dlt-exception-stacktrace",
    "__connect.errors.exception.stacktrace",
];

/// The number of the next attempt, from 1.
pub(super) fn attempt(headers: &Headers) -> u32 {
    let own = headers.text(header::ATTEMPT).map(number);
    let other = || {
        let text = ["retry-attempt", "final-attempt"].into_iter().find_map(|name| headers.text(name));
        text.map(number).or_else(|| headers.get("retry_topic-attempts").and_then(big_endian))
    };
    // RabbitMQ counts the deliveries before this one.
    let counted = || headers.text("x-delivery-count").map(|text| number(text).saturating_add(1));
    own.or_else(other).or_else(counted).unwrap_or(1).clamp(1, ATTEMPTS_MAX)
}

/// When a consumer first saw the message.
pub(super) fn first_seen(headers: &Headers) -> Option<Moment> {
    let text = headers.text(header::FIRST_SEEN).or_else(|| headers.text("first-seen-ts"));
    let spring = || headers.get("retry_topic-original-timestamp").and_then(big_endian_millis);
    text.and_then(time).or_else(spring)
}

/// When the next attempt is due.
pub(super) fn due(headers: &Headers) -> Option<Moment> {
    let spring = || headers.get("retry_topic-backoff-timestamp").and_then(big_endian_millis);
    headers.text(header::DUE).and_then(time).or_else(spring)
}

/// The wait that was chosen last.
pub(super) fn delay(headers: &Headers) -> Duration {
    let text = headers.text(header::NEXT_DELAY_MS).or_else(|| headers.text("next-delay-ms"));
    /// Longer waits are not believed.
    const DAY: Duration = Duration::from_hours(24);
    let millis = text.and_then(|text| text.trim().parse().ok()).unwrap_or(0);
    Duration::from_millis(millis).min(DAY)
}

/// Where the message first came from, as `topic/partition/offset` where that is known.
pub(super) fn origin(headers: &Headers) -> Option<String> {
    if let Some(own) = headers.text(header::ORIGIN) {
        return Some(cut(own, MESSAGE_BYTES_MAX).to_owned());
    }
    for (topic, partition, offset) in [
        ("kafka_original-topic", "kafka_original-partition", "kafka_original-offset"),
        ("kafka_dlt-original-topic", "kafka_dlt-original-partition", "kafka_dlt-original-offset"),
        ("__connect.errors.topic", "__connect.errors.partition", "__connect.errors.offset"),
        ("__streams.errors.topic", "__streams.errors.partition", "__streams.errors.offset"),
        ("__dlq.errors.topic", "__dlq.errors.partition", "__dlq.errors.offset"),
        ("origin-topic", "origin-partition", "origin-offset"),
    ] {
        if let Some(topic) = headers.text(topic) {
            let part = |name| headers.get(name).and_then(integer).map(|part| format!("/{part}"));
            let place = [partition, offset].into_iter().map_while(part).collect::<String>();
            return Some(cut(&format!("{topic}{place}"), MESSAGE_BYTES_MAX).to_owned());
        }
    }
    headers.text("REAL_TOPIC").map(|topic| cut(topic, MESSAGE_BYTES_MAX).to_owned())
}

/// Why a dead letter died.
pub(super) fn dead_cause(headers: &Headers) -> DeadCause {
    let first = |names: &[&str]| {
        let text = names.iter().find_map(|name| headers.text(name)).unwrap_or_default();
        cut(text, MESSAGE_BYTES_MAX).to_owned()
    };
    let kind = first(&[
        header::DEAD_KIND,
        "kafka_dlt-exception-cause-fqcn",
        "kafka_dlt-exception-fqcn",
        "kafka_exception-cause-fqcn",
        "kafka_exception-fqcn",
        "__connect.errors.exception.class.name",
        "__streams.errors.exception",
        "__dlq.errors.exception.class.name",
        "MT-Fault-ExceptionType",
        "NServiceBus.ExceptionInfo.ExceptionType",
    ]);
    let message = first(&[
        header::DEAD_MESSAGE,
        "dlq-message",
        "kafka_dlt-exception-message",
        "kafka_exception-message",
        "__connect.errors.exception.message",
        "__streams.errors.message",
        "__dlq.errors.exception.message",
        "MT-Fault-Message",
        "NServiceBus.ExceptionInfo.Message",
        "DeadLetterErrorDescription",
        "rbs2-error-details",
        "reason_poisoned",
    ]);
    let reason =
        first(&[header::DEAD_REASON, "dlq-reason", "x-first-death-reason", "MT-Reason", "DeadLetterReason"]);
    let reason = if reason.is_empty() { "unknown".to_owned() } else { reason };
    let own = headers.text(header::DEAD_ATTEMPTS).or_else(|| headers.text("final-attempt")).map(number);
    // Other programs write the number of the attempt that would come next.
    let attempts = own.unwrap_or_else(|| attempt(headers).saturating_sub(1).max(1));
    DeadCause { reason, kind, message, attempts: attempts.min(ATTEMPTS_MAX) }
}

/// Removes headers of others that Redrive writes itself, and stack traces, which are unbounded.
pub(super) fn remove(headers: &mut Headers) {
    REPLACED.into_iter().for_each(|name| headers.remove(name));
}

/// A counter as text; what cannot be read is the first attempt.
fn number(text: &str) -> u32 {
    let number: i128 = text.trim().parse().unwrap_or(1);
    u32::try_from(number.clamp(1, i128::from(ATTEMPTS_MAX))).unwrap_or(ATTEMPTS_MAX)
}

/// A time: RFC 3339, or milliseconds since the Unix epoch.
fn time(text: &str) -> Option<Moment> {
    let millis =
        |text: &str| text.trim().parse().ok().map(|ms| Moment::default() + Duration::from_millis(ms));
    parse_time(text).or_else(|| millis(text))
}

/// Java's integers: bytes in two's complement, big-endian.
fn big_endian(bytes: &[u8]) -> Option<u32> {
    let number = java_integer(bytes)?.clamp(1, i128::from(ATTEMPTS_MAX));
    u32::try_from(number).ok()
}

fn big_endian_millis(bytes: &[u8]) -> Option<Moment> {
    let millis = u64::try_from(java_integer(bytes)?).ok()?;
    Some(Moment::default() + Duration::from_millis(millis))
}

fn java_integer(bytes: &[u8]) -> Option<i128> {
    if bytes.is_empty() || bytes.len() > 8 {
        return None;
    }
    let sign = if bytes[0] & 0x80 == 0 { 0 } else { -1 };
    Some(bytes.iter().fold(sign, |sum, byte| (sum << 8) | i128::from(*byte)))
}

/// A partition or an offset, as text (Connect, Streams) or as a Java integer (Spring).
fn integer(bytes: &[u8]) -> Option<i128> {
    let text = std::str::from_utf8(bytes).ok().and_then(|text| text.parse().ok());
    text.or_else(|| java_integer(bytes))
}
