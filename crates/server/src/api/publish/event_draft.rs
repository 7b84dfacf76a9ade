//! An event as its publisher wrote it.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::StatusCode;
use redrive::Event;
use redrive::names::header::CE_TYPES;
use redrive::policy::Tuning;
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::value::RawValue;

use super::super::{ApiProblem, RequestBody};
use super::Item;
use crate::push::header_names::check_of_event;

/// The headers that describe an event whose payload is the raw body.
const READ: [&str; 8] = [
    "redrive-id",
    "redrive-tenant",
    "redrive-key",
    "redrive-delay",
    "redrive-due",
    "redrive-deadline",
    "redrive-correlation",
    "redrive-causation",
];

/// One event, or many.
pub(super) enum OneOrMany {
    Many(Vec<Item<EventDraft>>),
    One(Box<EventDraft>),
}

impl OneOrMany {
    /// Reads one, or up to `max`.
    pub(super) fn read(body: &RequestBody, max: usize) -> Result<Self, ApiProblem> {
        // By hand, because serde's errors for untagged enums are unhelpful. The events are counted before they are
        // parsed, because an event in memory is many times larger than its smallest JSON.
        #[derive(Deserialize)]
        struct Peek {
            #[serde(default)]
            events: Option<Vec<IgnoredAny>>,
        }
        #[derive(Deserialize)]
        #[serde(deny_unknown_fields)]
        struct Many {
            events: Vec<Box<RawValue>>,
        }
        match serde_json::from_slice::<Peek>(&body.bytes) {
            Ok(Peek { events: Some(events) }) => {
                super::bounded(events.len(), max)?;
                let Many { events } = body.object()?;
                let item = |(number, event): (usize, Box<RawValue>)| {
                    let wrong = |error| format!("number {} is not an event: {error}", number + 1);
                    Item::read(event.get().as_bytes(), wrong)
                };
                Ok(Self::Many(events.into_iter().enumerate().map(item).collect()))
            }
            _ => Ok(Self::One(Box::new(body.object()?))),
        }
    }
}

/// An event as its publisher wrote it.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct EventDraft {
    pub(crate) id: Option<String>,
    pub(crate) tenant: Option<String>,
    pub(in crate::api) key: Option<String>,
    /// Any JSON; kept as it was written.
    payload: Option<Box<RawValue>>,
    /// Any bytes.
    payload_base64: Option<String>,
    /// The body itself, where the event is in the headers.
    #[serde(skip)]
    pub(in crate::api) raw: Option<Vec<u8>>,
    pub(in crate::api) content_type: Option<String>,
    pub(in crate::api) headers: BTreeMap<String, String>,
    /// The types of a CloudEvent's attributes that are no strings.
    #[serde(skip)]
    pub(in crate::api) ce_types: Option<String>,
    correlation: Option<String>,
    causation: Option<String>,
    #[serde(with = "redrive::config::optional")]
    delay: Option<Duration>,
    at: Option<String>,
    #[serde(with = "redrive::config::optional")]
    expires_after: Option<Duration>,
    expires_at: Option<String>,
    policy: Option<Tuning>,
}

impl EventDraft {
    /// From headers, with the raw body as payload.
    pub(in crate::api) fn from_headers(body: &RequestBody) -> Result<Self, ApiProblem> {
        let text = |name: &str| super::text(&body.headers, name);
        let duration = |name: &str| -> Result<Option<Duration>, ApiProblem> {
            let parse = |text: String| {
                humantime::parse_duration(&text).map_err(|error| {
                    ApiProblem::bad_request(format!("{name}: `{text}` is not a duration ({error})"))
                })
            };
            text(name)?.map(parse).transpose()
        };
        // A misspelt header would silently drop a delay or a deadline.
        let ours = body.headers.keys().map(|name| name.as_str()).filter(|name| name.starts_with("redrive-"));
        if let Some(name) = ours.into_iter().find(|name| !READ.contains(name)) {
            let detail = format!("the header `{name}` is not supported; use one of {}", READ.join(", "));
            return Err(ApiProblem::bad_request(detail));
        }
        let mut headers = BTreeMap::new();
        // A state belongs to its own parent.
        if let Some(parent) = text("traceparent")? {
            headers.insert("traceparent".to_owned(), parent);
            headers.extend(text("tracestate")?.map(|state| ("tracestate".to_owned(), state)));
        }
        Ok(Self {
            id: text("redrive-id")?,
            key: text("redrive-key")?,
            raw: Some(body.bytes.to_vec()),
            content_type: text("content-type")?,
            correlation: text("redrive-correlation")?,
            causation: text("redrive-causation")?,
            delay: duration("redrive-delay")?,
            at: text("redrive-due")?,
            expires_at: text("redrive-deadline")?,
            headers,
            ..Self::default()
        })
    }

    /// Converts it into an event.
    pub(crate) fn event(self, queue: &str, tenant: &str) -> Result<Event, ApiProblem> {
        let not = |detail: String| ApiProblem::new(StatusCode::UNPROCESSABLE_ENTITY, "not-an-event", detail);
        let Some(id) = self.id.filter(|id| !id.is_empty()) else {
            return Err(not(
                "an event needs an `id`; the publisher creates it once per intent and reuses it whenever it publishes again"
                    .to_owned(),
            ));
        };
        let mut event = Event::new(queue, id).tenant(tenant);
        event.key = self.key;
        match (self.raw, self.payload, self.payload_base64) {
            (Some(raw), ..) => event.payload = raw,
            (None, Some(_), Some(_)) => {
                return Err(not("an event has `payload` or `payload_base64`, not both".to_owned()));
            }
            (None, Some(json), None) => {
                event.payload = json.get().as_bytes().to_vec();
                event.meta_mut().content_type = Some("application/json".to_owned());
            }
            (None, None, Some(text)) => {
                let decoded = STANDARD.decode(text.as_bytes());
                event.payload = decoded.map_err(|error| not(format!("`payload_base64`: {error}")))?;
            }
            (None, None, None) => {}
        }
        let time = |name: &str, text: &str| -> Result<SystemTime, ApiProblem> {
            humantime::parse_rfc3339(text).map_err(|error| {
                not(format!("`{name}` must be written as 2026-01-31T12:00:00Z, not `{text}` ({error})"))
            })
        };
        match (self.delay, self.at) {
            (Some(_), Some(_)) => return Err(not("an event has `delay` or `at`, not both".to_owned())),
            (Some(delay), None) => event = event.delay(delay),
            (None, Some(at)) => event = event.at(time("at", &at)?),
            (None, None) => {}
        }
        match (self.expires_after, self.expires_at) {
            (Some(_), Some(_)) => {
                return Err(not("an event has `expires_after` or `expires_at`, not both".to_owned()));
            }
            (Some(after), None) => event = event.expires_after(after),
            (None, Some(at)) => event = event.expires_at(time("expires_at", &at)?),
            (None, None) => {}
        }
        for (name, value) in &self.headers {
            check_of_event(name, value).map_err(not)?;
        }
        if self.content_type.is_some() {
            event.meta_mut().content_type = self.content_type;
        }
        for (name, value) in self.headers {
            event = event.header(name, value);
        }
        if let Some(types) = self.ce_types {
            event = event.header(CE_TYPES, types);
        }
        if self.policy.as_ref().is_some_and(|policy| policy.attempts == Some(0)) {
            return Err(not("`policy.attempts` must be at least 1".to_owned()));
        }
        if self.correlation.is_some() || self.causation.is_some() || self.policy.is_some() {
            let meta = event.meta_mut();
            (meta.correlation, meta.causation, meta.tuning) = (self.correlation, self.causation, self.policy);
        }
        Ok(event)
    }
}
