//! Whether the server lives, and whether it takes events.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use axum::http::StatusCode;
use axum::routing::get;
use axum::{Json, Router};
use redrive::StoreError;
use redrive::store::DiskSpace;
use serde_json::{Value, json};

use super::ApiProblem;
use crate::app::App;

/// How long the store may take to answer a readiness probe.
const CHECK_TIME: Duration = Duration::from_millis(900);

pub(super) fn routes() -> Router<Arc<App>> {
    Router::new().route("/healthz", get(live)).route("/readyz", get(ready))
}

/// It answers, so it lives. The command line compares `store` with the one that its configuration names.
async fn live(State(app): State<Arc<App>>) -> Json<Value> {
    Json(json!({ "status": "ok", "store": app.store }))
}

/// Ready: the server runs its queues, reads its store, has room for more events, and neither stops nor stalls.
async fn ready(State(app): State<Arc<App>>) -> Result<Json<Value>, ApiProblem> {
    if *app.stopping.borrow() {
        return Err(StoreError::Closed.into());
    }
    // A probe must be answered while the database is down, too.
    let Ok(checked) = tokio::time::timeout(CHECK_TIME, app.redrive.check()).await else {
        let what = "the store did not answer in time".to_owned();
        return Err(StoreError::Passing { what, source: None }.into());
    };
    checked?;
    if let Some(DiskSpace { free, least }) = app.redrive.figures().disk.filter(|room| room.is_low()) {
        return Err(StoreError::DiskLow { free, least }.into());
    }
    let stalled = app.redrive.stalled_shards();
    if stalled > 0 {
        let detail = format!("shards that have an event to run but run nothing: {stalled}; see the log");
        return Err(ApiProblem::new(StatusCode::SERVICE_UNAVAILABLE, "stalled", detail));
    }
    let mut told = json!({ "status": "ok" });
    // Without names, because the endpoint needs no token.
    let unsigned = app.push.unsigned().len();
    if unsigned > 0 {
        let warning = format!("queues whose signing secret is missing or locked: {unsigned}; see the log");
        told["warnings"] = json!([warning]);
    }
    Ok(Json(told))
}
