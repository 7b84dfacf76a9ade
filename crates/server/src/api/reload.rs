//! Reading the configuration again.

use std::sync::Arc;

use axum::routing::post;
use axum::{Json, Router};
use http::StatusCode;
use serde_json::{Value, json};

use super::Problem;
use super::operate::Seat;
use crate::app::App;
use crate::auth::Caller;
use crate::config::Right;
use crate::reload::{self, ReloadError};

pub(super) fn routes() -> Router<Arc<App>> {
    Router::new().route("/v1/reload", post(reload))
}

async fn reload(Seat { app, caller, desk }: Seat) -> Result<Json<Value>, Problem> {
    caller.may(Right::Operate)?;
    of_the_house(&caller)?;
    let warnings = reload::reload(&app, &desk).await?;
    tracing::info!(who = &*caller.name, "configuration reloaded");
    Ok(Json(json!({ "reloaded": true, "warnings": warnings })))
}

/// What is everybody's is not for a token of one tenant.
pub(super) fn of_the_house(caller: &Caller) -> Result<(), Problem> {
    match caller.tenant {
        None => Ok(()),
        Some(_) => {
            let detail = "this token is for one tenant's events, and this is about all of them";
            Err(Problem::new(StatusCode::FORBIDDEN, "other-tenant", detail))
        }
    }
}

impl From<ReloadError> for Problem {
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
