//! Health, metrics, and what is known of a key, at an address of their own: every path of the other one is the API's.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::extract::State;
use axum::http::header::CONTENT_TYPE;
use axum::response::IntoResponse;
use axum::routing::get;
use axum::{Json, Router};
use redrive::Redrive;
use redrive::http::idempotent::{Ledger as _, Scope};
use serde_json::{Value, json};
use tokio::sync::watch;

use super::keys;
use crate::api::Problem;
use crate::observe::{Samples, metrics};

/// What is asked about.
#[derive(Debug, Clone)]
pub(super) struct Asked {
    pub(super) redrive: Redrive,
    pub(super) samples: Arc<Samples>,
    pub(super) stopping: watch::Receiver<bool>,
}

pub(super) fn router(asked: Asked) -> Router {
    Router::new()
        .route("/healthz", get(async || Json(json!({ "status": "ok" }))))
        .route("/readyz", get(ready))
        .route("/metrics", get(show))
        .route("/keys", get(keys::look))
        .fallback(async || Problem::not_found("there are /healthz, /readyz, /metrics and /keys"))
        .with_state(asked)
}

/// It does not stop, and the ledger answers. The upstream is not asked: that it is down is for its own probes to tell,
/// and replays are answered without it.
async fn ready(State(asked): State<Asked>) -> Result<Json<Value>, Problem> {
    if *asked.stopping.borrow() {
        return Err(Problem::busy("the gateway stops", std::time::Duration::from_secs(1)));
    }
    let scope = Scope { tenant: String::new(), operation: "ready".to_owned(), key: "ready".to_owned() };
    let looked = asked.redrive.ledger().record(scope).await;
    looked.map_err(|error| Problem::busy(error.to_string(), std::time::Duration::from_secs(1)))?;
    Ok(Json(json!({ "status": "ok" })))
}

async fn show(State(asked): State<Asked>) -> impl IntoResponse {
    let text = metrics::with_samples(&asked.samples, &asked.redrive, &BTreeMap::new()).await;
    ([(CONTENT_TYPE, metrics::FORMAT)], text)
}
