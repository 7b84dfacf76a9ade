//! What operators do, over HTTP: the desk of `redrive::desk` with addresses.
//!
//! | request | does |
//! |---|---|
//! | `GET /v1/dead/groups` | dead letters, put together by cause, queue or tenant |
//! | `GET /v1/events` | a page of events by state and filter |
//! | `GET /v1/event`, `GET /v1/queues/{queue}/events/{id}` | one event with its story and what waits behind it |
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
//! Looking wants the right `read`, changing wants `operate`. The names of events are in the query or the body and not
//! only in the path, because a path cannot carry an id such as `..`. A token with a tenant sees and changes that
//! tenant's events alone; what cannot be narrowed to a tenant is refused to it.

use std::sync::Arc;

use axum::Router;
use axum::extract::FromRequestParts;
use http::request::Parts;
use redrive::desk::Desk;

use super::Problem;
use crate::app::App;
use crate::auth::{Caller, Origin};
use crate::config::Right;

mod asked;
mod audit;
mod exchange;
mod flow;
mod jobs;
mod keys;
mod ledger;
mod look;
mod nodes;
mod order;
mod view;

pub(super) fn routes() -> Router<Arc<App>> {
    Router::new()
        .merge(look::routes())
        .merge(order::routes())
        .merge(jobs::routes())
        .merge(flow::routes())
        .merge(keys::routes())
        .merge(ledger::routes())
        .merge(exchange::routes())
        .merge(nodes::routes())
        .merge(audit::routes())
}

/// Somebody at the desk.
pub(super) struct Seat {
    pub(super) app: Arc<App>,
    pub(super) caller: Caller,
    pub(super) desk: Desk,
}

impl Seat {
    fn may_read(&self) -> Result<(), Problem> {
        self.caller.may(Right::Read)
    }

    fn may_operate(&self) -> Result<(), Problem> {
        self.caller.may(Right::Operate)
    }

    /// The tenant that one event is of: the caller's own, the one that is asked for, or none.
    fn tenant(&self, asked: Option<&str>) -> Result<String, Problem> {
        Ok(self.caller.tenant(asked)?.unwrap_or_default().to_owned())
    }

    /// Refuses what is about all tenants to who is for one alone.
    fn for_all_tenants(&self, what: &str) -> Result<(), Problem> {
        match &self.caller.tenant {
            None => Ok(()),
            Some(own) => {
                let detail = format!("{what} is not only about the tenant `{own}`, and this token is");
                Err(Problem::new(http::StatusCode::FORBIDDEN, "not-one-tenant", detail))
            }
        }
    }
}

impl FromRequestParts<Arc<App>> for Seat {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, app: &Arc<App>) -> Result<Self, Problem> {
        let caller = Caller::from_request_parts(parts, app).await?;
        let from = parts.extensions.get::<Origin>().map_or("", |Origin(from)| from);
        let desk = app.redrive.desk(&*caller.name, from);
        Ok(Self { app: app.clone(), caller, desk })
    }
}
