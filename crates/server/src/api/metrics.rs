//! Metrics, in Prometheus' text format.

use std::sync::Arc;

use axum::Router;
use axum::extract::{FromRequestParts, Request, State};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use http::StatusCode;
use http::header::CONTENT_TYPE;

use super::Problem;
use crate::app::App;
use crate::auth::Caller;
use crate::config::Right;
use crate::observe::metrics::{self, FORMAT};

pub(super) fn routes() -> Router<Arc<App>> {
    Router::new().route("/metrics", get(show))
}

/// What is about all tenants is not for the token of one of them.
pub(super) fn everybodys(caller: &Caller, what: &str) -> Result<(), Problem> {
    match &caller.tenant {
        None => Ok(()),
        Some(_) => {
            let detail = format!("{what} are about all tenants, and this token is for one of them");
            Err(Problem::new(StatusCode::FORBIDDEN, "not-for-a-tenant", detail))
        }
    }
}

/// Shows them to whoever may read; to everybody where the configuration says so. They are about all tenants, so a
/// token of one of them may not.
async fn show(State(app): State<Arc<App>>, request: Request) -> Result<Response, Problem> {
    if !app.live().config.observe.open_metrics {
        let caller = Caller::from_request_parts(&mut request.into_parts().0, &app).await?;
        caller.may(Right::Read)?;
        everybodys(&caller, "metrics")?;
    }
    Ok(([(CONTENT_TYPE, FORMAT)], metrics::render(&app).await).into_response())
}
