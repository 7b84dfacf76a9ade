//! The pages. Each is a file: what it asks the API for, and how that becomes a template's values.

use axum::Router;
use axum::response::{IntoResponse, Response};
use http::StatusCode;

use super::Shared;
use super::api::Problem;
use super::visitor::Visitor;

mod acts;
mod audit;
mod discarded;
mod edit;
mod event;
mod events;
mod export;
mod find;
mod flow;
mod groups;
mod jobs;
mod keys;
mod ledger;
mod overview;
mod plan;
mod timeline;

pub(super) fn routes() -> Router<Shared> {
    Router::new()
        .merge(overview::routes())
        .merge(groups::routes())
        .merge(events::routes())
        .merge(event::routes())
        .merge(acts::routes())
        .merge(edit::routes())
        .merge(plan::routes())
        .merge(jobs::routes())
        .merge(discarded::routes())
        .merge(flow::routes())
        .merge(keys::routes())
        .merge(ledger::routes())
        .merge(audit::routes())
        .merge(export::routes())
        .merge(find::routes())
        .route("/desk/{*rest}", axum::routing::get(nothing))
}

async fn nothing(visitor: Visitor) -> Response {
    let problem =
        Problem::new(StatusCode::NOT_FOUND, "the desk has no such page; the navigation has them all");
    visitor.answer(Err(problem)).into_response()
}
