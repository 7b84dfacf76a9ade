//! Messages of Kafka and of the contract.

use std::time::Duration;

use rdkafka::message::{Header, Headers as _, Message as _, OwnedHeaders};
use rdkafka::producer::BaseRecord;
use redrive_core::Moment;

use crate::message::{Headers, Message};

/// A message as it was delivered.
pub(super) fn message(borrowed: &rdkafka::message::BorrowedMessage<'_>) -> Message {
    let mut headers = Headers::default();
    for header in borrowed.headers().into_iter().flat_map(|headers| headers.iter()) {
        headers.push(header.key, header.value.map(<[u8]>::to_vec));
    }
    let millis = borrowed.timestamp().to_millis().and_then(|millis| u64::try_from(millis).ok());
    Message {
        key: borrowed.key().map(<[u8]>::to_vec),
        body: borrowed.payload().map(<[u8]>::to_vec),
        headers,
        timestamp: millis.map(|millis| Moment::default() + Duration::from_millis(millis)),
    }
}

/// A record to produce.
pub(super) fn record<'a>(
    topic: &'a str,
    partition: Option<i32>,
    message: &'a Message,
) -> BaseRecord<'a, [u8], [u8]> {
    let mut record = BaseRecord::to(topic);
    if let Some(partition) = partition {
        record = record.partition(partition);
    }
    if let Some(key) = &message.key {
        record = record.key(key.as_slice());
    }
    if let Some(body) = &message.body {
        record = record.payload(body.as_slice());
    }
    let mut headers = OwnedHeaders::new();
    for (key, value) in message.headers.iter() {
        headers = headers.insert(Header { key, value });
    }
    record.headers(headers)
}
