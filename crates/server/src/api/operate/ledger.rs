//! Requests by idempotency key: list them, show one, and resolve an unknown outcome.
//!
//! The stored reply is included only on request and needs the right `operate`: it may contain secrets.

use std::sync::Arc;

use axum::routing::{get, post};
use axum::{Json, Router};
use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use http::StatusCode;
use redrive::desk::{
    DeskError, LedgerQuery, LedgerRecord, RecordPhase, Refusal, RequestScope, Resolution, StoredReply,
};
use redrive::http::seal::random_bytes;
use serde::Deserialize;
use serde_json::{Value, json};

use super::super::{ApiProblem, RequestBody};
use super::inspect::is_yes;
use super::query::{PAGE_MAX, QueryParams, needed, page};
use super::{OperatorContext, to_json};
use crate::app::App;
use crate::push::header_names::check_of_answer;

pub(super) fn routes() -> Router<Arc<App>> {
    Router::new()
        .route("/v1/ledger", get(list))
        .route("/v1/ledger/request", get(show))
        .route("/v1/ledger/resolve", post(resolve))
        .route("/v1/ledger/resolve-all", post(resolve_all))
}

/// How many pages are looked at for a key without operation and tenant: some hundred thousand requests.
const PAGES_MAX: usize = 200;

#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct RecordsQuery {
    key: Option<String>,
    tenant: Option<String>,
    state: Option<String>,
    resource: Option<String>,
    after: Option<String>,
    limit: Option<usize>,
}

/// A page of requests. It may be short or empty and still have a `next`.
async fn list(
    context: OperatorContext,
    QueryParams(asked): QueryParams<RecordsQuery>,
) -> Result<Json<Value>, ApiProblem> {
    context.may_read()?;
    context.caller.for_all_queues("the ledger")?;
    let tenant = context.caller.tenant(asked.tenant.as_deref())?.map(str::to_owned);
    let phase = asked.state.as_deref().map(phase).transpose()?;
    let after = asked.after.as_deref().map(after).transpose()?;
    let mut records =
        LedgerQuery { tenant, resource: asked.resource, phase, after, limit: page(asked.limit)? };
    let mut requests = Vec::new();
    let mut next = None;
    // Operation and tenant come before the key in the ledger's order, so a key alone is looked for page by page.
    for _ in 0..if asked.key.is_some() { PAGES_MAX } else { 1 } {
        let limit = if asked.key.is_some() { PAGE_MAX } else { records.limit };
        let page = context.desk.requests(LedgerQuery { limit, ..records.clone() }).await?;
        let is_asked = |scope: &RequestScope| asked.key.as_ref().is_none_or(|key| scope.key == *key);
        let fitting = page.records.iter().filter(|(scope, _)| is_asked(scope));
        requests.extend(fitting.map(|(scope, record)| to_json::request(scope, record)));
        next = page.next;
        records.after.clone_from(&next);
        if next.is_none() || requests.len() >= records.limit {
            break;
        }
    }
    let mut answer = json!({ "requests": requests });
    if let Some(RequestScope { tenant, operation, key }) = next {
        answer["next"] = URL_SAFE_NO_PAD.encode(json!([tenant, operation, key]).to_string()).into();
    }
    Ok(Json(answer))
}

fn phase(word: &str) -> Result<&'static str, ApiProblem> {
    let found = RecordPhase::WORDS.into_iter().find(|known| *known == word);
    let detail = || format!("there is no state `{word}`; use one of {}", RecordPhase::WORDS.join(", "));
    found.ok_or_else(|| ApiProblem::bad_request(detail()))
}

fn after(text: &str) -> Result<RequestScope, ApiProblem> {
    let parts = URL_SAFE_NO_PAD.decode(text).ok().and_then(|bytes| serde_json::from_slice(&bytes).ok());
    let (tenant, operation, key) =
        parts.ok_or_else(|| ApiProblem::bad_request("`after` must be the `next` of the previous page"))?;
    Ok(RequestScope { tenant, operation, key })
}

#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct RecordQuery {
    tenant: Option<String>,
    operation: Option<String>,
    key: Option<String>,
    principal: Option<String>,
    contents: Option<String>,
}

async fn show(
    context: OperatorContext,
    QueryParams(asked): QueryParams<RecordQuery>,
) -> Result<Json<Value>, ApiProblem> {
    context.may_read()?;
    context.caller.for_all_queues("the ledger")?;
    let contents = is_yes("contents", asked.contents.as_deref())?;
    if contents {
        context.may_operate()?;
    }
    let scope = RequestScope {
        tenant: context.tenant(asked.tenant.as_deref())?,
        operation: needed("operation", asked.operation)?,
        key: needed("key", asked.key)?,
    };
    let scope = of(scope, asked.principal.as_deref());
    let record = context.desk.request(scope.clone()).await?.ok_or_else(|| no_request(&scope))?;
    let mut answer = to_json::request(&scope, &record);
    if let (true, RecordPhase::Completed { reply, .. }) = (contents, record.phase) {
        let target = format!("{} {} {}", scope.tenant, scope.operation, scope.key);
        context.desk.note("read-reply", &target, 1, "").await?;
        let keep = crate::reply_sealing::reply_protection(&context.app.live().config.ledger)?;
        match keep.replay(&scope, reply) {
            Ok(reply) => to_json::put_contents(&mut answer, &reply),
            Err(_) => answer["unopened"] = true.into(),
        }
    }
    Ok(Json(answer))
}

/// The scope of a principal's key, if one is named.
fn of(scope: RequestScope, principal: Option<&str>) -> RequestScope {
    principal.iter().fold(scope, |scope, principal| scope.of_principal(principal))
}

fn no_request(scope: &RequestScope) -> ApiProblem {
    let named = |what: &str, name: &str| {
        if name.is_empty() { String::new() } else { format!(" of the {what} `{name}`") }
    };
    let (tenant, principal) = (&scope.tenant, scope.principal().unwrap_or_default());
    ApiProblem::not_found(format!(
        "there is no request `{}`{}{} for `{}`, or it has been forgotten",
        scope.client_key(),
        named("principal", principal),
        named("tenant", tenant),
        scope.operation
    ))
}

#[derive(Deserialize)]
#[serde(rename_all = "lowercase")]
enum ResolveAs {
    Completed,
    Retriable,
}

/// How a request was.
#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct ResolveRequest {
    tenant: Option<String>,
    operation: Option<String>,
    key: Option<String>,
    principal: Option<String>,
    #[serde(rename = "as")]
    how: Option<ResolveAs>,
    status: Option<u16>,
    headers: Vec<(String, String)>,
    body: Option<String>,
    body_base64: Option<String>,
    gone: bool,
    why: String,
}

async fn resolve(context: OperatorContext, body: RequestBody) -> Result<Json<Value>, ApiProblem> {
    context.may_operate()?;
    context.caller.for_all_queues("the ledger")?;
    let mut asked: ResolveRequest = body.object()?;
    let scope = RequestScope {
        tenant: context.tenant(asked.tenant.as_deref())?,
        operation: needed("operation", asked.operation.take())?,
        key: needed("key", asked.key.take())?,
    };
    let scope = of(scope, asked.principal.take().as_deref());
    let why = std::mem::take(&mut asked.why);
    let resolution = match resolution(asked)? {
        Resolution::Completed(reply) => Resolution::Completed(sealed(&context, &scope, reply)?),
        Resolution::Retriable => Resolution::Retriable,
    };
    context.desk.resolve(scope.clone(), resolution, &why).await?;
    let record: Option<LedgerRecord> = context.desk.request(scope.clone()).await?;
    let mut answer = record.map_or(json!({}), |record| to_json::request(&scope, &record));
    answer["changed"] = 1.into();
    Ok(Json(answer))
}

/// Which unknown requests, and how they were.
#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct ResolveAllRequest {
    tenant: Option<String>,
    operation: Option<String>,
    /// Only those that became unknown before this time.
    before: Option<String>,
    /// Where the previous call ended.
    after: Option<String>,
    #[serde(rename = "as")]
    how: Option<ResolveAs>,
    status: Option<u16>,
    headers: Vec<(String, String)>,
    body: Option<String>,
    body_base64: Option<String>,
    gone: bool,
    why: String,
}

/// How many records one call of `resolve-all` looks at.
const RESOLVED_AT_ONCE: usize = 500;

/// Resolves a page of the unknown requests that match, each in a commit of its own with its line in the audit. With
/// `next`, more may follow.
async fn resolve_all(context: OperatorContext, body: RequestBody) -> Result<Json<Value>, ApiProblem> {
    context.may_operate()?;
    context.caller.for_all_queues("the ledger")?;
    let asked: ResolveAllRequest = body.object()?;
    let tenant = context.caller.tenant(asked.tenant.as_deref())?.map(str::to_owned);
    if tenant.is_none() && asked.operation.is_none() && asked.before.is_none() {
        return Err(ApiProblem::bad_request("give at least one of `tenant`, `operation` and `before`"));
    }
    let wrong = |_| ApiProblem::bad_request("`before` must be a time, such as 2026-01-31T12:00:00Z");
    let before =
        asked.before.as_deref().map(|text| humantime::parse_rfc3339(text).map_err(wrong)).transpose()?;
    let after = asked.after.as_deref().map(after).transpose()?;
    let ResolveAllRequest { operation, how, status, headers, body, body_base64, gone, why, .. } = asked;
    let order = ResolveRequest { how, status, headers, body, body_base64, gone, ..ResolveRequest::default() };
    let resolution = resolution(order)?;
    let records = LedgerQuery {
        tenant,
        phase: Some("unknown"),
        after,
        limit: RESOLVED_AT_ONCE,
        ..LedgerQuery::default()
    };
    let page = context.desk.requests(records).await?;
    let matches = |scope: &RequestScope, record: &LedgerRecord| {
        let RecordPhase::Unknown { since } = record.phase else { return false };
        operation.as_ref().is_none_or(|operation| *operation == scope.operation)
            && before.is_none_or(|before| since < redrive::Moment::from(before))
    };
    let (mut changed, mut refused) = (0_u64, 0_u64);
    for (scope, _) in page.records.into_iter().filter(|(scope, record)| matches(scope, record)) {
        let resolution = match &resolution {
            Resolution::Completed(reply) => Resolution::Completed(sealed(&context, &scope, reply.clone())?),
            Resolution::Retriable => Resolution::Retriable,
        };
        match context.desk.resolve(scope, resolution, &why).await {
            Ok(()) => changed += 1,
            // Its own run, or another operator, was first.
            Err(DeskError::Refused(Refusal::NotUnknown { .. } | Refusal::NoRequest)) => refused += 1,
            Err(error) => return Err(error.into()),
        }
    }
    let mut answer = json!({ "changed": changed, "refused": refused });
    if let Some(RequestScope { tenant, operation, key }) = page.next {
        answer["next"] = URL_SAFE_NO_PAD.encode(json!([tenant, operation, key]).to_string()).into();
    }
    Ok(Json(answer))
}

/// How a request was, as an operator says.
fn resolution(asked: ResolveRequest) -> Result<Resolution, ApiProblem> {
    match asked.how {
        None => Err(ApiProblem::bad_request("`as` is missing; use completed or retriable")),
        Some(ResolveAs::Completed) => reply(asked).map(Resolution::Completed),
        Some(ResolveAs::Retriable) if asked.has_answer() => {
            Err(ApiProblem::bad_request("`retriable` does not take a status, headers or a body"))
        }
        Some(ResolveAs::Retriable) => Ok(Resolution::Retriable),
    }
}

impl ResolveRequest {
    const fn has_answer(&self) -> bool {
        let Self { status, headers, body, body_base64, gone, .. } = self;
        status.is_some() || !headers.is_empty() || body.is_some() || body_base64.is_some() || *gone
    }
}

/// The reply to replay from now on. Without a body it is empty, unless `gone` is set.
fn reply(asked: ResolveRequest) -> Result<StoredReply, ApiProblem> {
    let senseless = |detail: String| ApiProblem::new(StatusCode::UNPROCESSABLE_ENTITY, "senseless", detail);
    let status = asked.status.ok_or_else(|| ApiProblem::bad_request("`status` is missing"))?;
    let body = match (asked.body, asked.body_base64, asked.gone) {
        (None, None, true) => None,
        (None, None, false) => Some(Vec::new()),
        (Some(text), None, false) => Some(text.into_bytes()),
        (None, Some(text), false) => {
            let wrong = |error| ApiProblem::bad_request(format!("`body_base64`: {error}"));
            Some(STANDARD.decode(text).map_err(wrong)?)
        }
        _ => {
            let detail = "give exactly one of `body`, `body_base64` and `gone`";
            return Err(ApiProblem::bad_request(detail));
        }
    };
    for (name, value) in &asked.headers {
        check_of_answer(name, value).map_err(senseless)?;
    }
    let headers = asked.headers.into_iter().map(|(name, value)| (name.to_lowercase(), value.into_bytes()));
    Ok(StoredReply { status, headers: headers.collect(), body })
}

/// The stored form of a reply. Never plain text if keys are configured, even if they cannot be read.
fn sealed(
    context: &OperatorContext,
    scope: &RequestScope,
    reply: StoredReply,
) -> Result<StoredReply, ApiProblem> {
    let keep = crate::reply_sealing::reply_protection(&context.app.live().config.ledger)?;
    let failed =
        || ApiProblem::new(StatusCode::INTERNAL_SERVER_ERROR, "seal", "the reply could not be sealed");
    let nonce = random_bytes().map_err(|_| failed())?;
    keep.store(scope, reply, nonce).map_err(|_| failed())
}
