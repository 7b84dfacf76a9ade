//! Inspection: groups, pages of events, one event, and lookup of an id.

use std::sync::Arc;

use axum::routing::get;
use axum::{Json, Router};
use redrive::desk::{FailingQuery, Filter, GroupBy, GroupQuery};
use redrive::event::State;
use redrive::store::Named;
use redrive::{Event, EventQuery, EventStatus};
use serde::Deserialize;
use serde_json::{Value, json};

use super::super::{ApiProblem, Path, wire};
use super::query::{EventQueryParams, PAGE, QueryParams, needed, page};
use super::waits::{self, Facts, Hold};
use super::{OperatorContext, to_json};
use crate::app::App;

/// How many events with one id the store finds.
const FOUND_MAX: usize = 100;

pub(super) fn routes() -> Router<Arc<App>> {
    Router::new()
        .route("/v1/dead/groups", get(groups))
        .route("/v1/failing/groups", get(failing))
        .route("/v1/events", get(list))
        .route("/v1/event", get(show))
        .route("/v1/queues/{queue}/events/{id}", get(show_by_path))
        .route("/v1/lookup", get(lookup))
}

#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct GroupsQuery {
    by: Option<String>,
    queue: Option<String>,
    tenant: Option<String>,
    limit: Option<usize>,
}

async fn groups(
    context: OperatorContext,
    QueryParams(asked): QueryParams<GroupsQuery>,
) -> Result<Json<Value>, ApiProblem> {
    context.may_read()?;
    let by = match asked.by.as_deref() {
        None | Some("cause") => GroupBy::Cause,
        Some("queue") => GroupBy::Queue,
        Some("tenant") => GroupBy::Tenant,
        Some("type") => GroupBy::Type,
        Some("key") => GroupBy::Key,
        Some(other) => {
            let words = "cause, queue, tenant, type, key";
            let detail = format!("cannot group by `{other}`; use one of {words}");
            return Err(ApiProblem::bad_request(detail));
        }
    };
    let tenant = context.caller.tenant(asked.tenant.as_deref())?.map(str::to_owned);
    let limit = page(asked.limit)?;
    // One more, to see whether there are more.
    let queue = context.caller.queue_of_filter(asked.queue)?;
    let query = GroupQuery { by, queue, tenant, limit: limit + 1 };
    let mut groups = context.desk.groups(query).await?;
    let more = groups.len() > limit;
    groups.truncate(limit);
    let mut answer = json!({ "groups": groups.iter().map(to_json::group).collect::<Vec<_>>(), "more": more });
    if let Some(looked) = groups.iter().find_map(|group| group.looked) {
        answer["looked"] = looked.into();
    }
    Ok(Json(answer))
}

#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct FailingQueryParams {
    queue: Option<String>,
    tenant: Option<String>,
    limit: Option<usize>,
}

/// Retrying events, by what they failed of.
async fn failing(
    context: OperatorContext,
    QueryParams(asked): QueryParams<FailingQueryParams>,
) -> Result<Json<Value>, ApiProblem> {
    context.may_read()?;
    let tenant = context.caller.tenant(asked.tenant.as_deref())?.map(str::to_owned);
    let queue = context.caller.queue_of_filter(asked.queue)?;
    let limit = page(asked.limit)?;
    // One more, to see whether there are more.
    let query = FailingQuery { queue, tenant, cause: None, limit: limit + 1 };
    let mut groups = context.desk.failing(query).await?;
    let more = groups.len() > limit;
    groups.truncate(limit);
    let mut answer =
        json!({ "groups": groups.iter().map(to_json::failing).collect::<Vec<_>>(), "more": more });
    if let Some(looked) = groups.iter().find_map(|group| group.looked) {
        answer["looked"] = looked.into();
    }
    Ok(Json(answer))
}

async fn list(
    context: OperatorContext,
    QueryParams(asked): QueryParams<EventQueryParams>,
) -> Result<Json<Value>, ApiProblem> {
    context.may_read()?;
    if asked.format.is_some() {
        return Err(ApiProblem::bad_request("`format` applies to exports only"));
    }
    let (state, after) = (asked.state()?, asked.after()?);
    let query =
        EventQuery { filter: asked.filter(&context)?, state, after, limit: asked.limit()?.unwrap_or(PAGE) };
    let page = context.desk.list(query).await?;
    let events: Vec<Value> = page.events.iter().map(|(event, found)| to_json::event(event, found)).collect();
    let mut answer = json!({ "events": events });
    if let Some(next) = page.next {
        // As a string: it may exceed the range in which JSON numbers are exact.
        answer["next"] = next.0.to_string().into();
    }
    if !page.damaged.is_empty() {
        answer["damaged"] = page.damaged.into();
    }
    Ok(Json(answer))
}

#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct EventRef {
    queue: Option<String>,
    tenant: Option<String>,
    id: Option<String>,
    contents: Option<String>,
}

/// The same, with queue and id in the path.
#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct EventRefByPath {
    tenant: Option<String>,
    contents: Option<String>,
}

#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct LookupQuery {
    queue: Option<String>,
    tenant: Option<String>,
    id: Option<String>,
}

async fn show(
    context: OperatorContext,
    QueryParams(asked): QueryParams<EventRef>,
) -> Result<Json<Value>, ApiProblem> {
    context.may_read()?;
    let contents = is_yes("contents", asked.contents.as_deref())?;
    let (queue, id) = (needed("queue", asked.queue)?, needed("id", asked.id)?);
    shown(&context, &queue, asked.tenant.as_deref(), &id, contents).await
}

async fn show_by_path(
    context: OperatorContext,
    Path((queue, id)): Path<(String, String)>,
    QueryParams(asked): QueryParams<EventRefByPath>,
) -> Result<Json<Value>, ApiProblem> {
    context.may_read()?;
    let contents = is_yes("contents", asked.contents.as_deref())?;
    shown(&context, &queue, asked.tenant.as_deref(), &id, contents).await
}

pub(super) fn is_yes(name: &str, text: Option<&str>) -> Result<bool, ApiProblem> {
    match text {
        None | Some("0" | "false") => Ok(false),
        Some("1" | "true") => Ok(true),
        Some(_) => Err(ApiProblem::bad_request(format!("`{name}` is 1 or 0"))),
    }
}

async fn shown(
    context: &OperatorContext,
    queue: &str,
    tenant: Option<&str>,
    id: &str,
    contents: bool,
) -> Result<Json<Value>, ApiProblem> {
    let tenant = context.tenant(tenant)?;
    context.caller.queue(queue)?;
    let shown = context.desk.show(&tenant, queue, id).await?.ok_or_else(|| no_event(queue, &tenant, id))?;
    let name = Event::new(queue, id).tenant(tenant);
    let event = shown.event.as_deref();
    let mut answer = to_json::event(event.unwrap_or(&name), &shown.found);
    if contents && event.is_some() {
        context.desk.note("read-contents", &format!("{queue}/{}/{id}", name.tenant), 1, "").await?;
    }
    if let Some(event) = event.filter(|_| contents)
        && let Value::Object(members) = &mut answer
    {
        members.extend(wire::contents(event));
    }
    answer["history"] = shown.found.history.as_deref().map_or(json!([]), wire::history);
    let name = event.unwrap_or(&name);
    if let Some(hold) = hold(context, name, &shown.found).await? {
        answer["waits"] = hold.json();
    }
    let behind = shown.behind.iter().map(|(event, found)| to_json::event(event, found));
    answer["behind"] = behind.collect();
    Ok(Json(answer))
}

/// Why an event waits just now.
async fn hold(
    context: &OperatorContext,
    event: &Event,
    found: &EventStatus,
) -> Result<Option<Hold>, ApiProblem> {
    if found.state.is_ended() || matches!(found.state, State::Dead | State::Running) {
        return Ok(None);
    }
    let rules = context.desk.rules().await?.list;
    let pressures = context.app.redrive.pressures();
    let pressure = pressures.iter().find(|pressure| pressure.queue == event.queue);
    let first = match &event.key {
        None => None,
        Some(key) => {
            let (queue, tenant) = (Some(event.queue.clone()), Some(event.tenant.clone()));
            let filter = Filter { queue, tenant, key: Some(key.clone()), ..Filter::default() };
            let query = EventQuery { filter, state: None, after: None, limit: 1 };
            context.desk.list(query).await?.events.into_iter().next()
        }
    };
    let before = first.as_ref().filter(|(first, head)| {
        let holds = head.state != State::Dead || head.holds;
        first.id != event.id && head.seq < found.seq && holds
    });
    let is_pulled = {
        let live = context.app.live();
        live.config.queues.get(&event.queue).is_some_and(|queue| queue.pull.is_some())
    };
    let facts = Facts {
        queue: &event.queue,
        tenant: &event.tenant,
        key: event.key.as_deref(),
        state: Some(found.state),
        due: found.due,
        attempts: found.attempts,
        head: before.map(|(first, head)| (first.id.as_str(), head.state == State::Dead)),
        rules: &rules,
        breaker: pressure.and_then(|pressure| pressure.breaker),
        budget: pressure.and_then(|pressure| pressure.budget_tokens),
        is_pulled,
    };
    Ok(waits::why(&facts, context.app.redrive.now()))
}

/// 404 for an event.
pub(super) fn no_event(queue: &str, tenant: &str, id: &str) -> ApiProblem {
    let of = if tenant.is_empty() { String::new() } else { format!(" of the tenant `{tenant}`") };
    ApiProblem::not_found(format!(
        "there is no event `{id}`{of} in the queue `{queue}`, or it has been forgotten"
    ))
}

/// Looks up an id, whatever the tenant and the queue of its events; done ones are found too.
async fn lookup(
    context: OperatorContext,
    QueryParams(asked): QueryParams<LookupQuery>,
) -> Result<Json<Value>, ApiProblem> {
    context.may_read()?;
    let id = needed("id", asked.id)?;
    let tenant = context.caller.tenant(asked.tenant.as_deref())?;
    let queue = context.caller.queue_of_filter(asked.queue)?;
    let mut all = context.app.redrive.events_by_id(&id).await?;
    all.sort_by(|a, b| (&a.tenant, &a.queue).cmp(&(&b.tenant, &b.queue)));
    // More than so many with one id are not all told.
    let complete = all.len() < FOUND_MAX;
    let is_asked = |named: &&Named| {
        queue.as_ref().is_none_or(|queue| named.queue == *queue)
            && tenant.is_none_or(|tenant| named.tenant == tenant)
    };
    let event =
        |named: &Named| to_json::event(&Event::new(&named.queue, &id).tenant(&named.tenant), &named.found);
    let events: Vec<Value> = all.iter().filter(is_asked).map(event).collect();
    Ok(Json(json!({ "events": events, "complete": complete })))
}
