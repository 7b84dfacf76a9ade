//! CloudEvents 1.0, in each of the three ways in which HTTP carries them.
//!
//! | mode | is told by |
//! |---|---|
//! | binary | one of the headers `ce-specversion`, `ce-id`, `ce-source`, `ce-type`; the body is the data |
//! | structured | `application/cloudevents+json` |
//! | batched | `application/cloudevents-batch+json` |
//!
//! Every attribute becomes a header of the event, written as in the HTTP binding's binary mode. So a push that
//! carries the event's headers is the same CloudEvent again, whichever way it came. Which attributes were numbers or
//! booleans is noted beside them, for pushes in structured mode.

use std::collections::BTreeMap;

use http::StatusCode;
use redrive::Event;
use redrive::names::header::CE_TYPES;
use serde::de::IgnoredAny;
use serde_json::value::RawValue;
use serde_json::{Map, Value};

use super::publish::EventDraft;
use super::{ApiProblem, RequestBody};

mod attributes;
mod data;
mod document;
mod percent;

pub(crate) use document::document;

use attributes::Attributes;

/// The prefix of attribute headers.
const PREFIX: &str = "ce-";
/// Headers that make a request a CloudEvent.
const REQUIRED: [&str; 4] = ["ce-specversion", "ce-id", "ce-source", "ce-type"];
/// The media types of the other two ways begin with this.
const MEDIA_TYPE: &str = "application/cloudevents";

/// How a request carries CloudEvents.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Mode {
    /// Attributes in headers, data in the body.
    Binary,
    /// One, as a document.
    Structured,
    /// Many, as a document.
    Batched,
}

impl Mode {
    /// The mode of this request; `None` if it is not a CloudEvent.
    pub(super) fn of(body: &RequestBody) -> Result<Option<Self>, ApiProblem> {
        match body.media_type().as_str() {
            "application/cloudevents+json" => return Ok(Some(Self::Structured)),
            "application/cloudevents-batch+json" => return Ok(Some(Self::Batched)),
            other if other.starts_with(MEDIA_TYPE) => {
                let detail = format!("this server supports CloudEvents in JSON only, not `{other}`");
                return Err(ApiProblem::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "media-type", detail));
            }
            _ => {}
        }
        Ok(REQUIRED.iter().any(|name| body.headers.contains_key(*name)).then_some(Self::Binary))
    }
}

/// The CloudEvent in the headers, with the body for its data.
pub(super) fn binary(body: &RequestBody) -> Result<EventDraft, ApiProblem> {
    if body.headers.contains_key("redrive-id") {
        return Err(wrong("a CloudEvent is identified by `source` and `id`; remove `redrive-id`".to_owned()));
    }
    let mut attributes = Attributes::default();
    for name in body.headers.keys() {
        let Some(attribute) = name.as_str().strip_prefix(PREFIX) else { continue };
        let mut values = body.headers.get_all(name).iter();
        let (Some(value), None) = (values.next(), values.next()) else {
            return Err(wrong(format!("the attribute `{attribute}` occurs more than once")));
        };
        attributes.put(attribute, percent::decode(value.as_bytes())).map_err(wrong)?;
    }
    let mut written = EventDraft::from_headers(body)?;
    attributes.write(&mut written).map_err(wrong)?;
    Ok(written)
}

/// The CloudEvent that a document is.
pub(super) fn structured(bytes: &[u8]) -> Result<EventDraft, ApiProblem> {
    let mut members: BTreeMap<String, &RawValue> = serde_json::from_slice(bytes)
        .map_err(|error| ApiProblem::bad_request(format!("the body is not a CloudEvent in JSON: {error}")))?;
    let (data, base64) = (members.remove("data"), members.remove("data_base64"));
    let content_type = members.remove("datacontenttype");
    let mut attributes = Attributes::default();
    for (name, value) in members {
        if let Some((text, kind)) = attributes::typed(&name, value).map_err(wrong)? {
            attributes.put(&name, text).map_err(wrong)?;
            attributes.note(&name, kind);
        }
    }
    let content_type = content_type.map(|value| attributes::typed("datacontenttype", value));
    let content_type = content_type.transpose().map_err(wrong)?.flatten().map(|(text, _)| text);
    let mut written = EventDraft::default();
    (written.raw, written.content_type) = data::read(data, base64, content_type).map_err(wrong)?;
    attributes.write(&mut written).map_err(wrong)?;
    Ok(written)
}

/// Each CloudEvent of a batch, or its error. They are counted first.
pub(super) fn batched(
    bytes: &[u8],
    bounded: impl FnOnce(usize) -> Result<(), ApiProblem>,
) -> Result<Vec<Result<EventDraft, ApiProblem>>, ApiProblem> {
    let wrong = |error| ApiProblem::bad_request(format!("the body is not a list of CloudEvents: {error}"));
    let counted: Vec<IgnoredAny> = serde_json::from_slice(bytes).map_err(wrong)?;
    bounded(counted.len())?;
    let events: Vec<&RawValue> = serde_json::from_slice(bytes).map_err(wrong)?;
    Ok(events.into_iter().map(|event| structured(event.get().as_bytes())).collect())
}

/// The attributes of an event that was published as a CloudEvent, each of the type that it had.
pub(super) fn attributes(event: &Event) -> Option<Value> {
    let meta = event.meta.as_ref()?;
    let mut attributes = Map::new();
    let types = meta.headers.iter().find(|(name, _)| name == CE_TYPES).map_or("", |(_, types)| types);
    for (name, value) in &meta.headers {
        if let Some(name) = name.strip_prefix(PREFIX) {
            let text = percent::decode(value.as_bytes());
            attributes.insert(name.to_owned(), attributes::value(name, text, types));
        }
    }
    if !attributes.contains_key("specversion") {
        return None;
    }
    if let Some(content_type) = &meta.content_type {
        attributes.insert("datacontenttype".to_owned(), content_type.clone().into());
    }
    Some(attributes.into())
}

fn wrong(detail: String) -> ApiProblem {
    ApiProblem::new(StatusCode::UNPROCESSABLE_ENTITY, "not-a-cloudevent", detail)
}
