//! The request of an attempt: the event, its description, and a signature.

use std::fmt::Write as _;
use std::time::{SystemTime, UNIX_EPOCH};

use http::header::CONTENT_TYPE;
use http::{HeaderMap, HeaderName, HeaderValue};
use redrive::Delivery;
use redrive::http::idempotency_key;
use redrive::names::header;

use super::destination::Destination;
use super::header_names;
use super::sign::signatures;
use crate::observe::trace;

/// The headers of an attempt: the event's, overridden by the destination's, overridden by the attempt's.
pub(super) fn headers(
    delivery: &Delivery,
    destination: &Destination,
    secrets: &[&[u8]],
    now: SystemTime,
) -> HeaderMap {
    let mut headers = HeaderMap::new();
    own(delivery, &mut headers);
    for (name, value) in &destination.headers {
        headers.insert(name, value.clone());
    }
    attempt(delivery, &mut headers);
    // The attempt's own span if attempts are traced: the receiver's work appears below it.
    for (name, value) in trace::for_attempt(delivery) {
        put(&mut headers, name, Some(&value));
    }
    if !secrets.is_empty() {
        sign(delivery, secrets, now, &mut headers);
    }
    headers
}

/// The headers published with the event. Forbidden ones were refused then; those that came into the store another way
/// are left out here.
fn own(delivery: &Delivery, headers: &mut HeaderMap) {
    let Some(meta) = &delivery.event().meta else { return };
    for (name, value) in &meta.headers {
        if header_names::check_of_event(name, value).is_ok()
            && let (Ok(name), Ok(value)) =
                (HeaderName::from_bytes(name.as_bytes()), HeaderValue::from_bytes(value.as_bytes()))
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
fn sign(delivery: &Delivery, secrets: &[&[u8]], now: SystemTime, headers: &mut HeaderMap) {
    let id = delivery.idempotency_key();
    let timestamp = now.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    let signature = signatures(secrets.iter().copied(), &id, timestamp, delivery.payload());
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

/// As UTF-8; left out if it contains a control character, which no event has.
fn put(headers: &mut HeaderMap, name: &'static str, value: Option<&str>) {
    if let Some(value) = value.and_then(|value| HeaderValue::from_bytes(value.as_bytes()).ok()) {
        headers.insert(name, value);
    }
}
