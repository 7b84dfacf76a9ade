//! What operators do, over HTTP: the desk of `redrive::desk` with addresses.
//!
//! | request | does |
//! |---|---|
//! | `GET /v1/dead/groups` | dead letters, put together by cause, queue or tenant |
//! | `GET /v1/queues/{queue}/attempts` | attempts as they happen, by long polls |
//! | `GET /v1/failing/groups` | retrying events, put together by cause |
//! | `GET /v1/events` | a page of events by state and filter |
//! | `GET /v1/event`, `GET /v1/queues/{queue}/events/{id}` | one event with its attempt history and what waits behind it |
//! | `GET /v1/lookup` | events with an id, whatever their queue |
//! | `POST /v1/events/{verb}` | `redrive`, `discard`, `restore`, `kill`, `retry-now`: events by name, an answer for each |
//! | `POST /v1/events/edit` | a dead letter goes on as a new event |
//! | `POST /v1/queues/{queue}/events/{id}/{verb}` | the same for one, and a refusal is a problem |
//! | `POST /v1/jobs/plan`, `POST /v1/jobs` | all letters that fit a filter: what it would be, and do it |
//! | `GET /v1/jobs`, `GET /v1/jobs/{id}`, `POST /v1/jobs/{id}/{verb}` | how far they are; `pause`, `resume`, `cancel` |
//! | `GET /v1/queues`, `GET /v1/queues/{queue}` | queues with what holds them |
//! | `POST /v1/queues/{queue}/{verb}` | `pause`, `resume`, `reroute` |
//! | `GET /v1/rules`, `POST /v1/rules`, `POST /v1/rules/lift` | pauses, quarantines, parked keys, reroutes |
//! | `GET /v1/keys`, `POST /v1/keys/{verb}` | what a key holds up; `park`, `unpark`, `skip-head` |
//! | `GET /v1/dead/export`, `POST /v1/dead/import` | dead letters as JSON lines |
//! | `GET /v1/ledger`, `GET /v1/ledger/request` | requests under idempotency keys, and one of them |
//! | `POST /v1/ledger/resolve` | how a request was whose outcome is unknown |
//! | `GET /v1/nodes` | the processes that share the store |
//! | `GET /v1/audit`, `GET /v1/audit/export` | who did what |
//!
//! Reads need the right `read`, changes need `operate`. Event names are accepted in the query or the body and not
//! only in the path, because a path cannot carry an id such as `..`. A token with a tenant sees and changes only that
//! tenant's events; requests that cannot be limited to a tenant are refused. So it is with a token of some queues.
//! What brings events to a destination (`to` of a redrive, a reroute, an import) needs `publish` there as well.

use std::sync::Arc;

use axum::Router;
use axum::extract::FromRequestParts;
use http::request::Parts;
use redrive::desk::Desk;

use super::ApiProblem;
use crate::app::App;
use crate::auth::{Caller, Origin};
use crate::config::Right;

mod attempts;
mod audit;
mod event_actions;
mod flow_control;
mod import_export;
mod inspect;
mod jobs;
mod ledger;
mod nodes;
mod ordering_keys;
mod query;
mod to_json;
mod waits;

pub(super) fn routes() -> Router<Arc<App>> {
    Router::new()
        .merge(inspect::routes())
        .merge(attempts::routes())
        .merge(event_actions::routes())
        .merge(jobs::routes())
        .merge(flow_control::routes())
        .merge(ordering_keys::routes())
        .merge(ledger::routes())
        .merge(import_export::routes())
        .merge(nodes::routes())
        .merge(audit::routes())
}

/// An authenticated caller of the operators' API.
pub(super) struct OperatorContext {
    pub(super) app: Arc<App>,
    pub(super) caller: Caller,
    pub(super) desk: Desk,
}

impl OperatorContext {
    fn may_read(&self) -> Result<(), ApiProblem> {
        self.caller.may(Right::Read)
    }

    fn may_operate(&self) -> Result<(), ApiProblem> {
        self.caller.may(Right::Operate)
    }

    /// The tenant of one event: the caller's own, the requested one, or none.
    fn tenant(&self, asked: Option<&str>) -> Result<String, ApiProblem> {
        Ok(self.caller.tenant(asked)?.unwrap_or_default().to_owned())
    }

    /// Whether the caller may send events of one queue to the destination of another.
    fn may_send_to(&self, to: Option<&str>) -> Result<(), ApiProblem> {
        to.map_or(Ok(()), |to| self.caller.may_send_to(to, &self.app.live().config))
    }
}

impl FromRequestParts<Arc<App>> for OperatorContext {
    type Rejection = ApiProblem;

    async fn from_request_parts(parts: &mut Parts, app: &Arc<App>) -> Result<Self, ApiProblem> {
        let caller = Caller::from_request_parts(parts, app).await?;
        let from = parts.extensions.get::<Origin>().map_or("", |Origin(from)| from);
        let desk = app.redrive.desk(&*caller.name, from);
        Ok(Self { app: app.clone(), caller, desk })
    }
}
