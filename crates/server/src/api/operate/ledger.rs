//! Requests under idempotency keys: which there are, what is known of one, and how an unknown one was.
//!
//! What a request was answered is shown only where it is asked for, and to who may operate: it is what a client was
//! told, perhaps with secrets in it.

use std::sync::Arc;

use axum::routing::{get, post};
use axum::{Json, Router};
use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use http::StatusCode;
use redrive::desk::{Phase, Record, Records, Reply, Resolution, Scope};
use redrive::http::seal::chance;
use serde::Deserialize;
use serde_json::{Value, json};

use super::super::{Body, Problem};
use super::asked::{Asked, needed, page};
use super::look::is_yes;
use super::{Seat, view};
use crate::app::App;
use crate::push::names::check_of_answer;

pub(super) fn routes() -> Router<Arc<App>> {
    Router::new()
        .route("/v1/ledger", get(list))
        .route("/v1/ledger/request", get(show))
        .route("/v1/ledger/resolve", post(resolve))
}

#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Listed {
    tenant: Option<String>,
    state: Option<String>,
    resource: Option<String>,
    after: Option<String>,
    limit: Option<usize>,
}

/// A page of requests. One may have few, or none, and still say where to go on.
async fn list(seat: Seat, Asked(asked): Asked<Listed>) -> Result<Json<Value>, Problem> {
    seat.may_read()?;
    let tenant = seat.caller.tenant(asked.tenant.as_deref())?.map(str::to_owned);
    let phase = asked.state.as_deref().map(phase).transpose()?;
    let after = asked.after.as_deref().map(after).transpose()?;
    let records = Records { tenant, resource: asked.resource, phase, after, limit: page(asked.limit)? };
    let page = seat.desk.requests(records).await?;
    let requests = page.records.iter().map(|(scope, record)| view::request(scope, record));
    let mut answer = json!({ "requests": requests.collect::<Vec<_>>() });
    if let Some(Scope { tenant, operation, key }) = page.next {
        answer["next"] = URL_SAFE_NO_PAD.encode(json!([tenant, operation, key]).to_string()).into();
    }
    Ok(Json(answer))
}

fn phase(word: &str) -> Result<&'static str, Problem> {
    let found = Phase::WORDS.into_iter().find(|known| *known == word);
    let detail = || format!("no request is `{word}`; there are {}", Phase::WORDS.join(", "));
    found.ok_or_else(|| Problem::bad_request(detail()))
}

fn after(text: &str) -> Result<Scope, Problem> {
    let parts = URL_SAFE_NO_PAD.decode(text).ok().and_then(|bytes| serde_json::from_slice(&bytes).ok());
    let (tenant, operation, key) =
        parts.ok_or_else(|| Problem::bad_request("`after` is the `next` of the page before"))?;
    Ok(Scope { tenant, operation, key })
}

#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct One {
    tenant: Option<String>,
    operation: Option<String>,
    key: Option<String>,
    contents: Option<String>,
}

async fn show(seat: Seat, Asked(asked): Asked<One>) -> Result<Json<Value>, Problem> {
    seat.may_read()?;
    let contents = is_yes("contents", asked.contents.as_deref())?;
    if contents {
        seat.may_operate()?;
    }
    let scope = Scope {
        tenant: seat.tenant(asked.tenant.as_deref())?,
        operation: needed("operation", asked.operation)?,
        key: needed("key", asked.key)?,
    };
    let record = seat.desk.request(scope.clone()).await?.ok_or_else(|| no_request(&scope))?;
    let mut answer = view::request(&scope, &record);
    if let (true, Phase::Completed { reply, .. }) = (contents, record.phase) {
        let keep = crate::ledger::keep(&seat.app.live().config.ledger)?;
        match keep.replay(&scope, reply) {
            Ok(reply) => view::put_contents(&mut answer, &reply),
            Err(_) => answer["unopened"] = true.into(),
        }
    }
    Ok(Json(answer))
}

fn no_request(Scope { tenant, operation, key }: &Scope) -> Problem {
    let of = if tenant.is_empty() { String::new() } else { format!(" of the tenant `{tenant}`") };
    Problem::not_found(format!("there is no request `{key}`{of} for `{operation}`, or it is forgotten"))
}

#[derive(Deserialize)]
#[serde(rename_all = "lowercase")]
enum As {
    Completed,
    Retriable,
}

/// How a request was.
#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Resolved {
    tenant: Option<String>,
    operation: Option<String>,
    key: Option<String>,
    #[serde(rename = "as")]
    how: Option<As>,
    status: Option<u16>,
    headers: Vec<(String, String)>,
    body: Option<String>,
    body_base64: Option<String>,
    gone: bool,
    why: String,
}

async fn resolve(seat: Seat, body: Body) -> Result<Json<Value>, Problem> {
    seat.may_operate()?;
    let mut asked: Resolved = body.object()?;
    let scope = Scope {
        tenant: seat.tenant(asked.tenant.as_deref())?,
        operation: needed("operation", asked.operation.take())?,
        key: needed("key", asked.key.take())?,
    };
    let why = std::mem::take(&mut asked.why);
    let resolution = match asked.how {
        None => return Err(Problem::bad_request("`as` is missing; it is completed or retriable")),
        Some(As::Completed) => Resolution::Completed(sealed(&seat, &scope, reply(asked)?)?),
        Some(As::Retriable) if asked.has_answer() => {
            return Err(Problem::bad_request("what is to run again has no answer yet"));
        }
        Some(As::Retriable) => Resolution::Retriable,
    };
    seat.desk.resolve(scope.clone(), resolution, &why).await?;
    let record: Option<Record> = seat.desk.request(scope.clone()).await?;
    let mut answer = record.map_or(json!({}), |record| view::request(&scope, &record));
    answer["changed"] = 1.into();
    Ok(Json(answer))
}

impl Resolved {
    const fn has_answer(&self) -> bool {
        let Self { status, headers, body, body_base64, gone, .. } = self;
        status.is_some() || !headers.is_empty() || body.is_some() || body_base64.is_some() || *gone
    }
}

/// The answer that is given from now on. One without a body has an empty one, unless it is said that nobody has it.
fn reply(asked: Resolved) -> Result<Reply, Problem> {
    let senseless = |detail: String| Problem::new(StatusCode::UNPROCESSABLE_ENTITY, "senseless", detail);
    let status = asked.status.ok_or_else(|| Problem::bad_request("`status` is missing"))?;
    let body = match (asked.body, asked.body_base64, asked.gone) {
        (None, None, true) => None,
        (None, None, false) => Some(Vec::new()),
        (Some(text), None, false) => Some(text.into_bytes()),
        (None, Some(text), false) => {
            let wrong = |error| Problem::bad_request(format!("`body_base64`: {error}"));
            Some(STANDARD.decode(text).map_err(wrong)?)
        }
        _ => {
            let detail = "an answer has `body` or `body_base64`, or it is `gone`: one of them";
            return Err(Problem::bad_request(detail));
        }
    };
    for (name, value) in &asked.headers {
        check_of_answer(name, value).map_err(senseless)?;
    }
    let headers = asked.headers.into_iter().map(|(name, value)| (name.to_lowercase(), value.into_bytes()));
    Ok(Reply { status, headers: headers.collect(), body })
}

/// The answer as it is stored. Never in clear where there are keys, also where they cannot be read.
fn sealed(seat: &Seat, scope: &Scope, reply: Reply) -> Result<Reply, Problem> {
    let keep = crate::ledger::keep(&seat.app.live().config.ledger)?;
    let failed = || Problem::new(StatusCode::INTERNAL_SERVER_ERROR, "seal", "the answer could not be sealed");
    let nonce = chance().map_err(|_| failed())?;
    keep.store(scope, reply, nonce).map_err(|_| failed())
}
