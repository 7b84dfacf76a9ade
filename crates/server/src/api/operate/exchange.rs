//! Dead letters as JSON lines: out of this store, into another one.
//!
//! Without a `limit` an export is one stream, read and sent bit by bit; it breaks off where the store fails, and what
//! could not be read is in the server's log. With a `limit` it is a page, whose headers say where the next one begins
//! (`redrive-next`) and how many rows could not be read (`redrive-damaged`).

use std::sync::Arc;

use axum::body::Body as Sent;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use futures_util::stream;
use http::header::CONTENT_TYPE;
use http::{HeaderName, HeaderValue, StatusCode};
use redrive::desk::{Desk, ExchangeError, Exported, Filter, Seq};
use serde_json::{Value, json};

use super::super::{Body, Problem, wire};
use super::Seat;
use super::asked::{Asked, Search};
use crate::app::App;

/// How many letters are read at once for a stream. Each may have a payload of a megabyte.
const AT_ONCE: usize = 50;

const LINES: (HeaderName, &str) = (CONTENT_TYPE, "application/x-ndjson");
const NEXT: &str = "redrive-next";
const DAMAGED: &str = "redrive-damaged";

pub(super) fn routes() -> Router<Arc<App>> {
    Router::new().route("/v1/dead/export", get(export)).route("/v1/dead/import", post(import))
}

async fn export(seat: Seat, Asked(asked): Asked<Search>) -> Result<Response, Problem> {
    seat.may_read()?;
    if asked.state()?.is_some() {
        return Err(Problem::bad_request("what is exported are dead letters; there is no `state` to choose"));
    }
    let (filter, after) = (asked.filter(&seat)?, asked.after()?);
    match asked.limit()? {
        Some(limit) => one_page(&seat, filter, after, limit).await,
        None => Ok(whole(seat, filter, after)),
    }
}

async fn one_page(
    seat: &Seat,
    filter: Filter,
    after: Option<Seq>,
    limit: usize,
) -> Result<Response, Problem> {
    let mut lines = Vec::new();
    let (exported, next) = seat.desk.export_page(filter, after, limit, &mut lines).await?;
    let mut answer = ([LINES], lines).into_response();
    let headers = answer.headers_mut();
    headers.insert(DAMAGED, HeaderValue::from(exported.damaged.len()));
    if let Some(Seq(next)) = next {
        headers.insert(NEXT, HeaderValue::from(next));
    }
    Ok(answer)
}

/// Where a stream of letters is.
struct Place {
    desk: Desk,
    filter: Filter,
    after: Option<Seq>,
}

fn whole(seat: Seat, filter: Filter, after: Option<Seq>) -> Response {
    let place = Place { desk: seat.desk, filter, after };
    let lines = stream::try_unfold(Some(place), |place| async move {
        let Some(place) = place else { return Ok(None) };
        some(place).await.map(Some)
    });
    ([LINES], Sent::from_stream(lines)).into_response()
}

async fn some(place: Place) -> Result<(Vec<u8>, Option<Place>), ExchangeError> {
    let Place { desk, filter, after } = place;
    let mut lines = Vec::new();
    let (Exported { damaged, .. }, next) =
        desk.export_page(filter.clone(), after, AT_ONCE, &mut lines).await?;
    for row in damaged {
        tracing::warn!(row, "left out of an export: it cannot be read");
    }
    Ok((lines, next.map(|after| Place { desk, filter, after: Some(after) })))
}

async fn import(seat: Seat, body: Body) -> Result<Json<Value>, Problem> {
    seat.may_operate()?;
    let mut lines = &body.bytes[..];
    let imported = match &seat.caller.tenant {
        Some(own) => seat.desk.import_of(own, &mut lines).await,
        None => seat.desk.import(&mut lines).await,
    };
    let imported = match imported {
        Ok(imported) => imported,
        Err(ExchangeError::Line { line, what }) => {
            let detail = format!("line {line} is no letter: {what}; those before it are kept");
            let problem = Problem::new(StatusCode::UNPROCESSABLE_ENTITY, "not-a-letter", detail);
            return Err(problem.with("line", line).with("what", what));
        }
        Err(ExchangeError::Tenant { line, tenant }) => {
            return Err(Problem::other_tenant(&tenant).with("line", line));
        }
        Err(error) => return Err(error.into()),
    };
    let refused = imported.refused.iter().map(|(line, refusal)| {
        let problem = wire::refused(refusal);
        json!({ "line": line, "reason": problem.kind, "detail": problem.detail })
    });
    Ok(Json(json!({ "changed": imported.kept, "refused": refused.collect::<Vec<_>>() })))
}

impl From<ExchangeError> for Problem {
    fn from(error: ExchangeError) -> Self {
        match error {
            ExchangeError::Store(error) => error.into(),
            error => Self::new(StatusCode::INTERNAL_SERVER_ERROR, "exchange", error.to_string()),
        }
    }
}
