//! Publishing: one event, many, or a raw body.
//!
//! | request | is |
//! |---|---|
//! | `application/json` | one event, `{"id": …, "payload": …}`, or many, `{"events": […]}` |
//! | `application/x-ndjson` | many, one a line |
//! | any, with the header `redrive-id` | one event whose payload is the body |
//! | [CloudEvents](super::cloudevents) | one event in the headers or as a document, or many |
//!
//! An event without an id is refused: the publisher creates the identity before the first attempt.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use axum::{Extension, Router};
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use redrive::event::bounds::ID_BYTES_MAX;
use redrive::{Event, Published};
use serde::Deserialize;
use serde_json::{Value, json};

use super::body::RequiredRight;
use super::path::Path;
use super::{ApiProblem, JsonObject, RequestBody, cloudevents, streams, wire};
use crate::app::App;
use crate::auth::Caller;
use crate::config::Right;
use crate::observe::trace;

mod event_draft;

pub(crate) use event_draft::EventDraft;

pub(super) fn routes() -> Router<Arc<App>> {
    let needs = Extension(RequiredRight(Right::Publish));
    Router::new().route("/v1/queues/{queue}/events", post(publish).layer(needs))
}

async fn publish(
    State(app): State<Arc<App>>,
    caller: Caller,
    Path(queue): Path<String>,
    body: RequestBody,
) -> Result<Response, ApiProblem> {
    caller.may_in(Right::Publish, &queue)?;
    let (known, batch_max) = {
        let live = app.live();
        (live.config.queues.contains_key(&queue), live.config.server.batch_max)
    };
    if !known {
        return Err(ApiProblem::no_queue(&queue));
    }
    let asked = PublishRequest::read(&body, batch_max)?;
    let tenant = text(&body.headers, "redrive-tenant")?;
    let event = |written: EventDraft| {
        let own = written.tenant.clone();
        let tenant = caller.tenant(own.as_deref().or(tenant.as_deref()))?;
        let mut event = written.event(&queue, tenant.unwrap_or_default())?;
        trace::keep(&mut event, &body.headers);
        Ok(event)
    };
    let items = asked.items.into_iter().map(|Item { id, is }| Item { id, is: is.and_then(event) });
    let mut items: Vec<Item<Event>> = items.collect();
    refuse_expired(&app, &mut items).await?;
    let tenants = items.iter().filter_map(|item| item.is.as_ref().ok()).map(|event| event.tenant.as_str());
    streams::take(&app, &caller, &queue, tenants)?;
    take_quotas(&app, &items)?;
    let is_cloudevent = asked.is_cloudevent;
    let answer = answer(&app, asked.one, items).await;
    let answer = answer.map(|answer| if is_cloudevent { as_cloudevent(answer, &queue) } else { answer });
    // Even if some were refused or the outcome is unknown: one look too many is harmless.
    app.lines.ring(&queue);
    answer
}

/// Refuses too many events.
fn bounded(count: usize, max: usize) -> Result<(), ApiProblem> {
    if count > max {
        let detail = format!("{count} events are too many for one request; send at most {max}");
        return Err(ApiProblem::new(StatusCode::PAYLOAD_TOO_LARGE, "too-many", detail));
    }
    Ok(())
}

/// One event to publish, or its error.
struct Item<T> {
    /// The id, if it can be read, also of a refused event.
    id: Option<String>,
    is: Result<T, ApiProblem>,
}

impl From<Result<EventDraft, ApiProblem>> for Item<EventDraft> {
    fn from(is: Result<EventDraft, ApiProblem>) -> Self {
        let id = is.as_ref().ok().and_then(|written| written.id.clone());
        Self { id: id.filter(|id| id.len() <= ID_BYTES_MAX), is }
    }
}

impl Item<EventDraft> {
    /// One of many, in JSON. An error affects only this one.
    fn read(text: &[u8], wrong: impl FnOnce(serde_json::Error) -> String) -> Self {
        #[derive(Deserialize)]
        struct Peek {
            id: Option<String>,
        }
        match serde_json::from_slice(text) {
            Ok(JsonObject(written)) => Ok(written).into(),
            Err(error) => {
                let id = serde_json::from_slice(text).ok().and_then(|JsonObject(Peek { id })| id);
                let id = id.filter(|id| id.len() <= ID_BYTES_MAX);
                Self { id, is: Err(ApiProblem::bad_request(wrong(error))) }
            }
        }
    }
}

/// The events to publish.
struct PublishRequest {
    items: Vec<Item<EventDraft>>,
    /// Whether it is one event, and the answer about it alone.
    one: bool,
    /// Whether it is one CloudEvent: then so is the answer.
    is_cloudevent: bool,
}

impl PublishRequest {
    fn one(written: EventDraft) -> Self {
        Self { items: vec![Ok(written).into()], one: true, is_cloudevent: false }
    }

    fn cloudevent(written: EventDraft) -> Self {
        Self { is_cloudevent: true, ..Self::one(written) }
    }

    fn read(body: &RequestBody, max: usize) -> Result<Self, ApiProblem> {
        match cloudevents::Mode::of(body)? {
            Some(cloudevents::Mode::Binary) => return cloudevents::binary(body).map(Self::cloudevent),
            Some(cloudevents::Mode::Structured) => {
                return cloudevents::structured(&body.bytes).map(Self::cloudevent);
            }
            Some(cloudevents::Mode::Batched) => {
                let events = cloudevents::batched(&body.bytes, |count| bounded(count, max))?;
                return Ok(Self {
                    items: events.into_iter().map(Item::from).collect(),
                    one: false,
                    is_cloudevent: false,
                });
            }
            None if body.headers.contains_key("redrive-id") => {
                return Ok(Self::one(EventDraft::from_headers(body)?));
            }
            None => {}
        }
        match body.media_type().as_str() {
            "application/x-ndjson" | "application/jsonl" => {
                let lines = body.bytes.split(|byte| *byte == b'\n').enumerate();
                let lines = lines.filter(|(_, line)| !line.trim_ascii().is_empty());
                bounded(lines.clone().count(), max)?;
                let item = |(number, line): (usize, &[u8])| {
                    Item::read(line, |error| format!("line {} is not an event: {error}", number + 1))
                };
                Ok(Self { items: lines.map(item).collect(), one: false, is_cloudevent: false })
            }
            "application/json" => Ok(match event_draft::OneOrMany::read(body, max)? {
                event_draft::OneOrMany::Many(items) => Self { items, one: false, is_cloudevent: false },
                event_draft::OneOrMany::One(event) => Self::one(*event),
            }),
            other => {
                let detail = format!(
                    "a body of type `{other}` needs the header `redrive-id`; add it, or send application/json, application/x-ndjson or a CloudEvent"
                );
                Err(ApiProblem::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "media-type", detail))
            }
        }
    }
}

/// A header's text.
fn text(headers: &HeaderMap, name: &str) -> Result<Option<String>, ApiProblem> {
    let text = headers.get(name).map(|value| value.to_str().map(str::to_owned));
    text.transpose().map_err(|_| ApiProblem::bad_request(format!("the header {name} is not plain text")))
}

/// Refuses events that have already expired, so that the publisher learns it. Known events pass: a publisher that
/// repeats one, because a response was lost, gets the state of the first.
async fn refuse_expired(app: &App, items: &mut [Item<Event>]) -> Result<(), ApiProblem> {
    let now = app.redrive.now();
    for item in items {
        let Ok(Event { tenant, queue, id, expires: Some(expires), .. }) = &item.is else { continue };
        let end = expires.moment(now);
        if end > now || app.redrive.event(tenant, queue, id).await?.is_some() {
            continue;
        }
        let detail = format!("the event expired at {}, before it was published", wire::moment(end));
        item.is = Err(ApiProblem::new(StatusCode::UNPROCESSABLE_ENTITY, "expired", detail));
    }
    Ok(())
}

/// Takes the right to publish, for all tenants or for none.
fn take_quotas(app: &App, items: &[Item<Event>]) -> Result<(), ApiProblem> {
    // A batch may have thousands of tenants.
    let mut tenants: BTreeMap<&str, u32> = BTreeMap::new();
    for event in items.iter().filter_map(|item| item.is.as_ref().ok()) {
        *tenants.entry(&event.tenant).or_default() += 1;
    }
    let tenants: Vec<_> = tenants.into_iter().collect();
    let now = redrive::Moment::from(std::time::SystemTime::now());
    app.take_quotas(&tenants, now).map_err(|(tenant, free)| {
        let detail = format!("the tenant `{tenant}` exceeds its publish quota");
        ApiProblem::new(StatusCode::TOO_MANY_REQUESTS, "quota", detail).retry_after(free.since(now))
    })
}

async fn answer(app: &App, one: bool, items: Vec<Item<Event>>) -> Result<Response, ApiProblem> {
    let mut good = Vec::with_capacity(items.len());
    // An event is large, so it is handed on and not copied.
    let taken = items.into_iter().map(|Item { id, is }| (is.map(|event| good.push(event)), id));
    let (taken, ids): (Vec<Result<(), ApiProblem>>, Vec<Option<String>>) = taken.unzip();
    let mut published = app.redrive.publish_all(good).await?.into_iter();
    let closed = || Err(ApiProblem::from(redrive::StoreError::Closed));
    let results = taken.into_iter().map(|taken| {
        taken.and_then(|()| published.next().map_or_else(closed, |result| result.map_err(ApiProblem::from)))
    });
    let results: Vec<Result<Published, ApiProblem>> = results.collect();
    if one {
        let (result, id) =
            results.into_iter().zip(ids).next().ok_or_else(|| ApiProblem::bad_request("no event"))?;
        let mut view = kept(&result?);
        view["id"] = id.into();
        return Ok((StatusCode::ACCEPTED, axum::Json(view)).into_response());
    }
    let all = results.iter().all(Result::is_ok);
    let views: Vec<Value> = results.iter().zip(ids).map(|(result, id)| view(result, id)).collect();
    // Some are kept and some are not, and each says so.
    let status = if all { StatusCode::ACCEPTED } else { StatusCode::MULTI_STATUS };
    Ok((status, axum::Json(json!({ "results": views }))).into_response())
}

/// The answer to a CloudEvent with the headers of one, for SDKs that expect a CloudEvent in return. The body stays.
fn as_cloudevent(mut answer: Response, queue: &str) -> Response {
    let source = HeaderValue::try_from(format!("/v1/queues/{queue}/events"));
    let attributes = [
        ("ce-specversion", Ok(HeaderValue::from_static("1.0"))),
        ("ce-id", Ok(redrive::http::idempotency_key::mint())),
        ("ce-source", source),
        ("ce-type", Ok(HeaderValue::from_static("redrive.published"))),
    ];
    let attributes = attributes.into_iter().filter_map(|(name, value)| Some((name, value.ok()?)));
    answer.headers_mut().extend(attributes.map(|(name, value)| (HeaderName::from_static(name), value)));
    answer
}

fn view(result: &Result<Published, ApiProblem>, id: Option<String>) -> Value {
    let mut view = match result {
        Ok(published) => kept(published),
        Err(problem) => json!({ "result": "refused", "problem": problem.document() }),
    };
    view["id"] = id.into();
    view
}

/// An event that is stored, now or before.
fn kept(published: &Published) -> Value {
    match published {
        Published::Accepted(_) => json!({ "result": "accepted" }),
        Published::Duplicate(found) => json!({ "result": "duplicate", "first": wire::found(found) }),
    }
}
