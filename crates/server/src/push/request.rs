//! The request of an attempt: the event, its description, and a signature.

use std::borrow::Cow;
use std::fmt::Write as _;
use std::time::{SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use http::header::{CONTENT_LENGTH, CONTENT_TYPE};
use http::{HeaderMap, HeaderName, HeaderValue};
use redrive::Delivery;
use redrive::http::idempotency_key;
use redrive::names::header;

use super::destination::Destination;
use super::header_names;
use super::sign::signatures;
use crate::api::cloudevents::document;
use crate::config::PushFormat;
use crate::observe::trace;

/// The media type of a CloudEvent in structured mode.
const STRUCTURED: &str = "application/cloudevents+json";

/// The body of an attempt: the payload, without a copy of it, or a document around it.
pub(super) fn body(delivery: &Delivery, destination: &Destination) -> Bytes {
    match destination.format {
        PushFormat::Binary => Bytes::from_owner(Payload(delivery.clone())),
        PushFormat::Structured => document(delivery.event()).into(),
    }
}

/// A delivery's payload, without a copy of it.
struct Payload(Delivery);

impl AsRef<[u8]> for Payload {
    fn as_ref(&self) -> &[u8] {
        self.0.payload()
    }
}

/// The headers of an attempt: the event's, overridden by the destination's, overridden by the attempt's.
pub(super) fn headers(
    delivery: &Delivery,
    destination: &Destination,
    secrets: &[&[u8]],
    body: &[u8],
    now: SystemTime,
) -> HeaderMap {
    let mut headers = HeaderMap::new();
    own(delivery, &mut headers);
    if destination.format == PushFormat::Structured {
        let attributes: Vec<_> =
            headers.keys().filter(|name| name.as_str().starts_with("ce-")).cloned().collect();
        for name in attributes {
            headers.remove(name);
        }
        headers.insert(CONTENT_TYPE, HeaderValue::from_static(STRUCTURED));
    }
    if body.is_empty() {
        // Without a length, some receivers refuse a POST with 411.
        headers.insert(CONTENT_LENGTH, HeaderValue::from_static("0"));
    }
    for (name, value) in &destination.headers {
        headers.insert(name, value.clone());
    }
    attempt(delivery, &mut headers);
    // The attempt's own span if attempts are traced: the receiver's work appears below it. A state goes with its own
    // parent only.
    headers.remove(header::TRACEPARENT);
    headers.remove(header::TRACESTATE);
    for (name, value) in trace::for_attempt(delivery) {
        put(&mut headers, name, Some(&value));
    }
    if !secrets.is_empty() {
        sign(delivery, secrets, body, now, &mut headers);
    }
    headers
}

/// The headers published with the event. Forbidden ones were refused then; those that came into the store another way
/// are left out here.
fn own(delivery: &Delivery, headers: &mut HeaderMap) {
    let Some(meta) = &delivery.event().meta else { return };
    for (name, value) in &meta.headers {
        if header_names::check_of_event(name, value).is_ok()
            && let (Ok(name), Ok(value)) = (
                HeaderName::from_bytes(name.as_bytes()),
                HeaderValue::try_from(percent(value, false).as_ref()),
            )
        {
            headers.append(name, value);
        }
    }
    put(headers, CONTENT_TYPE.as_str(), meta.content_type.as_deref());
}

fn attempt(delivery: &Delivery, headers: &mut HeaderMap) {
    let meta = delivery.event().meta.as_deref();
    let tenant = Some(delivery.tenant()).filter(|tenant| !tenant.is_empty());
    put(headers, header::ID, Some(delivery.id()));
    put(headers, header::TENANT, tenant);
    put(headers, header::QUEUE, Some(delivery.queue()));
    put(headers, header::KEY, delivery.key());
    put(headers, header::ATTEMPT, Some(&delivery.attempt().to_string()));
    put(headers, header::MODE, Some(delivery.mode().as_str()));
    put(headers, header::FIRST_SEEN, rfc3339(delivery.published()).as_deref());
    put(headers, header::DEADLINE, delivery.deadline().and_then(rfc3339).as_deref());
    put(headers, header::CORRELATION, meta.and_then(|meta| meta.correlation.as_deref()));
    put(headers, header::CAUSATION, meta.and_then(|meta| meta.causation.as_deref()));
    put(headers, header::FENCE, Some(&delivery.fence().to_string()));
    put(headers, header::OUT_OF_ORDER, delivery.is_out_of_order().then_some("1"));
    if let Some(key) = idempotency_key::quoted(&delivery.idempotency_key()) {
        headers.insert(header::IDEMPOTENCY_KEY, key);
    }
}

/// The id is the idempotency key, and not the event's: receivers take it for unique over everything they get.
fn sign(delivery: &Delivery, secrets: &[&[u8]], body: &[u8], now: SystemTime, headers: &mut HeaderMap) {
    let id = delivery.idempotency_key();
    let timestamp = now.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    let signature = signatures(secrets.iter().copied(), &id, timestamp, body);
    put(headers, header::WEBHOOK_ID, Some(&id));
    put(headers, header::WEBHOOK_TIMESTAMP, Some(&timestamp.to_string()));
    put(headers, header::WEBHOOK_SIGNATURE, Some(&signature));
}

/// A time of day; none beyond the year 9999, with which the format ends.
fn rfc3339(at: SystemTime) -> Option<String> {
    let mut text = String::new();
    write!(text, "{}", humantime::format_rfc3339_millis(at)).ok()?;
    Some(text)
}

/// Percent-encoded where it is more than printable ASCII, or has a `%`: decoding it once gives the text, whatever it is.
fn put(headers: &mut HeaderMap, name: &'static str, value: Option<&str>) {
    if let Some(value) = value.and_then(|value| HeaderValue::try_from(percent(value, true).as_ref()).ok()) {
        headers.insert(name, value);
    }
}

/// A text in ASCII. The publisher's own headers keep their `%`: they may be encoded already.
fn percent(text: &str, with_percent: bool) -> Cow<'_, str> {
    let is_plain = |byte: u8| (b' '..=b'~').contains(&byte) && (byte != b'%' || !with_percent);
    if text.bytes().all(is_plain) {
        return Cow::Borrowed(text);
    }
    let mut encoded = String::with_capacity(text.len() + 8);
    for byte in text.bytes() {
        if is_plain(byte) {
            encoded.push(char::from(byte));
        } else {
            // A string takes whatever is written.
            let _ = write!(encoded, "%{byte:02X}");
        }
    }
    Cow::Owned(encoded)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_are_ascii_and_decode_to_what_they_say() {
        for (text, ours, own) in [
            ("order 17", "order 17", "order 17"),
            ("örder", "%C3%B6rder", "%C3%B6rder"),
            ("100%", "100%25", "100%"),
            ("%C3%B6", "%25C3%25B6", "%C3%B6"),
        ] {
            assert_eq!((percent(text, true).as_ref(), percent(text, false).as_ref()), (ours, own), "{text}");
        }
    }
}
