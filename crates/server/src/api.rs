//! The HTTP API.
//!
//! One file per part; every unsuccessful response is an [`ApiProblem`] (RFC 9457).

use std::sync::Arc;

use axum::Router;
use axum::response::Response;
use http::HeaderValue;
use http::header::CACHE_CONTROL;

use crate::app::App;

mod backup;
mod body;
pub mod cloudevents;
mod health;
mod index;
pub(crate) mod long_poll;
mod metrics;
pub mod openapi;
pub mod operate;
mod path;
mod problem;
pub mod publish;
mod pull;
pub(crate) mod quotas;
mod reload;
mod response_memory;
mod secrets;
pub(crate) mod streams;
pub mod wire;

pub use body::{JsonObject, RequestBody};
pub use path::Path;
pub use problem::ApiProblem;

/// Forbids caches to store a response: it may have payloads or a secret, and is out of date a moment later.
async fn no_store(mut response: Response) -> Response {
    let headers = response.headers_mut();
    headers.entry(CACHE_CONTROL).or_insert(HeaderValue::from_static("no-store"));
    response
}

/// The operators' routes alone, without counting and logging: for the desk's pages, which call them in process.
pub(crate) fn operators(app: Arc<App>) -> Router {
    let routes = operate::routes().fallback(async || ApiProblem::not_found("no such path"));
    routes.with_state(app)
}

/// Every route.
pub fn router(app: Arc<App>) -> Router {
    let pages = crate::desk::router(&app);
    Router::new()
        .merge(index::routes())
        .merge(health::routes())
        .merge(openapi::routes())
        .merge(metrics::routes())
        .merge(backup::routes())
        .merge(publish::routes())
        .merge(reload::routes())
        .merge(secrets::routes())
        .merge(operate::routes())
        .merge(pull::routes())
        .fallback(async || ApiProblem::not_found("no such path"))
        .method_not_allowed_fallback(async || ApiProblem::method_not_allowed())
        .layer(axum::middleware::map_response(no_store))
        .layer(axum::middleware::from_fn(crate::observe::access_log::noted))
        .with_state(app)
        .merge(pages)
}
