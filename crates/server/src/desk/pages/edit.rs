//! Edit a dead letter and redrive it: the form, then the difference and its consequences, then the button.
//!
//! The edited event has a new id that names the original. It is refused if the original has changed since it was shown.

use askama::Template;
use axum::Router;
use axum::response::Response;
use axum::routing::{get, post};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::StatusCode;
use serde_json::{Map, Value, json};
use similar::{ChangeTag, TextDiff};

use super::events::EventRow;
use crate::desk::Shared;
use crate::desk::api::Problem;
use crate::desk::command::Command;
use crate::desk::link::{self, Pairs};
use crate::desk::page::Frame;
use crate::desk::payload;
use crate::desk::session::Notice;
use crate::desk::text::{list, member};
use crate::desk::visitor::{Form, Visitor};

pub(super) fn routes() -> Router<Shared> {
    Router::new()
        .route("/desk/edit", get(edit))
        .route("/desk/edit/check", post(check))
        .route("/desk/edit/do", post(perform))
}

/// What can be edited, as texts of a form.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Draft {
    payload: String,
    content_type: String,
    /// One `name: value` a line.
    headers: String,
}

impl Draft {
    fn of_event(event: &Value) -> Option<Self> {
        let header = |pair: &Value| {
            let part = |at: usize| pair[at].as_str().unwrap_or_default();
            format!("{}: {}", part(0), part(1))
        };
        let headers: Vec<String> = list(event, "headers").iter().map(header).collect();
        Some(Self {
            payload: payload::editable(&payload::bytes(event)?)?,
            content_type: member(event, "content_type"),
            headers: headers.join("\n"),
        })
    }

    fn of_form(form: &Form) -> Self {
        let field = |name| payload::returned(form.field(name));
        Self { payload: field("payload"), content_type: field("content_type"), headers: field("headers") }
    }

    fn header_map(&self) -> Result<Map<String, Value>, Problem> {
        let lines = self.headers.lines().map(str::trim).filter(|line| !line.is_empty());
        let pair = |line: &str| match line.split_once(':') {
            Some((name, value)) => Ok((name.trim().to_owned(), Value::from(value.trim()))),
            None => Err(Problem::bad_request(format!("`{line}` is not a header; write `name: value`"))),
        };
        lines.map(pair).collect()
    }
}

/// The event of a form or an address, with its contents and its identity.
async fn original(visitor: &Visitor, which: &Pairs) -> Result<Value, Problem> {
    if !visitor.app().live().config.server.edit {
        return Err(Problem::new(
            StatusCode::FORBIDDEN,
            "editing is off; set `edit = true` in [server] of the configuration to switch it on",
        ));
    }
    let part = |name: &str| which.iter().find(|(known, _)| known == name).map_or("", |(_, value)| value);
    let query = [("queue", part("queue")), ("tenant", part("tenant")), ("id", part("id")), ("contents", "1")];
    visitor.get("/v1/event", &query).await
}

#[derive(Template)]
#[template(path = "desk/edit.html")]
struct EditPage {
    frame: Frame,
    row: EventRow,
    draft: Draft,
    new_id: String,
    wrong: String,
}

/// A line of the difference.
struct DiffLine {
    kind: &'static str,
    text: String,
}

#[derive(Template)]
#[template(path = "desk/edit_check.html")]
struct CheckPage {
    frame: Frame,
    row: EventRow,
    draft: Draft,
    new_id: String,
    lines: Vec<DiffLine>,
    is_unsure: bool,
    is_ordered: bool,
}

fn command(row: &EventRow) -> Command {
    let command = Command::new("dead edit").flag("queue", Some(&row.queue)).flag("tenant", Some(&row.tenant));
    command.flag("payload", Some("FILE")).word(&row.id)
}

async fn edit(visitor: Visitor) -> Response {
    visitor.answer(edit_page(&visitor).await)
}

async fn edit_page(visitor: &Visitor) -> Result<Response, Problem> {
    let event = original(visitor, &visitor.query).await?;
    let row = EventRow::of(&event);
    let Some(draft) = Draft::of_event(&event) else {
        return Err(Problem::new(
            StatusCode::UNPROCESSABLE_ENTITY,
            "this payload is not text that a page can edit without changing more; use `redrive dead edit` with a file",
        ));
    };
    Ok(show(visitor, row, draft, String::new(), String::new()))
}

fn show(visitor: &Visitor, row: EventRow, draft: Draft, new_id: String, wrong: String) -> Response {
    let frame = visitor.frame(format!("Edit {}", row.id), "Events", command(&row));
    visitor.show(&EditPage { frame, row, draft, new_id, wrong })
}

async fn check(form: Form) -> Response {
    form.visitor.answer(check_page(&form).await)
}

async fn check_page(form: &Form) -> Result<Response, Problem> {
    let event = original(&form.visitor, &link::parse(form.field("which"))).await?;
    let row = EventRow { which: form.field("which").to_owned(), ..EventRow::of(&event) };
    let (draft, new_id) = (Draft::of_form(form), form.field("new_id").to_owned());
    let before = Draft::of_event(&event).unwrap_or_default();
    let wrong = if before == draft {
        "Nothing is changed yet.".to_owned()
    } else if let Err(problem) = draft.header_map() {
        problem.detail
    } else {
        wrong_json(&before, &draft)
    };
    if !wrong.is_empty() {
        return Ok(show(&form.visitor, row, draft, new_id, wrong));
    }
    let is_unsure = list(&event, "history")
        .iter()
        .any(|record| matches!(record["executed"].as_str(), Some("unknown" | "yes")));
    Ok(form.visitor.show(&CheckPage {
        frame: form.visitor.frame(format!("Edit {}", row.id), "Events", command(&row)),
        lines: difference(&before, &draft),
        is_unsure,
        is_ordered: !row.key.is_empty() && !row.holds_key,
        row,
        draft,
        new_id,
    }))
}

/// What was JSON stays JSON.
fn wrong_json(before: &Draft, draft: &Draft) -> String {
    let parse = |text: &str| serde_json::from_str::<serde::de::IgnoredAny>(text);
    match (parse(&before.payload), parse(&draft.payload)) {
        (Ok(_), Err(error)) => format!("The payload is no longer JSON: {error}."),
        _ => String::new(),
    }
}

fn difference(before: &Draft, draft: &Draft) -> Vec<DiffLine> {
    let whole = |draft: &Draft| {
        let head = if draft.content_type.is_empty() {
            String::new()
        } else {
            format!("content-type: {}\n", draft.content_type)
        };
        let headers = if draft.headers.is_empty() { String::new() } else { format!("{}\n", draft.headers) };
        format!("{head}{headers}\n{}\n", draft.payload)
    };
    let (before, after) = (whole(before), whole(draft));
    let diff = TextDiff::from_lines(before.as_str(), after.as_str());
    let line = |change: similar::Change<&str>| {
        let kind = match change.tag() {
            ChangeTag::Equal => "same",
            ChangeTag::Delete => "gone",
            ChangeTag::Insert => "new",
        };
        DiffLine { kind, text: change.value().trim_end_matches('\n').to_owned() }
    };
    diff.iter_all_changes().map(line).collect()
}

async fn perform(form: Form) -> Response {
    let which = link::parse(form.field("which"));
    let part = |name: &str| which.iter().find(|(known, _)| known == name).map_or("", |(_, value)| value);
    let back = link::event(part("queue"), part("tenant"), part("id"));
    match edited(&form, &which).await {
        Ok((link, notice)) => form.visitor.go(&link, notice),
        Err(problem) => super::acts::refused(&form.visitor, &back, problem),
    }
}

async fn edited(form: &Form, which: &Pairs) -> Result<(String, Notice), Problem> {
    let event = original(&form.visitor, which).await?;
    let (before, draft) = (Draft::of_event(&event).unwrap_or_default(), Draft::of_form(form));
    let rev = which.iter().find(|(name, _)| name == "rev").and_then(|(_, rev)| rev.parse::<u32>().ok());
    let mut body = json!({ "queue": member(&event, "queue"), "id": member(&event, "id"), "rev": rev });
    let tenant = member(&event, "tenant");
    if !tenant.is_empty() {
        body["tenant"] = tenant.clone().into();
    }
    if draft.payload != before.payload {
        body["payload_base64"] = STANDARD.encode(&draft.payload).into();
    }
    if draft.content_type != before.content_type {
        body["content_type"] = draft.content_type.clone().into();
    }
    if draft.headers != before.headers {
        body["headers"] = draft.header_map()?.into();
    }
    if let Some(new_id) = form.given("new_id") {
        body["new_id"] = new_id.into();
    }
    body["out_of_order"] = form.given("out_of_order").is_some().into();
    let answer = form.visitor.post("/v1/events/edit", &body).await?;
    let id = member(&answer, "id");
    let mut text = format!("{} was edited into {id}, which runs in its place.", member(&answer, "original"));
    if answer["unsure"] == true {
        text.push_str(" An earlier attempt of the original may have had its effect.");
    }
    Ok((link::event(&member(&answer, "queue"), &tenant, &id), Notice::ok(text)))
}
