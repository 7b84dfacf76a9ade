//! Ordering keys that are held up, as lanes: the head, and what waits behind it.

use askama::Template;
use axum::Router;
use axum::extract::Path;
use axum::response::Response;
use axum::routing::{get, post};
use http::StatusCode;
use serde_json::json;

use super::events::EventRow;
use super::flow::RuleView;
use crate::desk::Shared;
use crate::desk::api::Problem;
use crate::desk::command::Command;
use crate::desk::filter::EventFilter;
use crate::desk::page::Frame;
use crate::desk::text::{list, member};
use crate::desk::visitor::{Form, Visitor};

pub(super) fn routes() -> Router<Shared> {
    Router::new().route("/desk/keys", get(keys)).route("/desk/keys/{verb}", post(act))
}

#[derive(Template)]
#[template(path = "desk/keys.html")]
struct KeysPage {
    frame: Frame,
    heads: Vec<EventRow>,
    queue: String,
    tenant: String,
    first: String,
    next: String,
}

#[derive(Template)]
#[template(path = "desk/key.html")]
struct KeyPage {
    frame: Frame,
    key: String,
    queue: String,
    tenant: String,
    lane: Vec<EventRow>,
    head: Option<EventRow>,
    is_held: bool,
    is_parked: bool,
    rules: Vec<RuleView>,
    more: bool,
}

async fn keys(visitor: Visitor) -> Response {
    let page = match visitor.asked("key") {
        Some(key) => one(&visitor, key).await,
        None => all(&visitor).await,
    };
    visitor.answer(page)
}

/// Keys whose head is a dead letter, by their heads.
async fn all(visitor: &Visitor) -> Result<Response, Problem> {
    let filter = EventFilter::of(visitor);
    let after = visitor.asked("after").unwrap_or_default();
    let mut query: Vec<(&str, &str)> = filter.pairs().collect();
    query.extend([("state", "dead"), ("after", after), ("limit", "500")]);
    let answer = visitor.get("/v1/events", &query).await?;
    let next = member(&answer, "next");
    let heads = list(&answer, "events").iter().map(EventRow::of).filter(|row| row.holds_key);
    let command =
        Command::new("dead groups").flag("by", Some("key")).flag("queue", Some(filter.get("queue")));
    Ok(visitor.show(&KeysPage {
        frame: visitor.frame("Keys", "Keys", command.flag("tenant", Some(filter.get("tenant")))),
        heads: heads.collect(),
        queue: filter.get("queue").to_owned(),
        tenant: filter.get("tenant").to_owned(),
        first: if after.is_empty() { String::new() } else { filter.address("/desk/keys", &[]) },
        next: if next.is_empty() { String::new() } else { filter.address("/desk/keys", &[("after", &next)]) },
    }))
}

async fn one(visitor: &Visitor, key: &str) -> Result<Response, Problem> {
    let (queue, tenant) =
        (visitor.asked("queue").unwrap_or_default(), visitor.asked("tenant").unwrap_or_default());
    if queue.is_empty() {
        return Err(Problem::bad_request("a key belongs to a queue; name the queue as well"));
    }
    let answer = visitor.get("/v1/keys", &[("queue", queue), ("tenant", tenant), ("key", key)]).await?;
    let lane: Vec<EventRow> = list(&answer, "events").iter().map(EventRow::of).collect();
    let rules: Vec<RuleView> = list(&answer, "rules").iter().map(RuleView::of).collect();
    let command = Command::new("key show").flag("queue", Some(queue)).flag("tenant", Some(tenant)).word(key);
    Ok(visitor.show(&KeyPage {
        frame: visitor.frame(format!("Key {key}"), "Keys", command).live(3),
        key: key.to_owned(),
        queue: queue.to_owned(),
        tenant: tenant.to_owned(),
        head: lane.iter().find(|row| row.holds_key).cloned(),
        is_held: answer["held_by_dead"] == true,
        is_parked: rules.iter().any(|rule| rule.rule == "park key"),
        lane,
        rules,
        more: answer["more"] == true,
    }))
}

async fn act(Path(verb): Path<String>, form: Form) -> Response {
    let result = perform(&form, &verb).await;
    super::acts::done(&form, "/desk/keys", result)
}

async fn perform(form: &Form, verb: &str) -> Result<String, Problem> {
    let done = match verb {
        "park" => "is parked: its events wait until it is unparked",
        "unpark" => "goes on; its dead letters stay dead and hold it up no longer",
        "skip-head" => "goes on behind its dead letter, which stays dead",
        _ => {
            return Err(Problem::new(
                StatusCode::NOT_FOUND,
                "a key can be parked, unparked, or its head skipped",
            ));
        }
    };
    // A key may have characters that a form would not return.
    let which = crate::desk::link::parse(form.field("which"));
    let part = |name: &str| which.iter().find(|(known, _)| known == name).map_or("", |(_, value)| value);
    let mut body = json!({ "queue": part("queue"), "key": part("key") });
    if !part("tenant").is_empty() {
        body["tenant"] = part("tenant").into();
    }
    if verb == "park" {
        body["why"] = form.field("why").into();
        if let Some(time) = form.given("for") {
            body["for"] = time.into();
        }
    }
    form.visitor.post(&format!("/v1/keys/{verb}"), &body).await?;
    Ok(format!("The key {} {done}.", part("key")))
}

impl KeyPage {
    /// The key, percent-encoded, as a form's value.
    fn which(&self) -> String {
        crate::desk::link::query([
            ("queue", self.queue.as_str()),
            ("tenant", &self.tenant),
            ("key", &self.key),
        ])
    }
}
