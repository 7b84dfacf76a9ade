//! The audit log. It covers all tenants, so a token with a tenant may not read it.

use std::sync::Arc;

use axum::body::Body as Sent;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use futures_util::stream;
use http::header::CONTENT_TYPE;
use redrive::desk::Desk;
use serde::Deserialize;

use super::super::ApiProblem;
use super::super::wire::AuditPageJson;
use super::query::{QueryParams, page};
use super::{OperatorContext, to_json};
use crate::app::App;

/// Lines read at once for a stream.
const AT_ONCE: usize = 500;

pub(super) fn routes() -> Router<Arc<App>> {
    Router::new().route("/v1/audit", get(list)).route("/v1/audit/export", get(export))
}

#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct AuditQuery {
    before: Option<u64>,
    limit: Option<usize>,
}

async fn list(
    context: OperatorContext,
    QueryParams(asked): QueryParams<AuditQuery>,
) -> Result<Json<AuditPageJson>, ApiProblem> {
    context.may_read()?;
    context.caller.for_everything("the audit")?;
    let limit = page(asked.limit)?;
    let lines = context.desk.audit(asked.before, limit).await?;
    let last = lines.last().filter(|line| lines.len() == limit && line.number > 1);
    let next = last.map(|line| line.number);
    Ok(Json(AuditPageJson { lines: lines.iter().map(to_json::line).collect(), next }))
}

/// All lines as JSON lines, the latest first, read and sent bit by bit.
async fn export(context: OperatorContext) -> Result<Response, ApiProblem> {
    context.may_read()?;
    context.caller.for_everything("the audit")?;
    let lines = stream::try_unfold(Some((context.desk, None)), |at| async move {
        let Some((desk, before)) = at else { return Ok(None) };
        some(desk, before).await
    });
    Ok(([(CONTENT_TYPE, "application/x-ndjson")], Sent::from_stream(lines)).into_response())
}

/// Some lines, and where to continue.
type Chunk = (String, Option<(Desk, Option<u64>)>);

async fn some(desk: Desk, before: Option<u64>) -> Result<Option<Chunk>, redrive::StoreError> {
    let lines = desk.audit(before, AT_ONCE).await?;
    let Some(last) = lines.last() else { return Ok(None) };
    let next = Some((desk, Some(last.number)));
    let line = |line| serde_json::to_string(&to_json::line(line)).unwrap_or_default() + "\n";
    Ok(Some((lines.iter().map(line).collect(), next)))
}
