//! Dead letters as CSV: one row each, without payloads.
//!
//! A cell that a spreadsheet would take for a formula gets an apostrophe before it. Lines end with CR LF (RFC 4180).

use axum::body::Body as Sent;
use axum::response::{IntoResponse, Response};
use futures_util::stream;
use http::HeaderValue;
use http::header::CONTENT_TYPE;
use redrive::desk::{Filter, Seq};
use redrive::event::State;
use redrive::{Event, EventQuery, EventStatus, StoreError};

use super::super::super::{ApiProblem, wire};
use super::super::{OperatorContext, to_json};
use super::{DAMAGED, NEXT};

/// Dead letters read at once for a stream.
const AT_ONCE: usize = 500;

const HEADS: [&str; 11] = [
    "queue",
    "tenant",
    "id",
    "key",
    "reason",
    "attempts",
    "published",
    "died",
    "error_kind",
    "error_code",
    "error_message",
];

/// A page with a limit, or a stream of all. The heads come with the first row.
pub(super) async fn export(
    context: OperatorContext,
    filter: Filter,
    after: Option<Seq>,
    limit: Option<usize>,
) -> Result<Response, ApiProblem> {
    let media_type = (CONTENT_TYPE, HeaderValue::from_static("text/csv; charset=utf-8"));
    if let Some(limit) = limit {
        let (rows, damaged, next) = page(&context, filter, after, limit).await?;
        let mut response = ([media_type], rows).into_response();
        response.headers_mut().insert(DAMAGED, HeaderValue::from(damaged));
        if let Some(Seq(next)) = next {
            response.headers_mut().insert(NEXT, HeaderValue::from(next));
        }
        return Ok(response);
    }
    let rows = stream::try_unfold(Some((context, filter, after)), |place| async move {
        let Some((context, filter, after)) = place else { return Ok(None) };
        let (rows, _, next) = page(&context, filter.clone(), after, AT_ONCE).await?;
        Ok::<_, StoreError>(Some((rows, next.map(|after| (context, filter, Some(after))))))
    });
    Ok(([media_type], Sent::from_stream(rows)).into_response())
}

async fn page(
    context: &OperatorContext,
    filter: Filter,
    after: Option<Seq>,
    limit: usize,
) -> Result<(String, usize, Option<Seq>), StoreError> {
    let query = EventQuery { filter, state: Some(State::Dead), after, limit };
    let page = context.desk.list(query).await?;
    let mut rows = if after.is_none() { line(HEADS.map(str::to_owned)) } else { String::new() };
    rows.extend(page.events.iter().map(|(event, found)| row(event, found)));
    Ok((rows, page.damaged.len(), page.next))
}

fn row(event: &Event, found: &EventStatus) -> String {
    let error = found.history.as_deref().and_then(to_json::error).unwrap_or_default();
    let word = |name: &str| error[name].as_str().unwrap_or_default().to_owned();
    line([
        event.queue.clone(),
        event.tenant.clone(),
        event.id.clone(),
        event.key.clone().unwrap_or_default(),
        found.reason.map(|reason| reason.as_str().to_owned()).unwrap_or_default(),
        found.attempts.to_string(),
        wire::moment(found.published),
        found.ended.map(wire::moment).unwrap_or_default(),
        word("kind"),
        word("code"),
        word("message"),
    ])
}

fn line(cells: [String; HEADS.len()]) -> String {
    cells.map(|text| cell(&text)).join(",") + "\r\n"
}

/// A cell, quoted where it has to be, and never a formula.
fn cell(text: &str) -> String {
    let is_formula = text.starts_with(['=', '+', '-', '@', '\t', '\r']);
    let text = if is_formula { format!("'{text}") } else { text.to_owned() };
    if text.contains([',', '"', '\r', '\n']) { format!("\"{}\"", text.replace('"', "\"\"")) } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cell_is_text_and_no_formula() {
        let cells = [
            ("plain", "plain"),
            ("a,b", "\"a,b\""),
            ("say \"hi\"", "\"say \"\"hi\"\"\""),
            ("=1+1", "'=1+1"),
            ("-2", "'-2"),
            ("@x", "'@x"),
            ("\t=1", "'\t=1"),
            ("two\nlines", "\"two\nlines\""),
        ];
        for (text, told) in cells {
            assert_eq!(cell(text), told);
        }
    }
}
