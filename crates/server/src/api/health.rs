//! Whether the server lives, and whether it takes events.

use std::sync::Arc;

use axum::extract::State;
use axum::routing::get;
use axum::{Json, Router};
use serde_json::{Value, json};

use super::Problem;
use crate::app::App;

pub(super) fn routes() -> Router<Arc<App>> {
    Router::new().route("/healthz", get(live)).route("/readyz", get(ready))
}

/// It answers, so it lives.
async fn live() -> Json<Value> {
    Json(json!({ "status": "ok" }))
}

/// It can read its store, so it can be sent work.
async fn ready(State(app): State<Arc<App>>) -> Result<Json<Value>, Problem> {
    app.redrive.counts().await?;
    let mut told = json!({ "status": "ok" });
    // Without names: anybody may ask.
    let unsigned = app.push.unsigned().len();
    if unsigned > 0 {
        let warning = format!("queues whose signing secret is not known: {unsigned}; the log says which");
        told["warnings"] = json!([warning]);
    }
    Ok(Json(told))
}
