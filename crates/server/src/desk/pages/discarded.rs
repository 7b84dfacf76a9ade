//! What operators discarded, how long it can be restored, and the way back.

use askama::Template;
use axum::Router;
use axum::response::Response;
use axum::routing::get;

use super::events::EventRow;
use crate::desk::Shared;
use crate::desk::api::Problem;
use crate::desk::command::Command;
use crate::desk::filter::{Chip, EventFilter};
use crate::desk::page::Frame;
use crate::desk::text::{list, member};
use crate::desk::visitor::Visitor;

pub(super) fn routes() -> Router<Shared> {
    Router::new().route("/desk/discarded", get(discarded))
}

#[derive(Template)]
#[template(path = "desk/discarded.html")]
struct DiscardedPage {
    frame: Frame,
    rows: Vec<EventRow>,
    chips: Vec<Chip>,
    filter: EventFilter,
    first: String,
    next: String,
}

async fn discarded(visitor: Visitor) -> Response {
    visitor.answer(page(&visitor).await)
}

async fn page(visitor: &Visitor) -> Result<Response, Problem> {
    let filter = EventFilter::of(visitor);
    let after = visitor.asked("after").unwrap_or_default();
    let mut query: Vec<(&str, &str)> = filter.pairs().collect();
    query.extend([("state", "discarded"), ("after", after), ("limit", "100")]);
    let answer = visitor.get("/v1/events", &query).await?;
    let next = member(&answer, "next");
    let command = Command::new("dead ls").switch("discarded", true).flag("limit", Some("100"));
    let command = filter.flags(command.flag("after", Some(after))).unwrap_or_default();
    Ok(visitor.show(&DiscardedPage {
        frame: visitor.frame("Discarded", "Discarded", command),
        rows: list(&answer, "events").iter().map(EventRow::of).collect(),
        chips: filter.chips("/desk/discarded", &[]),
        first: if after.is_empty() { String::new() } else { filter.address("/desk/discarded", &[]) },
        next: if next.is_empty() {
            String::new()
        } else {
            filter.address("/desk/discarded", &[("after", &next)])
        },
        filter,
    }))
}
