//! The list of events: of a group, of a queue, or of all that match a filter.

use askama::Template;
use axum::Router;
use axum::response::Response;
use axum::routing::get;
use serde_json::Value;

use crate::desk::Shared;
use crate::desk::api::Problem;
use crate::desk::command::Command;
use crate::desk::filter::{Chip, EventFilter};
use crate::desk::link;
use crate::desk::page::Frame;
use crate::desk::text::{Time, count, list, member, number, several};
use crate::desk::visitor::Visitor;

/// Events on a page.
const LIMIT: &str = "100";

pub(super) fn routes() -> Router<Shared> {
    Router::new().route("/desk/events", get(events))
}

/// An event, as a row.
#[derive(Debug, Clone)]
pub(super) struct EventRow {
    /// Its identity, percent-encoded, as a form's value.
    pub(super) which: String,
    pub(super) id: String,
    pub(super) queue: String,
    pub(super) tenant: String,
    pub(super) key: String,
    pub(super) state: String,
    pub(super) attempts: u64,
    pub(super) at: Time,
    pub(super) reason: String,
    pub(super) error: String,
    pub(super) holds_key: bool,
    pub(super) link: String,
    pub(super) key_link: String,
    /// How long it can be restored.
    pub(super) until: Time,
}

impl EventRow {
    /// An event of the API.
    pub(super) fn of(event: &Value) -> Self {
        let [queue, tenant, id, key, state] =
            ["queue", "tenant", "id", "key", "state"].map(|name| member(event, name));
        let rev = member(event, "rev");
        let which = [("queue", queue.as_str()), ("tenant", &tenant), ("id", &id), ("rev", &rev)];
        let at = ["ended", "due", "published"].into_iter().find(|name| event[*name].is_string());
        Self {
            which: link::query(which),
            link: link::event(&queue, &tenant, &id),
            key_link: if key.is_empty() { String::new() } else { link::key(&queue, &tenant, &key) },
            attempts: count(event, "attempts"),
            at: Time::member(event, at.unwrap_or("published")),
            reason: member(event, "reason").replace('_', " "),
            error: error(&event["error"]),
            holds_key: event["holds_key"] == true,
            until: Time::member(event, "until"),
            id,
            queue,
            tenant,
            key,
            state,
        }
    }
}

/// An error on one line: `http 503: upstream connect error`.
pub(super) fn error(cause: &Value) -> String {
    let head = [member(cause, "kind"), member(cause, "code")];
    let head: Vec<String> = head.into_iter().filter(|word| !word.is_empty()).collect();
    let parts = [head.join(" "), member(cause, "message")];
    parts.into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join(": ")
}

/// A state to list by.
struct StateTab {
    name: &'static str,
    link: String,
    is_here: bool,
}

/// What the list is of, when it is of one cause.
struct GroupHead {
    title: String,
    letters: String,
    keys: String,
    redriven: String,
    failed_again: bool,
}

#[derive(Template)]
#[template(path = "desk/events.html")]
struct EventsPage {
    frame: Frame,
    group: Option<GroupHead>,
    state: &'static str,
    tabs: Vec<StateTab>,
    chips: Vec<Chip>,
    filter: EventFilter,
    rows: Vec<EventRow>,
    first: String,
    next: String,
    is_short: bool,
    damaged: String,
    redrive_all: String,
    discard_all: String,
    retry_all: String,
    export_lines: String,
    export_csv: String,
}

/// States to list by: as the page says it, and as the API does. Failing events wait and have failed before.
const STATES: [(&str, &str); 8] = [
    ("dead", "dead"),
    ("failing", "waiting"),
    ("waiting", "waiting"),
    ("ready", "ready"),
    ("running", "running"),
    ("parked", "parked"),
    ("quarantined", "quarantined"),
    ("open", ""),
];

async fn events(visitor: Visitor) -> Response {
    visitor.answer(page(&visitor).await)
}

async fn page(visitor: &Visitor) -> Result<Response, Problem> {
    let asked = visitor.asked("state").unwrap_or("dead");
    let Some((state, word)) = STATES.into_iter().find(|(state, _)| *state == asked) else {
        return Err(Problem::bad_request(format!("events cannot be listed by state `{asked}`")));
    };
    let filter = EventFilter::of(visitor);
    let after = visitor.asked("after").unwrap_or_default();
    let limit = visitor.asked("limit").unwrap_or(LIMIT);
    let mut query: Vec<(&str, &str)> = filter.pairs().collect();
    query.extend([("state", word), ("after", after), ("limit", limit)]);
    if state == "failing" && filter.get("attempts_min").is_empty() {
        query.push(("attempts_min", "1"));
    }
    let answer = visitor.get("/v1/events", &query).await?;
    let rows: Vec<EventRow> = list(&answer, "events").iter().map(EventRow::of).collect();
    let group =
        if filter.get("cause").is_empty() || state != "dead" { None } else { head(visitor, &filter).await? };
    let own = if state == "dead" { "" } else { state };
    let here = |more: &[(&str, &str)]| {
        let all: Vec<(&str, &str)> = [("state", own), ("limit", visitor.asked("limit").unwrap_or_default())]
            .into_iter()
            .chain(more.iter().copied())
            .chain(filter.pairs())
            .collect();
        link::address("/desk/events", all)
    };
    let tab = |(name, _): (&'static str, &str)| {
        let state = if name == "dead" { "" } else { name };
        StateTab { name, link: filter.address("/desk/events", &[("state", state)]), is_here: name == asked }
    };
    let next = member(&answer, "next");
    let act = |act| filter.address("/desk/redrive", &[("act", act)]);
    Ok(visitor.show(&EventsPage {
        frame: visitor.frame(title(state), "Events", command(state, &filter, after, limit)).live(5),
        group,
        state,
        tabs: STATES.into_iter().map(tab).collect(),
        chips: filter.chips("/desk/events", &[("state", own)]),
        first: if after.is_empty() { String::new() } else { here(&[]) },
        is_short: rows.is_empty() && !next.is_empty(),
        next: if next.is_empty() { String::new() } else { here(&[("after", &next)]) },
        damaged: match list(&answer, "damaged").len() {
            0 => String::new(),
            damaged => number(damaged.try_into().unwrap_or_default()),
        },
        redrive_all: act("redrive"),
        discard_all: act("discard"),
        retry_all: act("retry-now"),
        export_lines: filter.address("/desk/export", &[("form", "lines")]),
        export_csv: filter.address("/desk/export", &[("form", "csv")]),
        rows,
        filter,
    }))
}

const fn title(state: &str) -> &'static str {
    match state.as_bytes() {
        b"dead" => "Dead letters",
        b"failing" => "Failing events",
        _ => "Events",
    }
}

/// The command that lists the same.
fn command(state: &str, filter: &EventFilter, after: &str, limit: &str) -> Command {
    let (command, word) = match state {
        "dead" => (Command::new("dead ls"), ""),
        "failing" => (Command::new("event ls"), "waiting"),
        "open" => (Command::new("event ls"), ""),
        word => (Command::new("event ls"), word),
    };
    let least = (state == "failing" && filter.get("attempts_min").is_empty()).then_some("1");
    let command = command.flag("state", Some(word)).flag("attempts-min", least);
    let command = command.flag("limit", Some(limit)).flag("after", Some(after));
    filter.flags(command).unwrap_or_default()
}

/// The group that a list is of.
async fn head(visitor: &Visitor, filter: &EventFilter) -> Result<Option<GroupHead>, Problem> {
    let query = [("queue", filter.get("queue")), ("tenant", filter.get("tenant")), ("limit", "1000")];
    let answer = visitor.get("/v1/dead/groups", &query).await?;
    let rows = super::groups::rows(&answer, "cause", "", "");
    let name = format!("g-{}", filter.get("cause"));
    Ok(rows.into_iter().find(|row| row.name == name).map(|row| GroupHead {
        title: row.title,
        letters: several(row.letters, "dead letter"),
        keys: row.keys_text,
        redriven: row.redriven,
        failed_again: row.failed_again,
    }))
}
