//! Health, metrics and key lookup on a separate address: every path of the other one belongs to the API.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::header::CONTENT_TYPE;
use axum::http::uri::Authority;
use axum::http::{HeaderMap, StatusCode};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use redrive::http::idempotent::{Ledger as _, RequestScope};
use redrive::{Redrive, StoreError};
use serde_json::{Value, json};
use tokio::sync::watch;

use super::key_lookup;
use super::ledger_health::LedgerHealth;
use crate::api::ApiProblem;
use crate::auth::named_host;
use crate::observe::{Samples, metrics, openmetrics};

/// The state of the admin address.
#[derive(Debug, Clone)]
pub(super) struct AdminState {
    pub(super) redrive: Redrive,
    pub(super) samples: Arc<Samples>,
    pub(super) stopping: watch::Receiver<bool>,
    pub(super) health: LedgerHealth,
    /// Names by which it may be called, in lower case.
    pub(super) hosts: Arc<[String]>,
    pub(super) is_loopback: bool,
}

pub(super) fn router(asked: AdminState) -> Router {
    Router::new()
        .route("/healthz", get(async || Json(json!({ "status": "ok" }))))
        .route("/readyz", get(ready))
        .route("/metrics", get(show))
        .route("/keys", get(key_lookup::look))
        .fallback(async || {
            ApiProblem::not_found("there is no such path; try /healthz, /readyz, /metrics or /keys")
        })
        .layer(from_fn_with_state(asked.clone(), called_by_its_name))
        .with_state(asked)
}

/// Refuses requests that name another host. There is no token here, and a web page whose name leads to this address
/// (DNS rebinding) could have its visitors' browsers read keys and metrics.
async fn called_by_its_name(
    State(asked): State<AdminState>,
    request: Request,
    next: Next,
) -> Result<Response, ApiProblem> {
    let host = named_host(request.uri(), request.headers()).unwrap_or_default();
    if is_ours(host, &asked.hosts, asked.is_loopback) {
        return Ok(next.run(request).await);
    }
    let detail = "this host is not known here; call the address by its number, or list the name in gateway.admin_hosts";
    Err(ApiProblem::new(StatusCode::FORBIDDEN, "host-unknown", detail))
}

/// Whether a host can only mean this address: a number, a local name, or a configured one.
fn is_ours(host: &str, known: &[String], is_loopback: bool) -> bool {
    let Ok(authority) = host.parse::<Authority>() else { return false };
    let name = authority.host().trim_matches(['[', ']']).to_ascii_lowercase();
    match name.parse::<IpAddr>() {
        Ok(address) => !is_loopback || address.is_loopback() || known.contains(&name),
        Err(_) => name == "localhost" || known.contains(&name),
    }
}

/// The room that the ledger has left on its disk; without enough it records nothing, and no enrolled request runs.
fn low_disk(redrive: &Redrive) -> Option<StoreError> {
    let room = redrive.figures().disk.filter(|room| room.is_low())?;
    Some(StoreError::DiskLow { free: room.free, least: room.least })
}

/// Ready if it is not stopping, and the ledger responds, has room and can be written. The upstream is not checked: it has its own probes, and
/// replays do not need it.
async fn ready(State(asked): State<AdminState>) -> Result<Json<Value>, ApiProblem> {
    if *asked.stopping.borrow() {
        return Err(ApiProblem::busy("the gateway is shutting down", std::time::Duration::from_secs(1)));
    }
    let scope =
        RequestScope { tenant: String::new(), operation: "ready".to_owned(), key: "ready".to_owned() };
    let looked = asked.redrive.ledger().record(scope).await;
    looked.map_err(|error| ApiProblem::busy(error.to_string(), std::time::Duration::from_secs(1)))?;
    if let Some(cause) = low_disk(&asked.redrive) {
        return Err(cause.into());
    }
    if let Some(cause) = asked.health.trouble() {
        let detail = format!("the ledger cannot be written: {cause}");
        return Err(ApiProblem::busy(detail, std::time::Duration::from_secs(1)));
    }
    Ok(Json(json!({ "status": "ok" })))
}

async fn show(State(asked): State<AdminState>, headers: HeaderMap) -> impl IntoResponse {
    let text = metrics::with_samples(&asked.samples, &asked.redrive, &BTreeMap::new()).await;
    let (format, text) = openmetrics::negotiated(&headers, text);
    ([(CONTENT_TYPE, format)], text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_is_not_ours_is_refused() {
        let known = ["gateway.internal".to_owned()];
        for (host, loopback, elsewhere) in [
            ("127.0.0.1:8082", true, true),
            ("[::1]:8082", true, true),
            ("localhost:8082", true, true),
            ("Gateway.Internal", true, true),
            ("10.0.0.7:8082", false, true),
            ("evil.example:8082", false, false),
            ("127.0.0.1.evil.example", false, false),
            ("localhost.evil.example", false, false),
            ("", false, false),
        ] {
            assert_eq!(is_ours(host, &known, true), loopback, "{host}");
            assert_eq!(is_ours(host, &known, false), elsewhere, "{host}");
        }
    }
}
