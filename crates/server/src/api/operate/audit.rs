//! Who did what. Its lines are about everybody, so a token with a tenant has none of it.

use std::sync::Arc;

use axum::body::Body as Sent;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use futures_util::stream;
use http::header::CONTENT_TYPE;
use redrive::desk::Desk;
use serde::Deserialize;
use serde_json::{Value, json};

use super::super::Problem;
use super::asked::{Asked, page};
use super::{Seat, view};
use crate::app::App;

/// How many lines are read at once for a stream of them.
const AT_ONCE: usize = 500;

pub(super) fn routes() -> Router<Arc<App>> {
    Router::new().route("/v1/audit", get(list)).route("/v1/audit/export", get(export))
}

#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Lines {
    before: Option<u64>,
    limit: Option<usize>,
}

async fn list(seat: Seat, Asked(asked): Asked<Lines>) -> Result<Json<Value>, Problem> {
    seat.may_read()?;
    seat.for_all_tenants("the audit")?;
    let limit = page(asked.limit)?;
    let lines = seat.desk.audit(asked.before, limit).await?;
    let mut answer = json!({ "lines": lines.iter().map(view::line).collect::<Vec<_>>() });
    if let Some(last) = lines.last().filter(|line| lines.len() == limit && line.number > 1) {
        answer["next"] = last.number.into();
    }
    Ok(Json(answer))
}

/// All lines as JSON lines, the latest first, read and sent bit by bit.
async fn export(seat: Seat) -> Result<Response, Problem> {
    seat.may_read()?;
    seat.for_all_tenants("the audit")?;
    let lines = stream::try_unfold(Some((seat.desk, None)), |at| async move {
        let Some((desk, before)) = at else { return Ok(None) };
        some(desk, before).await
    });
    Ok(([(CONTENT_TYPE, "application/x-ndjson")], Sent::from_stream(lines)).into_response())
}

/// Some lines, and from where to go on.
type Bit = (String, Option<(Desk, Option<u64>)>);

async fn some(desk: Desk, before: Option<u64>) -> Result<Option<Bit>, redrive::StoreError> {
    let lines = desk.audit(before, AT_ONCE).await?;
    let Some(last) = lines.last() else { return Ok(None) };
    let next = Some((desk, Some(last.number)));
    Ok(Some((lines.iter().map(|line| format!("{}\n", view::line(line))).collect(), next)))
}
