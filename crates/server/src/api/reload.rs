//! Reading the configuration again.

use std::sync::Arc;

use axum::routing::post;
use axum::{Json, Router};
use http::StatusCode;
use serde_json::{Value, json};

use super::ApiProblem;
use super::operate::OperatorContext;
use crate::app::App;
use crate::config::Right;
use crate::reload::{self, ReloadError};

pub(super) fn routes() -> Router<Arc<App>> {
    Router::new().route("/v1/reload", post(reload))
}

async fn reload(OperatorContext { app, caller, desk }: OperatorContext) -> Result<Json<Value>, ApiProblem> {
    caller.may(Right::Operate)?;
    caller.for_everything("the configuration")?;
    let warnings = reload::reload(&app, &desk).await?;
    tracing::info!(who = &*caller.name, "configuration reloaded");
    Ok(Json(json!({ "reloaded": true, "warnings": warnings })))
}

impl From<ReloadError> for ApiProblem {
    fn from(error: ReloadError) -> Self {
        let detail = error.to_string();
        match error {
            ReloadError::NoSource => Self::new(StatusCode::CONFLICT, "no-source", detail),
            ReloadError::Restart(names) => {
                Self::new(StatusCode::CONFLICT, "needs-restart", detail).with("restart", names)
            }
            ReloadError::Secrets(error) => error.into(),
            ReloadError::Audit(error) => error.into(),
            ReloadError::Config(_) | ReloadError::Push(_) => {
                Self::new(StatusCode::UNPROCESSABLE_ENTITY, "not-a-configuration", detail)
            }
        }
    }
}
