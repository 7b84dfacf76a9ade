//! Looking: groups, pages of events, one event, and where an id is.

use std::collections::BTreeSet;
use std::sync::Arc;

use axum::routing::get;
use axum::{Json, Router};
use redrive::desk::{Filter, GroupBy, GroupQuery};
use redrive::event::State;
use redrive::{Event, Query};
use serde::Deserialize;
use serde_json::{Value, json};

use super::super::{Path, Problem, wire};
use super::asked::{Asked, PAGE, Search, needed, page};
use super::{Seat, view};
use crate::app::App;

/// How many places are looked at one by one for an id. Each is an index away: some ten milliseconds in all.
const PLACES_MAX: usize = 1000;
/// How many pages are walked for an id that is in none of the likely places; a page looks at ten thousand events.
const WALKED_MAX: usize = 20;

pub(super) fn routes() -> Router<Arc<App>> {
    Router::new()
        .route("/v1/dead/groups", get(groups))
        .route("/v1/events", get(list))
        .route("/v1/event", get(show))
        .route("/v1/queues/{queue}/events/{id}", get(show_by_path))
        .route("/v1/lookup", get(lookup))
}

#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Groups {
    by: Option<String>,
    queue: Option<String>,
    tenant: Option<String>,
    limit: Option<usize>,
}

async fn groups(seat: Seat, Asked(asked): Asked<Groups>) -> Result<Json<Value>, Problem> {
    seat.may_read()?;
    let by = match asked.by.as_deref() {
        None | Some("cause") => GroupBy::Cause,
        Some("queue") => GroupBy::Queue,
        Some("tenant") => GroupBy::Tenant,
        Some("type") => GroupBy::Type,
        Some("key") => GroupBy::Key,
        Some(other) => {
            let words = "cause, queue, tenant, type, key";
            let detail = format!("letters are not put together by `{other}`; there are {words}");
            return Err(Problem::bad_request(detail));
        }
    };
    let tenant = seat.caller.tenant(asked.tenant.as_deref())?.map(str::to_owned);
    let limit = page(asked.limit)?;
    // One more, to see whether that is all.
    let query = GroupQuery { by, queue: asked.queue, tenant, limit: limit + 1 };
    let mut groups = seat.desk.groups(query).await?;
    let more = groups.len() > limit;
    groups.truncate(limit);
    let mut answer = json!({ "groups": groups.iter().map(view::group).collect::<Vec<_>>(), "more": more });
    if let Some(looked) = groups.iter().find_map(|group| group.looked) {
        answer["looked"] = looked.into();
    }
    Ok(Json(answer))
}

async fn list(seat: Seat, Asked(asked): Asked<Search>) -> Result<Json<Value>, Problem> {
    seat.may_read()?;
    let (state, after) = (asked.state()?, asked.after()?);
    let query = Query { filter: asked.filter(&seat)?, state, after, limit: asked.limit()?.unwrap_or(PAGE) };
    let page = seat.desk.list(query).await?;
    let events: Vec<Value> = page.events.iter().map(|(event, found)| view::event(event, found)).collect();
    let mut answer = json!({ "events": events });
    if let Some(next) = page.next {
        // As text: it may be larger than what a number keeps exactly everywhere.
        answer["next"] = next.0.to_string().into();
    }
    if !page.damaged.is_empty() {
        answer["damaged"] = page.damaged.into();
    }
    Ok(Json(answer))
}

#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct One {
    queue: Option<String>,
    tenant: Option<String>,
    id: Option<String>,
    contents: Option<String>,
}

/// The same where its names are in the address.
#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct ByPath {
    tenant: Option<String>,
    contents: Option<String>,
}

#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Sought {
    queue: Option<String>,
    tenant: Option<String>,
    id: Option<String>,
}

async fn show(seat: Seat, Asked(asked): Asked<One>) -> Result<Json<Value>, Problem> {
    seat.may_read()?;
    let contents = is_yes("contents", asked.contents.as_deref())?;
    let (queue, id) = (needed("queue", asked.queue)?, needed("id", asked.id)?);
    shown(&seat, &queue, asked.tenant.as_deref(), &id, contents).await
}

async fn show_by_path(
    seat: Seat,
    Path((queue, id)): Path<(String, String)>,
    Asked(asked): Asked<ByPath>,
) -> Result<Json<Value>, Problem> {
    seat.may_read()?;
    let contents = is_yes("contents", asked.contents.as_deref())?;
    shown(&seat, &queue, asked.tenant.as_deref(), &id, contents).await
}

pub(super) fn is_yes(name: &str, text: Option<&str>) -> Result<bool, Problem> {
    match text {
        None | Some("0" | "false") => Ok(false),
        Some("1" | "true") => Ok(true),
        Some(_) => Err(Problem::bad_request(format!("`{name}` is 1 or 0"))),
    }
}

async fn shown(
    seat: &Seat,
    queue: &str,
    tenant: Option<&str>,
    id: &str,
    contents: bool,
) -> Result<Json<Value>, Problem> {
    let tenant = seat.tenant(tenant)?;
    let shown = seat.desk.show(&tenant, queue, id).await?.ok_or_else(|| no_event(queue, &tenant, id))?;
    let name = Event::new(queue, id).tenant(tenant);
    let event = shown.event.as_deref();
    let mut answer = view::event(event.unwrap_or(&name), &shown.found);
    if let Some(event) = event.filter(|_| contents)
        && let Value::Object(members) = &mut answer
    {
        members.extend(wire::contents(event));
    }
    answer["story"] = shown.found.story.as_deref().map_or(json!([]), wire::story);
    let behind = shown.behind.iter().map(|(event, found)| view::event(event, found));
    answer["behind"] = behind.collect();
    Ok(Json(answer))
}

/// 404 for an event.
pub(super) fn no_event(queue: &str, tenant: &str, id: &str) -> Problem {
    let of = if tenant.is_empty() { String::new() } else { format!(" of the tenant `{tenant}`") };
    Problem::not_found(format!("there is no event `{id}`{of} in the queue `{queue}`, or it is forgotten"))
}

/// Where an id is. It is looked for at the likely places first: every queue and tenant that is configured or has dead
/// letters. What is in none of them is walked for, as far as that goes in a moment; `complete` says whether all was
/// looked at.
async fn lookup(seat: Seat, Asked(asked): Asked<Sought>) -> Result<Json<Value>, Problem> {
    seat.may_read()?;
    let id = needed("id", asked.id)?;
    let tenant = seat.caller.tenant(asked.tenant.as_deref())?.map(str::to_owned);
    let places = places(&seat, asked.queue.as_deref(), tenant.as_deref()).await?;
    let mut found: Vec<Value> = Vec::new();
    for (queue, tenant) in places.iter().take(PLACES_MAX) {
        if let Some(known) = seat.app.redrive.event(tenant, queue, &id).await? {
            found.push(view::event(&Event::new(queue, &id).tenant(tenant), &known));
        }
    }
    let named = asked.queue.is_some() && tenant.is_some();
    let mut complete = named;
    if found.is_empty() && !named {
        let filter = Filter { queue: asked.queue, tenant, id: Some(id), ..Filter::default() };
        complete = true;
        for state in [Some(State::Dead), Some(State::Discarded), None] {
            let mut query = Query { filter: filter.clone(), state, after: None, limit: PAGE };
            for _ in 0..WALKED_MAX {
                let page = seat.desk.list(query.clone()).await?;
                found.extend(page.events.iter().map(|(event, found)| view::event(event, found)));
                query.after = page.next;
                if query.after.is_none() || !found.is_empty() {
                    break;
                }
            }
            complete &= query.after.is_none();
            if !found.is_empty() {
                break;
            }
        }
    }
    Ok(Json(json!({ "events": found, "complete": complete })))
}

/// Where an event is likely to be.
async fn places(
    seat: &Seat,
    queue: Option<&str>,
    tenant: Option<&str>,
) -> Result<Vec<(String, String)>, Problem> {
    let grouped = async |by| {
        let query = GroupQuery { by, queue: None, tenant: tenant.map(str::to_owned), limit: PLACES_MAX };
        let groups = seat.desk.groups(query).await?;
        Ok::<_, Problem>(groups.into_iter().map(|group| group.title).collect::<BTreeSet<String>>())
    };
    let queues = match queue {
        Some(queue) => BTreeSet::from([queue.to_owned()]),
        None => {
            let mut queues = grouped(GroupBy::Queue).await?;
            queues.extend(seat.app.live().config.queues.keys().cloned());
            queues
        }
    };
    let tenants = match tenant {
        Some(tenant) => BTreeSet::from([tenant.to_owned()]),
        None => {
            let mut tenants = grouped(GroupBy::Tenant).await?;
            let live = seat.app.live();
            tenants.extend(live.config.tenants.keys().cloned());
            tenants.extend(live.config.tokens.values().filter_map(|token| token.tenant.clone()));
            tenants.insert(String::new());
            tenants
        }
    };
    let pairs = tenants.iter().flat_map(|tenant| queues.iter().map(|queue| (queue.clone(), tenant.clone())));
    Ok(pairs.collect())
}
