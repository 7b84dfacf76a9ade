//! Orders about events that are named: put back, take away, bring back, kill, make due, edit.
//!
//! Each event is changed or refused by itself. An answer about several is 200 where all were changed and 207 where some
//! were refused, each with its place and the reason; about one event by its address, a refusal is the problem itself.

use std::sync::Arc;

use axum::response::{IntoResponse, Response};
use axum::routing::post;
use axum::{Json, Router};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::StatusCode;
use redrive::desk::{Edit, How, Operated, Refusal, Target};
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};

use super::super::{Body, Object, Path, Problem, wire};
use super::look::no_event;
use super::{Seat, asked};
use crate::app::App;
use crate::push::names::check_of_event;

/// What is done to events that are named.
#[derive(Debug, Clone, Copy)]
enum Verb {
    Redrive,
    Discard,
    Restore,
    Kill,
    RetryNow,
}

impl Verb {
    const ALL: [Self; 5] = [Self::Redrive, Self::Discard, Self::Restore, Self::Kill, Self::RetryNow];

    const fn word(self) -> &'static str {
        match self {
            Self::Redrive => "redrive",
            Self::Discard => "discard",
            Self::Restore => "restore",
            Self::Kill => "kill",
            Self::RetryNow => "retry-now",
        }
    }
}

pub(super) fn routes() -> Router<Arc<App>> {
    let mut routes = Router::new()
        .route("/v1/events/edit", post(edit))
        .route("/v1/queues/{queue}/events/{id}/edit", post(edit_by_path));
    for verb in Verb::ALL {
        let many = async move |seat: Seat, body: Body| many(verb, seat, body).await;
        let one = async move |seat: Seat, Path((queue, id)): Path<(String, String)>, body: Body| {
            one(verb, seat, queue, id, body).await
        };
        routes = routes
            .route(&format!("/v1/events/{}", verb.word()), post(many))
            .route(&format!("/v1/queues/{{queue}}/events/{{id}}/{}", verb.word()), post(one));
    }
    routes
}

/// Which events, and how they are put back.
#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Orders {
    targets: Vec<Object<Named>>,
    to: Option<String>,
    keep_attempts: bool,
    out_of_order: bool,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Named {
    queue: String,
    #[serde(default)]
    tenant: Option<String>,
    id: String,
    #[serde(default)]
    rev: Option<u32>,
}

/// One event by its address, and how it is put back.
#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Order {
    tenant: Option<String>,
    rev: Option<u32>,
    to: Option<String>,
    keep_attempts: bool,
    out_of_order: bool,
}

async fn many(verb: Verb, seat: Seat, body: Body) -> Result<Response, Problem> {
    seat.may_operate()?;
    let Orders { targets, to, keep_attempts, out_of_order } = body.object()?;
    let most = seat.app.live().config.server.batch_max;
    if targets.is_empty() || targets.len() > most {
        let detail = format!("an order has 1 to {most} `targets`, and this one has {}", targets.len());
        return Err(Problem::new(StatusCode::UNPROCESSABLE_ENTITY, "targets", detail));
    }
    let target = |Object(named): Object<Named>| {
        let tenant = seat.tenant(named.tenant.as_deref())?;
        Ok(Target { rev: named.rev, ..Target::new(tenant, named.queue, named.id) })
    };
    let targets: Vec<Target> = targets.into_iter().map(target).collect::<Result<_, Problem>>()?;
    let how = how(verb, to, keep_attempts, out_of_order)?;
    let done = perform(&seat, verb, targets.clone(), how).await?;
    let status = if done.refused.is_empty() { StatusCode::OK } else { StatusCode::MULTI_STATUS };
    Ok((status, Json(operated(&done, &targets))).into_response())
}

async fn one(verb: Verb, seat: Seat, queue: String, id: String, body: Body) -> Result<Json<Value>, Problem> {
    seat.may_operate()?;
    let Order { tenant, rev, to, keep_attempts, out_of_order } = body.object_or_default()?;
    let target = Target { rev, ..Target::new(seat.tenant(tenant.as_deref())?, queue, id) };
    let how = how(verb, to, keep_attempts, out_of_order)?;
    let done = perform(&seat, verb, vec![target.clone()], how).await?;
    match done.refused.first() {
        Some((_, Refusal::Unknown)) => Err(no_event(&target.queue, &target.tenant, &target.id)),
        Some((_, refusal)) => Err(wire::refused(refusal)),
        None => Ok(Json(operated(&done, &[target]))),
    }
}

/// How letters are put back. What is no redrive has none of it.
fn how(verb: Verb, to: Option<String>, keep_attempts: bool, out_of_order: bool) -> Result<How, Problem> {
    let how = How { keep_attempts, to, out_of_order };
    if !matches!(verb, Verb::Redrive) && how != How::default() {
        let detail = "`to`, `keep_attempts` and `out_of_order` are for redrives alone";
        return Err(Problem::bad_request(detail));
    }
    Ok(how)
}

async fn perform(seat: &Seat, verb: Verb, targets: Vec<Target>, how: How) -> Result<Operated, Problem> {
    let desk = &seat.desk;
    Ok(match verb {
        Verb::Redrive => desk.redrive(targets, how).await?,
        Verb::Discard => desk.discard(targets).await?,
        Verb::Restore => desk.restore(targets).await?,
        Verb::Kill => desk.kill(targets).await?,
        Verb::RetryNow => desk.retry_now(targets).await?,
    })
}

/// What became of an order.
fn operated(done: &Operated, targets: &[Target]) -> Value {
    let name = |at: usize| {
        let named = targets.get(at).or(targets.first());
        named.map(|Target { queue, tenant, id, .. }| json!({ "queue": queue, "tenant": tenant, "id": id }))
    };
    let refused = done.refused.iter().map(|(at, refusal)| {
        let mut view = name(*at).unwrap_or_default();
        let problem = wire::refused(refusal);
        (view["at"], view["reason"]) = ((*at).into(), problem.kind.into());
        view["detail"] = problem.detail.into();
        view
    });
    let refused: Vec<Value> = refused.collect();
    json!({ "changed": done.changed, "refused": refused, "unsure": done.unsure })
}

/// What a dead letter is replaced with.
#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Edited {
    queue: Option<String>,
    tenant: Option<String>,
    id: Option<String>,
    rev: Option<u32>,
    new_id: Option<String>,
    payload: Option<Box<RawValue>>,
    payload_base64: Option<String>,
    content_type: Option<String>,
    headers: Option<std::collections::BTreeMap<String, String>>,
    out_of_order: bool,
}

async fn edit(seat: Seat, body: Body) -> Result<Json<Value>, Problem> {
    seat.may_operate()?;
    let mut edited: Edited = body.object()?;
    let queue = asked::needed("queue", edited.queue.take())?;
    let id = asked::needed("id", edited.id.take())?;
    replace(&seat, queue, id, edited).await
}

async fn edit_by_path(
    seat: Seat,
    Path((queue, id)): Path<(String, String)>,
    body: Body,
) -> Result<Json<Value>, Problem> {
    seat.may_operate()?;
    let edited: Edited = body.object()?;
    if edited.queue.is_some() || edited.id.is_some() {
        return Err(Problem::bad_request("queue and id are in the address already"));
    }
    replace(&seat, queue, id, edited).await
}

async fn replace(seat: &Seat, queue: String, id: String, edited: Edited) -> Result<Json<Value>, Problem> {
    if !seat.app.live().config.server.edit {
        let detail = "editing is switched off; whoever runs the server may set `edit = true` in [server]";
        return Err(Problem::new(StatusCode::FORBIDDEN, "edit-off", detail));
    }
    let tenant = seat.tenant(edited.tenant.as_deref())?;
    let found = seat.app.redrive.event(&tenant, &queue, &id).await?;
    let found = found.ok_or_else(|| no_event(&queue, &tenant, &id))?;
    let rev = edited.rev.unwrap_or(found.rev);
    // The same order again has the same id, and so cannot make two.
    let new_id = edited.new_id.unwrap_or_else(|| format!("{id}.edit{rev}"));
    let payload = match (edited.payload, edited.payload_base64) {
        (Some(_), Some(_)) => {
            return Err(Problem::bad_request("an event has `payload` or `payload_base64`, not both"));
        }
        (Some(json), None) => Some(json.get().as_bytes().to_vec()),
        (None, Some(text)) => {
            let wrong = |error| Problem::bad_request(format!("`payload_base64`: {error}"));
            Some(STANDARD.decode(text).map_err(wrong)?)
        }
        (None, None) => None,
    };
    for (name, value) in edited.headers.iter().flatten() {
        check_of_event(name, value).map_err(Problem::bad_request)?;
    }
    let edit = Edit {
        id: new_id.clone(),
        payload,
        content_type: edited.content_type,
        headers: edited.headers.map(|headers| headers.into_iter().collect()),
        out_of_order: edited.out_of_order,
    };
    let letter = Target { rev: Some(rev), ..Target::new(&tenant, &queue, &id) };
    let done = seat.desk.edit(letter, edit).await?;
    Ok(Json(json!({ "queue": queue, "tenant": tenant, "id": new_id, "original": id, "unsure": done.unsure })))
}
