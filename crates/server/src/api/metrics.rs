//! Metrics, in Prometheus' text format or as OpenMetrics.

use std::sync::Arc;

use axum::Router;
use axum::extract::{FromRequestParts, Request, State};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use http::header::CONTENT_TYPE;

use super::ApiProblem;
use crate::app::App;
use crate::auth::Caller;
use crate::config::Right;
use crate::observe::metrics;
use crate::observe::openmetrics::negotiated;

pub(super) fn routes() -> Router<Arc<App>> {
    Router::new().route("/metrics", get(show))
}

/// Shows metrics to callers with the right `metrics` or `read`; to all if the configuration says so. Metrics cover all
/// tenants and queues, so a token of one tenant or of some queues may not read them.
async fn show(State(app): State<Arc<App>>, request: Request) -> Result<Response, ApiProblem> {
    let accepted = request.headers().clone();
    if !app.live().config.observe.open_metrics {
        let caller = Caller::from_request_parts(&mut request.into_parts().0, &app).await?;
        caller.may(Right::Read).or_else(|_| caller.may(Right::Metrics))?;
        caller.for_everything("the list of metrics")?;
    }
    let (format, text) = negotiated(&accepted, metrics::render(&app).await);
    Ok(([(CONTENT_TYPE, format)], text).into_response())
}
