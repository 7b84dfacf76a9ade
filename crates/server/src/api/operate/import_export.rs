//! Dead letters as JSON lines, to move them between stores; or as CSV, to look at them elsewhere.
//!
//! Without a `limit` an export is one stream, read and sent in chunks; it ends early if the store fails, and
//! unreadable events are logged. With a `limit` it is a page, whose headers say where the next one starts
//! (`redrive-next`) and how many rows could not be read (`redrive-damaged`).

use std::sync::Arc;

use axum::body::Body as Sent;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use futures_util::stream;
use http::header::CONTENT_TYPE;
use http::{HeaderName, HeaderValue, StatusCode};
use redrive::Event;
use redrive::desk::{Desk, ExchangeError, ExportReport, Filter, Seq};
use serde_json::{Value, json};

use super::super::streams::{self, BegunStreams};
use super::super::{ApiProblem, RequestBody, wire};
use super::OperatorContext;
use super::query::{EventQueryParams, QueryParams};
use crate::app::App;
use crate::config::Right;

mod csv;

/// Dead letters read at once for a stream. Each may have a payload of a megabyte.
const AT_ONCE: usize = 50;

const LINES: (HeaderName, &str) = (CONTENT_TYPE, "application/x-ndjson");
const NEXT: &str = "redrive-next";
const DAMAGED: &str = "redrive-damaged";

pub(super) fn routes() -> Router<Arc<App>> {
    Router::new().route("/v1/dead/export", get(export)).route("/v1/dead/import", post(import))
}

async fn export(
    context: OperatorContext,
    QueryParams(asked): QueryParams<EventQueryParams>,
) -> Result<Response, ApiProblem> {
    context.may_read()?;
    if asked.state()?.is_some() {
        return Err(ApiProblem::bad_request("an export contains dead letters only; remove `state`"));
    }
    let (filter, after) = (asked.filter(&context)?, asked.after()?);
    // Before the first line is sent, so that there is no export without a line of the audit.
    let target = format!(
        "dead letters of queue {}, tenant {}",
        filter.queue.as_deref().unwrap_or("any"),
        filter.tenant.as_deref().unwrap_or("any")
    );
    context.desk.note("export", &target, 1, "").await?;
    match (asked.format.as_deref(), asked.limit()?) {
        (Some("csv"), limit) => csv::export(context, filter, after, limit).await,
        (None | Some("lines"), Some(limit)) => one_page(&context, filter, after, limit).await,
        (None | Some("lines"), None) => Ok(whole(context, filter, after)),
        (Some(_), _) => Err(ApiProblem::bad_request("`format` must be lines or csv")),
    }
}

async fn one_page(
    context: &OperatorContext,
    filter: Filter,
    after: Option<Seq>,
    limit: usize,
) -> Result<Response, ApiProblem> {
    let mut lines = Vec::new();
    let (exported, next) = context.desk.export_page(filter, after, limit, &mut lines).await?;
    let mut answer = ([LINES], lines).into_response();
    let headers = answer.headers_mut();
    headers.insert(DAMAGED, HeaderValue::from(exported.damaged.len()));
    if let Some(Seq(next)) = next {
        headers.insert(NEXT, HeaderValue::from(next));
    }
    Ok(answer)
}

/// The position of an export.
struct ExportCursor {
    desk: Desk,
    filter: Filter,
    after: Option<Seq>,
}

fn whole(context: OperatorContext, filter: Filter, after: Option<Seq>) -> Response {
    let place = ExportCursor { desk: context.desk, filter, after };
    let lines = stream::try_unfold(Some(place), |place| async move {
        let Some(place) = place else { return Ok(None) };
        some(place).await.map(Some)
    });
    ([LINES], Sent::from_stream(lines)).into_response()
}

async fn some(place: ExportCursor) -> Result<(Vec<u8>, Option<ExportCursor>), ExchangeError> {
    let ExportCursor { desk, filter, after } = place;
    let mut lines = Vec::new();
    let (ExportReport { damaged, .. }, next) =
        desk.export_page(filter.clone(), after, AT_ONCE, &mut lines).await?;
    for row in damaged {
        tracing::warn!(row, "event cannot be read; left out of the export");
    }
    Ok((lines, next.map(|after| ExportCursor { desk, filter, after: Some(after) })))
}

async fn import(context: OperatorContext, body: RequestBody) -> Result<Json<Value>, ApiProblem> {
    context.may_operate()?;
    context.caller.may(Right::Publish)?;
    // Each line is checked as if it were published, and all of them before one is stored.
    let live = context.app.live().clone();
    let (mut refusal, mut begun) = (None, BegunStreams::default());
    let check = |event: &Event| {
        let checked = context.caller.tenant(Some(&event.tenant));
        let checked = checked.and_then(|_| context.caller.may_send_to(&event.queue, &live.config));
        let checked = checked
            .and_then(|()| streams::take(&context.app, &context.caller, &event.queue, [&*event.tenant]));
        checked.map(|new| begun.extend(new)).map_err(|problem| refusal = Some(problem)).is_ok()
    };
    let imported = match context.desk.import_if(check, &mut &body.bytes[..]).await {
        Ok(imported) => imported,
        Err(ExchangeError::Line { line, what }) => {
            let detail =
                format!("line {line} is not a dead letter: {what}; the lines before it were imported");
            let problem = ApiProblem::new(StatusCode::UNPROCESSABLE_ENTITY, "not-a-letter", detail);
            return Err(problem.with("line", line).with("what", what));
        }
        Err(ExchangeError::Refused { line }) => {
            streams::release(&context.app, &context.caller, &begun);
            let problem = refusal.unwrap_or_else(|| ApiProblem::bad_request("this line is refused"));
            return Err(problem.with("line", line));
        }
        Err(error) => return Err(error.into()),
    };
    let refused = imported.refused.iter().map(|(line, refusal)| {
        let problem = wire::refused(refusal);
        json!({ "line": line, "reason": problem.kind, "detail": problem.detail })
    });
    Ok(Json(json!({ "changed": imported.kept, "refused": refused.collect::<Vec<_>>() })))
}

impl From<ExchangeError> for ApiProblem {
    fn from(error: ExchangeError) -> Self {
        match error {
            ExchangeError::Store(error) => error.into(),
            error => Self::new(StatusCode::INTERNAL_SERVER_ERROR, "exchange", error.to_string()),
        }
    }
}
