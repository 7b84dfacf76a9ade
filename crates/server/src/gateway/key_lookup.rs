//! `GET /keys?operation=…&tenant=…&key=…`: the record of a key, for clients of the admin address.
//!
//! State, number of attempts and expiry. Never the reply or the request: an authorised client gets the reply by
//! repeating the request.

use axum::Json;
use axum::extract::{Query, State, rejection::QueryRejection};
use axum::http::header::CACHE_CONTROL;
use axum::response::IntoResponse;
use redrive::Moment;
use redrive::http::idempotency_key;
use redrive::http::idempotent::{Ledger as _, LedgerRecord, RecordPhase, RequestScope};
use serde::Deserialize;
use serde_json::{Value, json};

use super::admin::AdminState;
use crate::api::{ApiProblem, wire};

/// Which key.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct KeyQuery {
    /// A route, as the settings call it.
    operation: String,
    tenant: String,
    /// In either spelling.
    key: String,
    /// The caller's name, on routes whose callers are named by a trusted proxy.
    principal: Option<String>,
}

/// Shows one record.
pub(super) async fn look(
    State(asked): State<AdminState>,
    which: Result<Query<KeyQuery>, QueryRejection>,
) -> Result<impl IntoResponse, ApiProblem> {
    let Query(KeyQuery { operation, tenant, key, principal }) =
        which.map_err(|rejection| ApiProblem::bad_request(rejection.body_text()))?;
    let key = idempotency_key::parse(key.as_bytes())
        .map_err(|error| ApiProblem::bad_request(format!("key: {error}")))?;
    let scope = RequestScope { tenant, operation, key };
    let scope = principal.iter().fold(scope, |scope, principal| scope.of_principal(principal));
    let looked = asked.redrive.ledger().record(scope).await;
    let wait = std::time::Duration::from_secs(1);
    let record = looked.map_err(|_| ApiProblem::busy("the ledger does not respond", wait))?;
    let record = record.ok_or_else(|| ApiProblem::not_found("no record exists for this key"))?;
    Ok(([(CACHE_CONTROL, "no-store")], Json(told(&record))))
}

fn told(record: &LedgerRecord) -> Value {
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

/// When its reply expires, and when its record does. In-flight and unknown records never expire.
fn ends(record: &LedgerRecord) -> Option<(Moment, Moment)> {
    let (answer, all) = (record.retention.answer, record.retention.record());
    match &record.phase {
        RecordPhase::InFlight { .. } | RecordPhase::Unknown { .. } => None,
        RecordPhase::Retriable { since: at, .. } | RecordPhase::Completed { at, .. } => {
            Some((*at + answer, *at + all))
        }
        RecordPhase::Tombstone { until, .. } => {
            let start = Moment::default();
            Some((start + until.since(start).saturating_sub(all.saturating_sub(answer)), *until))
        }
    }
}
