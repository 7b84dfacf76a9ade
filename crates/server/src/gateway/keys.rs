//! `GET /keys?operation=…&tenant=…&key=…`: what is remembered under a key, for who reaches the admin address.
//!
//! The state, how often it was begun, and until when it is known. Never the answer, nor anything of the request: whoever
//! has a right to the answer gets it by repeating the request.

use axum::Json;
use axum::extract::{Query, State, rejection::QueryRejection};
use axum::http::header::CACHE_CONTROL;
use axum::response::IntoResponse;
use redrive::Moment;
use redrive::http::idempotent::{Ledger as _, Phase, Record, Scope};
use redrive::http::key;
use serde::Deserialize;
use serde_json::{Value, json};

use super::admin::Asked;
use crate::api::{Problem, wire};

/// Which key.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Which {
    /// A route, as the settings call it.
    operation: String,
    tenant: String,
    /// In either spelling.
    key: String,
}

/// Tells of one.
pub(super) async fn look(
    State(asked): State<Asked>,
    which: Result<Query<Which>, QueryRejection>,
) -> Result<impl IntoResponse, Problem> {
    let Query(Which { operation, tenant, key }) =
        which.map_err(|rejection| Problem::bad_request(rejection.body_text()))?;
    let key = key::parse(key.as_bytes()).map_err(|error| Problem::bad_request(format!("key: {error}")))?;
    let looked = asked.redrive.ledger().record(Scope { tenant, operation, key }).await;
    let wait = std::time::Duration::from_secs(1);
    let record = looked.map_err(|_| Problem::busy("the ledger does not answer", wait))?;
    let record = record.ok_or_else(|| Problem::not_found("nothing is remembered under this key"))?;
    Ok(([(CACHE_CONTROL, "no-store")], Json(told(&record))))
}

fn told(record: &Record) -> Value {
    let mut told = json!({
        "state": record.phase.as_str(),
        "attempts": record.attempt,
        "first_received": wire::moment(record.first),
    });
    if let Some((expires, forgotten)) = ends(record) {
        told["expires"] = wire::moment(expires).into();
        told["forgotten"] = wire::moment(forgotten).into();
    }
    told
}

/// When its answer is gone, and when all of it is. What is in flight or unknown never expires.
fn ends(record: &Record) -> Option<(Moment, Moment)> {
    let (answer, all) = (record.retention.answer, record.retention.record());
    match &record.phase {
        Phase::InFlight { .. } | Phase::Unknown { .. } => None,
        Phase::Retriable { since: at, .. } | Phase::Completed { at, .. } => Some((*at + answer, *at + all)),
        Phase::Tombstone { until, .. } => {
            let start = Moment::default();
            Some((start + until.since(start).saturating_sub(all.saturating_sub(answer)), *until))
        }
    }
}
