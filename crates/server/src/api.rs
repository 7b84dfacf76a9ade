//! The HTTP API.
//!
//! A file for each part of it; every answer that is no success is a [`Problem`] (RFC 9457).

use std::sync::Arc;

use axum::Router;

use crate::app::App;

mod backup;
mod body;
pub mod cloudevents;
mod health;
mod index;
mod metrics;
pub mod openapi;
pub mod operate;
mod path;
mod problem;
pub mod publish;
mod pull;
mod reload;
mod room;
mod secrets;
pub mod wire;

pub use body::{Body, Object};
pub use path::Path;
pub use problem::Problem;

/// Every route.
pub fn router(app: Arc<App>) -> Router {
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
        .fallback(async || Problem::not_found("there is nothing at this address"))
        .method_not_allowed_fallback(async || Problem::method_not_allowed())
        .layer(axum::middleware::from_fn(crate::observe::access::noted))
        .with_state(app)
}
