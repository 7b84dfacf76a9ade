//! The audit: who did what, when, to how many.

use askama::Template;
use axum::Router;
use axum::response::Response;
use axum::routing::get;

use crate::api::wire::{AuditLineJson, AuditPageJson};
use crate::desk::Shared;
use crate::desk::api::Problem;
use crate::desk::command::Command;
use crate::desk::link;
use crate::desk::page::Frame;
use crate::desk::text::{Time, number};
use crate::desk::visitor::Visitor;

pub(super) fn routes() -> Router<Shared> {
    Router::new().route("/desk/audit", get(audit))
}

struct Line {
    line: AuditLineJson,
    at: Time,
    count: String,
}

#[derive(Template)]
#[template(path = "desk/audit.html")]
struct AuditPage {
    frame: Frame,
    lines: Vec<Line>,
    target: String,
    who: String,
    verb: String,
    has_filter: bool,
    first: String,
    next: String,
}

async fn audit(visitor: Visitor) -> Response {
    visitor.answer(page(&visitor).await)
}

async fn page(visitor: &Visitor) -> Result<Response, Problem> {
    let part = |name| visitor.asked(name).unwrap_or_default();
    let (target, who, verb, before) = (part("target"), part("who"), part("verb"), part("before"));
    let query = [("target", target), ("who", who), ("verb", verb), ("before", before), ("limit", "100")];
    let answer = visitor.get("/v1/audit", &query).await?;
    let page: AuditPageJson = serde_json::from_value(answer).unwrap_or_default();
    let here = |before: &str| {
        link::address("/desk/audit", [("target", target), ("who", who), ("verb", verb), ("before", before)])
    };
    let command = Command::new("audit ls").flag("target", Some(target)).flag("who", Some(who));
    let command = command.flag("verb", Some(verb)).flag("before", Some(before)).flag("limit", Some("100"));
    let line = |line: AuditLineJson| Line { at: Time::of(&line.at), count: number(line.count), line };
    Ok(visitor.show(&AuditPage {
        frame: visitor.frame("Audit", "Audit", command),
        lines: page.lines.into_iter().map(line).collect(),
        first: if before.is_empty() { String::new() } else { here("") },
        next: page.next.map_or(String::new(), |next| here(&next.to_string())),
        has_filter: !(target.is_empty() && who.is_empty() && verb.is_empty()),
        target: target.to_owned(),
        who: who.to_owned(),
        verb: verb.to_owned(),
    }))
}
