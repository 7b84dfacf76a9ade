//! Find: an event id, a job, or a text, wherever it is. The palette without a script.

use askama::Template;
use axum::Router;
use axum::response::{IntoResponse, Redirect, Response};
use axum::routing::get;

use super::events::EventRow;
use crate::desk::Shared;
use crate::desk::api::Problem;
use crate::desk::command::Command;
use crate::desk::link;
use crate::desk::page::Frame;
use crate::desk::text::list;
use crate::desk::visitor::Visitor;

pub(super) fn routes() -> Router<Shared> {
    Router::new().route("/desk/find", get(find))
}

#[derive(Template)]
#[template(path = "desk/find.html")]
struct FindPage {
    frame: Frame,
    asked: String,
    found: Vec<EventRow>,
    by_text: String,
    by_key: String,
    by_ledger: String,
}

async fn find(visitor: Visitor) -> Response {
    visitor.answer(page(&visitor).await)
}

async fn page(visitor: &Visitor) -> Result<Response, Problem> {
    let asked = visitor.asked("q").unwrap_or_default().trim();
    if let Some(job) = asked.strip_prefix("job ").and_then(|number| number.trim().parse::<u64>().ok()) {
        return Ok(Redirect::to(&format!("/desk/jobs/{job}")).into_response());
    }
    let mut query = vec![("id", asked)];
    if let Some([first, _, ..]) = visitor.caller.own_queues() {
        query.push(("queue", first));
    }
    let found: Vec<EventRow> = if asked.is_empty() {
        Vec::new()
    } else {
        list(&visitor.get("/v1/lookup", &query).await?, "events").iter().map(EventRow::of).collect()
    };
    if let [one] = &found[..] {
        return Ok(Redirect::to(&one.link).into_response());
    }
    let command = if asked.is_empty() { Command::none() } else { Command::new("event show").word(asked) };
    let has_ledger = visitor.caller.for_all_queues("").is_ok();
    Ok(visitor.show(&FindPage {
        frame: visitor.frame("Find", "", command),
        by_text: link::address("/desk/events", [("match", asked)]),
        by_key: link::address("/desk/events", [("key", asked), ("state", "open")]),
        by_ledger: if has_ledger { link::address("/desk/ledger", [("key", asked)]) } else { String::new() },
        asked: asked.to_owned(),
        found,
    }))
}
