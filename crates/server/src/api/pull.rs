//! Pulling: workers in any language lease events and settle them.
//!
//! | request | does |
//! |---|---|
//! | `POST /v1/queues/{queue}/leases` | leases up to `max` events, and waits for them |
//! | `POST /v1/queues/{queue}/leases/extend` | makes leases good for longer |
//! | `POST /v1/queues/{queue}/leases/settle` | says of each: `ok`, `retry`, `permanent`, `drop` |
//!
//! A lease is durable, and is judged by its attempt. Each item of an answer says for itself whether it was applied;
//! where some were not, the status of the whole is 207.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use axum::{Extension, Router};
use http::StatusCode;
use redrive::engine::lease::{LEASES_MAX, Lease, LeaseHandle, LeaseLimits};
use redrive::event::bounds::PAYLOAD_BYTES_MAX;
use redrive::store::lease::LeaseSettleResult;
use redrive::{EventStatus, Reply};
use serde::Deserialize;
use serde_json::{Value, json};

use super::body::RequiredRight;
use super::path::Path;
use super::response_memory::ResponseMemory;
use super::{ApiProblem, JsonObject, RequestBody, cloudevents, wire};
use crate::api::long_poll::PollTarget;
use crate::app::App;
use crate::auth::Caller;
use crate::config::{Order, PullSettings, Right};
use crate::observe::attempt_feed::Line;

mod settle;

use settle::{DispositionWord, Settlement};

/// Bytes of payload that an answer has, roughly; a worker that wants more asks again.
const BYTES_MAX: usize = 4 << 20;

pub(super) fn routes() -> Router<Arc<App>> {
    Router::new()
        .route("/v1/queues/{queue}/leases", post(lease))
        .route("/v1/queues/{queue}/leases/extend", post(extend))
        .route("/v1/queues/{queue}/leases/settle", post(settle))
        .layer(Extension(RequiredRight(Right::Consume)))
}

/// A worker's lease request.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct LeaseBody {
    /// How many events at most.
    max: Option<usize>,
    /// For how long.
    #[serde(with = "redrive::config::optional")]
    lease: Option<Duration>,
    /// How long to wait for them.
    #[serde(with = "redrive::config::optional")]
    wait: Option<Duration>,
    /// Of this tenant alone.
    tenant: Option<String>,
}

async fn lease(
    State(app): State<Arc<App>>,
    caller: Caller,
    Path(queue): Path<String>,
    body: RequestBody,
) -> Result<Response, ApiProblem> {
    caller.may_in(Right::Consume, &queue)?;
    let pull = pull_settings(&app, &queue)?;
    let ask: LeaseBody = if body.bytes.is_empty() { LeaseBody::default() } else { body.object()? };
    let tenant = caller.tenant(ask.tenant.as_deref())?;
    let max = ask.max.unwrap_or(1);
    if !(1..=LEASES_MAX).contains(&max) {
        return Err(senseless(format!("`max` must be from 1 to {LEASES_MAX}, not {max}")));
    }
    let time = lease_time(&pull, ask.lease)?;
    let wait_max = app.live().config.server.wait_max;
    let wait = ask.wait.unwrap_or_default().min(wait_max);
    let wanted = PollTarget { queue: queue.clone(), tenant: tenant.map(str::to_owned) };
    // The request is parsed; while it waits, its body needs no memory.
    drop(body);
    let limits = LeaseLimits { events: max, bytes: BYTES_MAX };
    let look = async || {
        // Memory for the response first: leased events have to be sent.
        let room = ResponseMemory::take(&app, BYTES_MAX + PAYLOAD_BYTES_MAX)?;
        Ok::<_, ApiProblem>((app.redrive.lease_for(&queue, tenant, limits, time).await?, room))
    };
    Ok(match app.lines.fetch(wanted, wait, look).await? {
        None => axum::Json(json!({ "leases": [] })).into_response(),
        Some((leases, room)) => {
            let leases: Vec<Value> = leases.iter().map(view).collect();
            room.answer(&json!({ "leases": leases }))
        }
    })
}

/// A lease as its holder sees it.
fn view(lease: &Lease) -> Value {
    let event = &lease.event;
    let mut members = wire::contents(event);
    let mut put = |name: &str, value: Value| members.insert(name.to_owned(), value);
    put("id", event.id.clone().into());
    put("tenant", event.tenant.clone().into());
    if let Some(key) = &event.key {
        put("key", key.clone().into());
    }
    put("attempt", lease.attempt.into());
    put("token", lease.token.clone().into());
    put("until", wire::moment(lease.until.into()).into());
    put("mode", lease.mode.as_str().into());
    put("idempotency_key", lease.idempotency_key().into());
    if lease.out_of_order {
        put("out_of_order", true.into());
    }
    if let Some(attributes) = cloudevents::attributes(event) {
        put("cloudevent", attributes);
    }
    Value::Object(members)
}

/// Which lease is meant.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct LeaseRef {
    id: String,
    tenant: Option<String>,
    attempt: u32,
    token: String,
}

/// Leases to extend.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ExtendRequest {
    leases: Vec<LeaseRef>,
    /// For how long, from now.
    #[serde(default, with = "redrive::config::optional")]
    lease: Option<Duration>,
}

async fn extend(
    State(app): State<Arc<App>>,
    caller: Caller,
    Path(queue): Path<String>,
    body: RequestBody,
) -> Result<Response, ApiProblem> {
    caller.may_in(Right::Consume, &queue)?;
    let pull = pull_settings(&app, &queue)?;
    let longer: ExtendRequest = body.object()?;
    bounded(&app, longer.leases.len())?;
    let time = lease_time(&pull, longer.lease)?;
    let leases = longer.leases.into_iter().map(|which| held(&caller, &queue, which));
    let leases: Vec<LeaseHandle> = leases.collect::<Result<_, _>>()?;
    let said = app.redrive.extend(leases.clone(), time).await?;
    let mut results = Vec::with_capacity(said.len());
    for (held, said) in leases.iter().zip(said) {
        // An event that is done cannot be extended.
        let said = if said == LeaseSettleResult::Already { now_so(&app, held).await? } else { said };
        results.push(result(held, said));
    }
    Ok(answer(&results))
}

/// The settlements of leased events.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct SettleRequest {
    leases: Vec<JsonObject<Settlement>>,
}

async fn settle(
    State(app): State<Arc<App>>,
    caller: Caller,
    Path(queue): Path<String>,
    body: RequestBody,
) -> Result<Response, ApiProblem> {
    caller.may_in(Right::Consume, &queue)?;
    pull_settings(&app, &queue)?;
    let SettleRequest { leases } = body.object()?;
    bounded(&app, leases.len())?;
    let mut replies: Vec<(LeaseHandle, Reply)> = Vec::with_capacity(leases.len());
    let mut dispositions = Vec::with_capacity(leases.len());
    for (at, JsonObject(item)) in leases.into_iter().enumerate() {
        let disposition = item.disposition;
        let (which, reply) = item.read().map_err(|what| senseless(format!("leases[{at}]: {what}")))?;
        replies.push((held(&caller, &queue, which)?, reply));
        dispositions.push(disposition);
    }
    // A retry becomes due later, and in an ordered queue the next event of a key may be leased. Otherwise there is
    // nothing new for waiting workers.
    let frees_others = keeps_order(&app, &queue) || dispositions.contains(&DispositionWord::Retry);
    let said = app.redrive.settle(replies.clone()).await?;
    if frees_others {
        app.lines.ring(&queue);
    }
    let mut results = Vec::with_capacity(said.len());
    for (((held, reply), disposition), said) in replies.iter().zip(dispositions).zip(said) {
        // It is done, and this says that it is not.
        let contradicts = said == LeaseSettleResult::Already && disposition != DispositionWord::Ok;
        let said = if contradicts { now_so(&app, held).await? } else { said };
        if said == LeaseSettleResult::Applied && app.feed.is_watched() {
            let mut told = wire::attempt(&held.id, held.attempt, reply);
            told["tenant"] = held.tenant.clone().into();
            app.feed.note(Line { queue: queue.clone(), tenant: held.tenant.clone(), told });
        }
        results.push(result(held, said));
    }
    Ok(answer(&results))
}

/// How a queue is pulled from.
fn pull_settings(app: &App, queue: &str) -> Result<PullSettings, ApiProblem> {
    let live = app.live();
    let known = live.config.queues.get(queue).ok_or_else(|| ApiProblem::no_queue(queue))?;
    known.pull.clone().ok_or_else(|| {
        let detail = format!("the queue `{queue}` pushes to a destination; workers cannot pull from it");
        ApiProblem::new(StatusCode::CONFLICT, "not-pulled", detail)
    })
}

fn keeps_order(app: &App, queue: &str) -> bool {
    app.live().config.queues.get(queue).is_some_and(|queue| queue.order == Order::Key)
}

fn lease_time(pull: &PullSettings, asked: Option<Duration>) -> Result<Duration, ApiProblem> {
    let time = asked.unwrap_or(pull.lease);
    if time.is_zero() || time > pull.lease_max {
        let (asked, max) = (humantime::format_duration(time), humantime::format_duration(pull.lease_max));
        return Err(senseless(format!(
            "`lease` must be above 0s and at most {max} for this queue, not {asked}"
        )));
    }
    Ok(time)
}

fn senseless(detail: String) -> ApiProblem {
    ApiProblem::new(StatusCode::UNPROCESSABLE_ENTITY, "senseless", detail)
}

fn bounded(app: &App, count: usize) -> Result<(), ApiProblem> {
    let max = app.live().config.server.batch_max;
    if count > max {
        let detail = format!("{count} leases are too many for one request; send at most {max}");
        return Err(ApiProblem::new(StatusCode::PAYLOAD_TOO_LARGE, "too-many", detail));
    }
    Ok(())
}

fn held(caller: &Caller, queue: &str, which: LeaseRef) -> Result<LeaseHandle, ApiProblem> {
    let LeaseRef { id, tenant, attempt, token } = which;
    let tenant = caller.tenant(tenant.as_deref())?.unwrap_or_default().to_owned();
    Ok(LeaseHandle { tenant, queue: queue.to_owned(), id, attempt, token })
}

/// The current state, for a worker whose settle does not count.
async fn now_so(app: &App, held: &LeaseHandle) -> Result<LeaseSettleResult, ApiProblem> {
    let found = app.redrive.event(&held.tenant, &held.queue, &held.id).await?;
    Ok(found.map_or(LeaseSettleResult::Unknown, |found: EventStatus| {
        LeaseSettleResult::Conflict(Box::new(found))
    }))
}

fn result(held: &LeaseHandle, said: LeaseSettleResult) -> (StatusCode, Value) {
    let (status, word, now) = match said {
        LeaseSettleResult::Applied => (StatusCode::OK, "applied", None),
        LeaseSettleResult::Already => (StatusCode::OK, "already", None),
        LeaseSettleResult::Conflict(found) => (StatusCode::CONFLICT, "conflict", Some(wire::found(&found))),
        LeaseSettleResult::Lapsed(found) => (StatusCode::CONFLICT, "lapsed", Some(wire::found(&found))),
        LeaseSettleResult::Unknown => (StatusCode::NOT_FOUND, "unknown", None),
    };
    let LeaseHandle { tenant, id, attempt, .. } = held;
    let mut view = json!({
        "id": id, "tenant": tenant, "attempt": attempt, "status": status.as_u16(), "result": word,
    });
    if let Some(now) = now {
        view["now"] = now;
    }
    // A worker that stops at a conflict would throw away its work.
    if word == "lapsed" {
        view["settle_counts"] = true.into();
    }
    (status, view)
}

fn answer(results: &[(StatusCode, Value)]) -> Response {
    let all = results.iter().all(|(status, _)| *status == StatusCode::OK);
    let status = if all { StatusCode::OK } else { StatusCode::MULTI_STATUS };
    let views: Vec<&Value> = results.iter().map(|(_, view)| view).collect();
    (status, axum::Json(json!({ "results": views }))).into_response()
}
