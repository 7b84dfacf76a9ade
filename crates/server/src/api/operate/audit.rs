//! The audit log. It covers all tenants, so a token with a tenant may not read it.

use std::sync::Arc;

use axum::body::Body as Sent;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use futures_util::stream;
use http::header::CONTENT_TYPE;
use redrive::desk::{AuditLine, Desk};
use serde::Deserialize;

use super::super::ApiProblem;
use super::super::wire::AuditPageJson;
use super::query::{QueryParams, page};
use super::{OperatorContext, to_json};
use crate::app::App;

/// Lines read at once for a stream.
const AT_ONCE: usize = 500;
/// Lines that are read at once for a filter, and how often for one page.
const LOOKED_AT_ONCE: usize = 1000;
const LOOKS: usize = 5;

pub(super) fn routes() -> Router<Arc<App>> {
    Router::new().route("/v1/audit", get(list)).route("/v1/audit/export", get(export))
}

#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct AuditQuery {
    before: Option<u64>,
    limit: Option<usize>,
    /// Only lines whose target has this text.
    target: Option<String>,
    who: Option<String>,
    verb: Option<String>,
}

impl AuditQuery {
    const fn has_filter(&self) -> bool {
        self.target.is_some() || self.who.is_some() || self.verb.is_some()
    }

    fn matches(&self, line: &AuditLine) -> bool {
        let is = |asked: &Option<String>, word: &str| asked.as_ref().is_none_or(|asked| asked == word);
        self.target.as_ref().is_none_or(|text| line.target.contains(text.as_str()))
            && is(&self.who, &line.by.who)
            && is(&self.verb, &line.verb)
    }
}

async fn list(
    context: OperatorContext,
    QueryParams(asked): QueryParams<AuditQuery>,
) -> Result<Json<AuditPageJson>, ApiProblem> {
    context.may_read()?;
    context.caller.for_everything("the audit")?;
    let limit = page(asked.limit)?;
    let (lines, next) = if asked.has_filter() {
        matching(&context.desk, &asked, limit).await?
    } else {
        let lines = context.desk.audit(asked.before, limit).await?;
        let last = lines.last().filter(|line| lines.len() == limit && line.number > 1);
        let next = last.map(|line| line.number);
        (lines, next)
    };
    Ok(Json(AuditPageJson { lines: lines.iter().map(to_json::line).collect(), next }))
}

/// The lines that match. A bounded number is looked at, so a page may have few and still a next.
async fn matching(
    desk: &Desk,
    asked: &AuditQuery,
    limit: usize,
) -> Result<(Vec<AuditLine>, Option<u64>), redrive::StoreError> {
    let (mut found, mut before) = (Vec::new(), asked.before);
    for _ in 0..LOOKS {
        let lines = desk.audit(before, LOOKED_AT_ONCE).await?;
        let is_all = lines.len() < LOOKED_AT_ONCE;
        for line in lines {
            before = Some(line.number);
            if asked.matches(&line) {
                found.push(line);
            }
            if found.len() == limit {
                return Ok((found, before.filter(|number| *number > 1)));
            }
        }
        if is_all {
            return Ok((found, None));
        }
    }
    Ok((found, before))
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
