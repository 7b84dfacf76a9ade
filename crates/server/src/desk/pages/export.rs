//! All dead letters that match, as a file: JSON lines, which can be imported again, or CSV.

use axum::Router;
use axum::body::Body;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use http::HeaderValue;
use http::header::{CONTENT_DISPOSITION, CONTENT_SECURITY_POLICY, CONTENT_TYPE};

use crate::desk::Shared;
use crate::desk::api::Problem;
use crate::desk::filter::EventFilter;
use crate::desk::visitor::Visitor;

pub(super) fn routes() -> Router<Shared> {
    Router::new().route("/desk/export", get(export))
}

async fn export(visitor: Visitor) -> Response {
    match file(&visitor).await {
        Ok((body, media_type, named)) => {
            let mut response = body.into_response();
            let headers = response.headers_mut();
            headers.insert(CONTENT_TYPE, HeaderValue::from_static(media_type));
            headers.insert(CONTENT_DISPOSITION, HeaderValue::from_static(named));
            headers.insert(CONTENT_SECURITY_POLICY, HeaderValue::from_static("sandbox; default-src 'none'"));
            response
        }
        Err(problem) => visitor.answer(Err(problem)),
    }
}

async fn file(visitor: &Visitor) -> Result<(Body, &'static str, &'static str), Problem> {
    let filter = EventFilter::of(visitor);
    let is_csv = visitor.asked("form") == Some("csv");
    let format = if is_csv { "csv" } else { "lines" };
    let body = visitor.stream(&filter.address("/v1/dead/export", &[("format", format)])).await?;
    Ok(if is_csv {
        (body, "text/csv; charset=utf-8", "attachment; filename=\"dead-letters.csv\"")
    } else {
        (body, "application/x-ndjson", "attachment; filename=\"dead-letters.jsonl\"")
    })
}
