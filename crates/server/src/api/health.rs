//! Whether the server lives, and whether it takes events.

use std::sync::Arc;

use axum::extract::State;
use axum::routing::get;
use axum::{Json, Router};
use redrive::StoreError;
use redrive::store::Room;
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

/// It runs the queues, can read its store, has room for more events, and does not stop: so it can be sent work.
async fn ready(State(app): State<Arc<App>>) -> Result<Json<Value>, Problem> {
    if *app.stopping.borrow() {
        return Err(StoreError::Closed.into());
    }
    app.redrive.check().await?;
    if let Some(Room { free, least }) = app.redrive.figures().disk.filter(|room| room.is_low()) {
        return Err(StoreError::DiskLow { free, least }.into());
    }
    let mut told = json!({ "status": "ok" });
    // Without names: anybody may ask.
    let unsigned = app.push.unsigned().len();
    if unsigned > 0 {
        let warning =
            format!("queues whose signing secret is not known, or locked: {unsigned}; the log says which");
        told["warnings"] = json!([warning]);
    }
    Ok(Json(told))
}
