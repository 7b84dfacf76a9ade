//! Attempts of a queue as they happen, by long polls.

use std::sync::Arc;
use std::time::Duration;

use axum::routing::get;
use axum::{Json, Router};
use serde::Deserialize;
use serde_json::{Value, json};

use super::super::{ApiProblem, Path};
use super::OperatorContext;
use super::query::QueryParams;
use crate::app::App;
use crate::observe::attempt_feed::Line;

pub(super) fn routes() -> Router<Arc<App>> {
    Router::new().route("/v1/queues/{queue}/attempts", get(attempts))
}

#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct AttemptsQuery {
    from: Option<u64>,
    #[serde(with = "redrive::config::optional")]
    wait: Option<Duration>,
    tenant: Option<String>,
}

/// Attempts that ended in this server from a number on. The first request says from where; each answer says `next`.
async fn attempts(
    context: OperatorContext,
    Path(queue): Path<String>,
    QueryParams(asked): QueryParams<AttemptsQuery>,
) -> Result<Json<Value>, ApiProblem> {
    context.may_read()?;
    context.caller.queue(&queue)?;
    let tenant = context.caller.tenant(asked.tenant.as_deref())?;
    let (is_known, wait_max) = {
        let live = context.app.live();
        (live.config.queues.contains_key(&queue), live.config.server.wait_max)
    };
    if !is_known {
        return Err(ApiProblem::no_queue(&queue));
    }
    let is_asked = |line: &Line| line.queue == queue && tenant.is_none_or(|tenant| line.tenant == tenant);
    let wait = asked.wait.unwrap_or_default().min(wait_max);
    let mut stopping = context.app.stopping.subscribe();
    let (attempts, next) = tokio::select! {
        read = context.app.feed.read(asked.from, is_asked, wait) => read,
        _ = stopping.wait_for(|is_stopping| *is_stopping) => (Vec::new(), asked.from.unwrap_or_default()),
    };
    Ok(Json(json!({ "attempts": attempts, "next": next })))
}
