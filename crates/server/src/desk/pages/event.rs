//! One event: its state and why, its attempts on a line of time, its contents, what waits behind it, and what operators did.

use askama::Template;
use axum::Router;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use http::HeaderValue;
use http::header::{CONTENT_DISPOSITION, CONTENT_SECURITY_POLICY, CONTENT_TYPE};
use serde_json::Value;

use super::events::EventRow;
use super::timeline::{self, Node};
use crate::desk::Shared;
use crate::desk::api::Problem;
use crate::desk::command::Command;
use crate::desk::link;
use crate::desk::page::Frame;
use crate::desk::payload::{self, Shown};
use crate::desk::text::{Time, duration, list, member, number, several, since};
use crate::desk::visitor::Visitor;

/// How many events behind another one the API tells.
const BEHIND_MAX: usize = 100;
/// Operators' acts that a page shows.
const ACTS: &str = "50";

pub(super) fn routes() -> Router<Shared> {
    Router::new().route("/desk/event", get(event)).route("/desk/event/raw", get(raw))
}

/// A way to print the payload.
struct View {
    name: &'static str,
    link: String,
    is_here: bool,
}

/// What an operator may do with it.
struct Offer {
    verb: &'static str,
    name: &'static str,
    key: &'static str,
    is_main: bool,
}

#[derive(Template)]
#[template(path = "desk/event.html")]
struct EventPage {
    frame: Frame,
    row: EventRow,
    why: String,
    why_link: String,
    why_link_text: String,
    group: String,
    nodes: Vec<Node>,
    facts: Vec<(&'static str, String)>,
    times: Vec<(&'static str, Time)>,
    edited_into: String,
    edited_link: String,
    has_contents: bool,
    body: Option<Shown>,
    views: Vec<View>,
    raw: String,
    headers: Vec<(String, String)>,
    behind: Vec<EventRow>,
    behind_text: String,
    offers: Vec<Offer>,
    edit: String,
}

/// The event of a page's address, from the API.
async fn asked(visitor: &Visitor, contents: bool) -> Result<Value, Problem> {
    let part = |name| visitor.asked(name).unwrap_or_default();
    let mut query = vec![("queue", part("queue")), ("tenant", part("tenant")), ("id", part("id"))];
    if contents {
        query.push(("contents", "1"));
    }
    visitor.get("/v1/event", &query).await
}

async fn event(visitor: Visitor) -> Response {
    visitor.answer(page(&visitor).await)
}

async fn page(visitor: &Visitor) -> Result<Response, Problem> {
    let view = visitor.asked("body");
    // The contents are read, and noted in the audit, only when they are asked for.
    let answer = asked(visitor, view.is_some()).await?;
    let row = EventRow::of(&answer);
    let acts = acts(visitor, &row).await?;
    let body = payload::bytes(&answer).map(|bytes| payload::show(&bytes, view.unwrap_or_default()));
    let here = [("queue", row.queue.as_str()), ("tenant", &row.tenant), ("id", &row.id)];
    let address =
        |path: &str, more: (&'static str, &'static str)| link::address(path, here.into_iter().chain([more]));
    let views = ["json", "text", "hex"].map(|name| View {
        name,
        link: format!("{}#body", address("/desk/event", ("body", name))),
        is_here: body.as_ref().is_some_and(|body| body.view == name),
    });
    let command = Command::new(if row.state == "dead" { "dead show" } else { "event show" });
    let command = command.flag("queue", Some(&row.queue)).flag("tenant", Some(&row.tenant));
    let command = command.switch("body", view.is_some()).word(&row.id);
    let behind: Vec<EventRow> = list(&answer, "behind").iter().map(EventRow::of).collect();
    let into = member(&answer, "edited_into");
    let (why, why_link, why_link_text) = why(&answer, &row);
    let (cause, state) = (member(&answer, "cause"), row.state.clone());
    let frame = visitor.frame(row.id.clone(), "Events", command);
    Ok(visitor.show(&EventPage {
        // The contents would be noted anew with each update.
        frame: if view.is_some() { frame } else { frame.live(3) },
        why,
        why_link,
        why_link_text,
        group: if cause.is_empty() || state != "dead" {
            String::new()
        } else {
            link::address("/desk/events", [("cause", cause.as_str())])
        },
        nodes: timeline::nodes(list(&answer, "history"), &acts),
        facts: facts(&answer),
        times: times(&answer),
        edited_link: if into.is_empty() {
            String::new()
        } else {
            link::event(&row.queue, &row.tenant, &into)
        },
        edited_into: into,
        has_contents: !matches!(state.as_str(), "done" | "dropped" | "expired"),
        body,
        views: views.into(),
        raw: address("/desk/event/raw", ("", "")),
        headers: list(&answer, "headers").iter().map(|pair| (text_of(&pair[0]), text_of(&pair[1]))).collect(),
        behind_text: behind_text(behind.len()),
        behind,
        offers: offers(&state),
        edit: if state == "dead" && visitor.app().live().config.server.edit {
            address("/desk/edit", ("", ""))
        } else {
            String::new()
        },
        row,
    }))
}

fn text_of(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

/// How many wait behind it; the API tells the first hundred.
fn behind_text(shown: usize) -> String {
    let more = if shown >= BEHIND_MAX { "+" } else { "" };
    format!("{}{more}", number(u64::try_from(shown).unwrap_or_default()))
}

/// Why it is in its state, and where to look further.
fn why(answer: &Value, row: &EventRow) -> (String, String, String) {
    if let Some(waits) = answer["waits"]["text"].as_str() {
        let (link, text) = held_by(&answer["waits"], row);
        return (waits.to_owned(), link, text.to_owned());
    }
    let key =
        |text: &str| (row.key_link.clone(), if row.key.is_empty() { String::new() } else { text.to_owned() });
    let sentence = match row.state.as_str() {
        "dead" => {
            let tries = several(row.attempts, "attempt");
            let mut text = format!("Given up after {tries}: {}.", row.reason);
            let behind = list(answer, "behind").len();
            if row.holds_key && behind > 0 {
                let all = behind_text(behind);
                let noun = if behind == 1 { "event" } else { "events" };
                text.push_str(&format!(" Holds up {all} later {noun} of its key."));
            }
            text
        }
        "done" => "It has taken effect.".to_owned(),
        "dropped" => "The handler dropped it.".to_owned(),
        "expired" => "Its time was over before it could run.".to_owned(),
        "discarded" => match since(&row.until.at) {
            _ if !row.until.is_some() => "An operator or the queue's retention discarded it.".to_owned(),
            Some(_) => "Discarded; it can no longer be restored.".to_owned(),
            None => "Discarded. It can be restored until its dedupe record ends.".to_owned(),
        },
        other => format!("It is {other}."),
    };
    let (link, text) = if row.holds_key { key("look at its key") } else { (String::new(), String::new()) };
    (sentence, link, text)
}

/// The page of what holds an event back.
fn held_by(waits: &Value, row: &EventRow) -> (String, &'static str) {
    match waits["by"].as_str().unwrap_or_default() {
        "dead-letter" | "key" | "park-key" | "quarantine-key" => (row.key_link.clone(), "look at its key"),
        "pause" | "pause-retries" | "quarantine-tenant" | "breaker" | "budget" => {
            ("/desk/flow".to_owned(), "look at the flow")
        }
        _ => (String::new(), ""),
    }
}

fn facts(answer: &Value) -> Vec<(&'static str, String)> {
    const NAMES: [(&str, &str); 10] = [
        ("queue", "queue"),
        ("tenant", "tenant"),
        ("key", "key"),
        ("reason", "reason"),
        ("runs by the handler of", "route"),
        ("content type", "content_type"),
        ("correlation", "correlation"),
        ("causation", "causation"),
        ("result", "result"),
        ("rev", "rev"),
    ];
    let facts = NAMES.map(|(name, member_name)| (name, member(answer, member_name)));
    facts.into_iter().filter(|(_, value)| !value.is_empty()).collect()
}

fn times(answer: &Value) -> Vec<(&'static str, Time)> {
    const NAMES: [(&str, &str); 4] =
        [("published", "published"), ("due", "due"), ("ended", "ended"), ("kept until", "until")];
    let times = NAMES.map(|(name, member_name)| (name, Time::member(answer, member_name)));
    times.into_iter().filter(|(_, time)| time.is_some()).collect()
}

/// What may be done in a state.
fn offers(state: &str) -> Vec<Offer> {
    const fn offer(verb: &'static str, name: &'static str, key: &'static str, is_main: bool) -> Offer {
        Offer { verb, name, key, is_main }
    }
    match state {
        "dead" => vec![offer("redrive", "Redrive…", "r", true), offer("discard", "Discard…", "d", false)],
        "discarded" => vec![offer("restore", "Restore…", "r", true)],
        "waiting" => vec![
            offer("retry-now", "Retry now…", "r", true),
            offer("discard", "Skip…", "d", false),
            offer("kill", "Make it a dead letter…", "", false),
        ],
        "ready" | "parked" | "quarantined" => {
            vec![offer("discard", "Skip…", "d", false), offer("kill", "Make it a dead letter…", "", false)]
        }
        _ => Vec::new(),
    }
}

/// What operators did with it; nothing for a visitor who may not read the audit.
async fn acts(visitor: &Visitor, row: &EventRow) -> Result<Vec<Value>, Problem> {
    if visitor.caller.for_everything("").is_err() {
        return Ok(Vec::new());
    }
    let name = match row.tenant.as_str() {
        "" => format!("{}/{}", row.queue, row.id),
        tenant => format!("{}/{} of tenant {tenant}", row.queue, row.id),
    };
    let answer = visitor.get("/v1/audit", &[("target", name.as_str()), ("limit", ACTS)]).await?;
    // The name may also be the beginning of another.
    let is_its = |line: &&Value| {
        let rest = line["target"].as_str().and_then(|target| target.strip_prefix(&name));
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(" and ") || rest.starts_with(" into "))
    };
    Ok(list(&answer, "lines").iter().filter(is_its).cloned().collect())
}

/// The payload as a file, which no browser shows as a page.
async fn raw(visitor: Visitor) -> Response {
    let answer = match asked(&visitor, true).await {
        Ok(answer) => answer,
        Err(problem) => return visitor.answer(Err(problem)),
    };
    let mut response = payload::bytes(&answer).unwrap_or_default().into_response();
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
    headers.insert(CONTENT_DISPOSITION, HeaderValue::from_static("attachment; filename=\"payload.txt\""));
    headers.insert(CONTENT_SECURITY_POLICY, HeaderValue::from_static("sandbox; default-src 'none'"));
    response
}

/// How long a wait was, as a text; nothing below a second.
pub(super) fn wait(millis: u64) -> String {
    duration(std::time::Duration::from_millis(millis))
}
