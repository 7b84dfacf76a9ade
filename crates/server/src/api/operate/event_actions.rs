//! Actions on named events: redrive, discard, restore, kill, retry now, edit.
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
use redrive::desk::{CommandResult, Edit, EventRef, How, Refusal};
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};

use super::super::{ApiProblem, JsonObject, Path, RequestBody, wire};
use super::inspect::no_event;
use super::{OperatorContext, query};
use crate::app::App;
use crate::push::header_names::check_of_event;

/// An action on named events.
#[derive(Debug, Clone, Copy)]
enum EventAction {
    Redrive,
    Discard,
    Restore,
    Kill,
    RetryNow,
}

impl EventAction {
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
    for verb in EventAction::ALL {
        let many = async move |context: OperatorContext, body: RequestBody| many(verb, context, body).await;
        let one =
            async move |context: OperatorContext,
                        Path((queue, id)): Path<(String, String)>,
                        body: RequestBody| { one(verb, context, queue, id, body).await };
        routes = routes
            .route(&format!("/v1/events/{}", verb.word()), post(many))
            .route(&format!("/v1/queues/{{queue}}/events/{{id}}/{}", verb.word()), post(one));
    }
    routes
}

/// The events, and the redrive options.
#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct ActionRequest {
    targets: Vec<JsonObject<EventTarget>>,
    to: Option<String>,
    keep_attempts: bool,
    out_of_order: bool,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct EventTarget {
    queue: String,
    #[serde(default)]
    tenant: Option<String>,
    id: String,
    #[serde(default)]
    rev: Option<u32>,
}

/// One event by its path, and the redrive options.
#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct SingleActionRequest {
    tenant: Option<String>,
    rev: Option<u32>,
    to: Option<String>,
    keep_attempts: bool,
    out_of_order: bool,
}

async fn many(
    verb: EventAction,
    context: OperatorContext,
    body: RequestBody,
) -> Result<Response, ApiProblem> {
    context.may_operate()?;
    let ActionRequest { targets, to, keep_attempts, out_of_order } = body.object()?;
    let most = context.app.live().config.server.batch_max;
    if targets.is_empty() || targets.len() > most {
        let detail = format!("`targets` must have 1 to {most} entries; this request has {}", targets.len());
        return Err(ApiProblem::new(StatusCode::UNPROCESSABLE_ENTITY, "targets", detail));
    }
    let target = |JsonObject(named): JsonObject<EventTarget>| {
        let tenant = context.tenant(named.tenant.as_deref())?;
        context.caller.queue(&named.queue)?;
        Ok(EventRef { rev: named.rev, ..EventRef::new(tenant, named.queue, named.id) })
    };
    let targets: Vec<EventRef> = targets.into_iter().map(target).collect::<Result<_, ApiProblem>>()?;
    let how = how(&context, verb, to, keep_attempts, out_of_order)?;
    let done = perform(&context, verb, targets.clone(), how).await?;
    let status = if done.refused.is_empty() { StatusCode::OK } else { StatusCode::MULTI_STATUS };
    Ok((status, Json(operated(&done, &targets))).into_response())
}

async fn one(
    verb: EventAction,
    context: OperatorContext,
    queue: String,
    id: String,
    body: RequestBody,
) -> Result<Json<Value>, ApiProblem> {
    context.may_operate()?;
    let SingleActionRequest { tenant, rev, to, keep_attempts, out_of_order } = body.object_or_default()?;
    context.caller.queue(&queue)?;
    let target = EventRef { rev, ..EventRef::new(context.tenant(tenant.as_deref())?, queue, id) };
    let how = how(&context, verb, to, keep_attempts, out_of_order)?;
    let done = perform(&context, verb, vec![target.clone()], how).await?;
    match done.refused.first() {
        Some((_, Refusal::Unknown)) => Err(no_event(&target.queue, &target.tenant, &target.id)),
        Some((_, refusal)) => Err(wire::refused(refusal)),
        None => Ok(Json(operated(&done, &[target]))),
    }
}

/// The redrive options. Other actions accept none.
fn how(
    context: &OperatorContext,
    verb: EventAction,
    to: Option<String>,
    keep_attempts: bool,
    out_of_order: bool,
) -> Result<How, ApiProblem> {
    let how = How { keep_attempts, to, out_of_order };
    if !matches!(verb, EventAction::Redrive) && how != How::default() {
        let detail = "`to`, `keep_attempts` and `out_of_order` apply to redrives only";
        return Err(ApiProblem::bad_request(detail));
    }
    context.may_send_to(how.to.as_deref())?;
    Ok(how)
}

async fn perform(
    context: &OperatorContext,
    verb: EventAction,
    targets: Vec<EventRef>,
    how: How,
) -> Result<CommandResult, ApiProblem> {
    let desk = &context.desk;
    Ok(match verb {
        EventAction::Redrive => desk.redrive(targets, how).await?,
        EventAction::Discard => desk.discard(targets).await?,
        EventAction::Restore => desk.restore(targets).await?,
        EventAction::Kill => desk.kill(targets).await?,
        EventAction::RetryNow => desk.retry_now(targets).await?,
    })
}

/// The result of an action.
fn operated(done: &CommandResult, targets: &[EventRef]) -> Value {
    let name = |at: usize| {
        let named = targets.get(at).or(targets.first());
        named.map(|EventRef { queue, tenant, id, .. }| json!({ "queue": queue, "tenant": tenant, "id": id }))
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

/// The new contents of a dead letter.
#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct EditRequest {
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

async fn edit(context: OperatorContext, body: RequestBody) -> Result<Json<Value>, ApiProblem> {
    context.may_operate()?;
    let mut edited: EditRequest = body.object()?;
    let queue = query::needed("queue", edited.queue.take())?;
    let id = query::needed("id", edited.id.take())?;
    replace(&context, queue, id, edited).await
}

async fn edit_by_path(
    context: OperatorContext,
    Path((queue, id)): Path<(String, String)>,
    body: RequestBody,
) -> Result<Json<Value>, ApiProblem> {
    context.may_operate()?;
    let edited: EditRequest = body.object()?;
    if edited.queue.is_some() || edited.id.is_some() {
        return Err(ApiProblem::bad_request("queue and id are given by the path; remove them from the body"));
    }
    replace(&context, queue, id, edited).await
}

async fn replace(
    context: &OperatorContext,
    queue: String,
    id: String,
    edited: EditRequest,
) -> Result<Json<Value>, ApiProblem> {
    if !context.app.live().config.server.edit {
        let detail = "editing is disabled; set `edit = true` in [server] to enable it";
        return Err(ApiProblem::new(StatusCode::FORBIDDEN, "edit-off", detail));
    }
    let tenant = context.tenant(edited.tenant.as_deref())?;
    context.caller.queue(&queue)?;
    let found = context.app.redrive.event(&tenant, &queue, &id).await?;
    let found = found.ok_or_else(|| no_event(&queue, &tenant, &id))?;
    let rev = edited.rev.unwrap_or(found.rev);
    // The same request again has the same id, so it cannot create two events.
    let new_id = edited.new_id.unwrap_or_else(|| format!("{id}.edit{rev}"));
    let payload = match (edited.payload, edited.payload_base64) {
        (Some(_), Some(_)) => {
            return Err(ApiProblem::bad_request("an event has `payload` or `payload_base64`, not both"));
        }
        (Some(json), None) => Some(json.get().as_bytes().to_vec()),
        (None, Some(text)) => {
            let wrong = |error| ApiProblem::bad_request(format!("`payload_base64`: {error}"));
            Some(STANDARD.decode(text).map_err(wrong)?)
        }
        (None, None) => None,
    };
    for (name, value) in edited.headers.iter().flatten() {
        check_of_event(name, value).map_err(ApiProblem::bad_request)?;
    }
    let edit = Edit {
        id: new_id.clone(),
        payload,
        content_type: edited.content_type,
        headers: edited.headers.map(|headers| headers.into_iter().collect()),
        out_of_order: edited.out_of_order,
    };
    let letter = EventRef { rev: Some(rev), ..EventRef::new(&tenant, &queue, &id) };
    let done = context.desk.edit(letter, edit).await?;
    Ok(Json(json!({ "queue": queue, "tenant": tenant, "id": new_id, "original": id, "unsure": done.unsure })))
}
