//! Flow: queues with what holds them, and pauses, reroutes and quarantines.
//!
//! It counts no events; dead letters by queue are kept exactly.

use askama::Template;
use axum::Router;
use axum::extract::Path;
use axum::response::Response;
use axum::routing::{get, post};
use http::StatusCode;
use serde_json::{Value, json};

use crate::desk::Shared;
use crate::desk::api::Problem;
use crate::desk::command::Command;
use crate::desk::link;
use crate::desk::page::Frame;
use crate::desk::text::{Time, count, list, member, number};
use crate::desk::visitor::{Form, Visitor};

pub(super) fn routes() -> Router<Shared> {
    Router::new().route("/desk/flow", get(flow)).route("/desk/flow/{verb}", post(act))
}

/// A rule that holds.
#[derive(Debug, Clone)]
pub(super) struct RuleView {
    pub(super) rule: String,
    /// What it is about.
    pub(super) what: String,
    pub(super) who: String,
    pub(super) why: String,
    pub(super) since: Time,
    pub(super) until: Time,
    /// Its members, percent-encoded, as a form's value.
    pub(super) which: String,
}

impl RuleView {
    /// A rule of the API.
    pub(super) fn of(rule: &Value) -> Self {
        let [word, queue, tenant, key, to] =
            ["rule", "queue", "tenant", "key", "to"].map(|name| member(rule, name));
        let parts = [("queue", &queue), ("tenant", &tenant), ("key", &key), ("to", &to)];
        let told: Vec<String> = parts
            .into_iter()
            .filter(|(_, value)| !value.is_empty())
            .map(|(name, value)| format!("{name} {value}"))
            .collect();
        let which =
            [("rule", word.as_str()), ("queue", &queue), ("tenant", &tenant), ("key", &key), ("to", &to)];
        Self {
            what: told.join(", "),
            who: member(rule, "who"),
            why: member(rule, "why"),
            since: Time::member(rule, "since"),
            until: Time::member(rule, "until"),
            which: link::query(which),
            rule: word.replace('-', " "),
        }
    }
}

/// A queue, as a row.
pub(super) struct QueueRow {
    pub(super) name: String,
    pub(super) id: String,
    pub(super) delivery: String,
    pub(super) breaker: String,
    pub(super) budget: String,
    pub(super) dead: u64,
    pub(super) dead_text: String,
    pub(super) look: String,
    pub(super) is_paused: bool,
    pub(super) rules: Vec<RuleView>,
}

/// The queues that a visitor sees, with their dead letters.
pub(super) async fn queues(visitor: &Visitor) -> Result<Vec<QueueRow>, Problem> {
    let answer = visitor.get("/v1/queues", &[("counts", "0"), ("limit", "1000")]).await?;
    let dead = match visitor.caller.own_queues() {
        // A token of several queues has no list of all of them.
        Some([_, _, ..]) => Value::Null,
        _ => visitor.get("/v1/dead/groups", &[("by", "queue"), ("limit", "1000")]).await?,
    };
    let row = |queue: &Value| {
        let name = member(queue, "queue");
        let of_queue = list(&dead, "groups").iter().find(|group| member(group, "title") == name);
        let dead = of_queue.map_or(0, |group| count(group, "letters"));
        let rules: Vec<RuleView> = list(queue, "rules").iter().map(RuleView::of).collect();
        QueueRow {
            id: link::encoded(&name),
            delivery: [member(queue, "delivery"), order(&member(queue, "order")).to_owned()]
                .join(" ")
                .trim()
                .to_owned(),
            breaker: member(queue, "breaker"),
            budget: queue["budget"].as_u64().map_or(String::new(), number),
            dead,
            dead_text: number(dead),
            look: link::address("/desk/events", [("queue", name.as_str())]),
            is_paused: rules.iter().any(|rule| rule.rule.starts_with("pause")),
            rules,
            name,
        }
    };
    Ok(list(&answer, "queues").iter().map(row).collect())
}

fn order(word: &str) -> &'static str {
    if word == "key" { "ordered by key" } else { "" }
}

#[derive(Template)]
#[template(path = "desk/flow.html")]
struct FlowPage {
    frame: Frame,
    queues: Vec<QueueRow>,
    names: Vec<String>,
    quarantines: Vec<RuleView>,
}

async fn flow(visitor: Visitor) -> Response {
    visitor.answer(page(&visitor).await)
}

async fn page(visitor: &Visitor) -> Result<Response, Problem> {
    let queues = queues(visitor).await?;
    let rules = visitor.get("/v1/rules", &[("limit", "1000")]).await?;
    let is_held =
        |rule: &&Value| member(rule, "rule").starts_with("quarantine") || member(rule, "rule") == "park-key";
    Ok(visitor.show(&FlowPage {
        frame: visitor.frame("Flow", "Flow", Command::new("queue ls")).live(3),
        names: queues.iter().map(|queue| queue.name.clone()).collect(),
        quarantines: list(&rules, "rules").iter().filter(is_held).map(RuleView::of).collect(),
        queues,
    }))
}

async fn act(Path(verb): Path<String>, form: Form) -> Response {
    let result = perform(&form, &verb).await;
    super::acts::done(&form, "/desk/flow", result)
}

async fn perform(form: &Form, verb: &str) -> Result<String, Problem> {
    let visitor = &form.visitor;
    let (queue, time) = (form.field("queue"), form.field("for"));
    let mut body = json!({ "why": form.field("why") });
    if !time.is_empty() {
        body["for"] = time.into();
    }
    let lasts = if time.is_empty() { "until it is lifted".to_owned() } else { format!("for {time}") };
    let of_queue = |verb: &str| format!("/v1/queues/{}/{verb}", link::encoded(queue));
    match verb {
        "pause" => {
            body["retries"] = (form.field("what") == "retries").into();
            visitor.post(&of_queue("pause"), &body).await?;
            let what = if form.field("what") == "retries" { "Retries of " } else { "" };
            Ok(format!("{what}{queue} paused {lasts}. What runs goes on."))
        }
        "resume" => {
            visitor.post(&of_queue("resume"), &json!({})).await?;
            Ok(format!("{queue} goes on."))
        }
        "reroute" => {
            body["to"] = form.given("to").map_or(Value::Null, Value::from);
            visitor.post(&of_queue("reroute"), &body).await?;
            Ok(match form.given("to") {
                Some(to) => format!("Events of {queue} are run by the handler of {to} {lasts}."),
                None => format!("Events of {queue} are run by its own handler again."),
            })
        }
        "quarantine" => {
            let kind = if form.given("key").is_some() { "quarantine-key" } else { "quarantine-tenant" };
            body["rule"] = kind.into();
            for name in ["queue", "tenant", "key"] {
                if let Some(value) = form.given(name) {
                    body[name] = value.into();
                }
            }
            visitor.post("/v1/rules", &body).await?;
            Ok(format!("Quarantined {lasts}: its events wait, in order."))
        }
        "lift" => {
            let members = link::parse(form.field("which"));
            let body: Value = members.into_iter().map(|(name, value)| (name, Value::from(value))).collect();
            visitor.post("/v1/rules/lift", &body).await?;
            Ok("The rule is lifted.".to_owned())
        }
        _ => Err(Problem::new(StatusCode::NOT_FOUND, "a queue can be paused, resumed or rerouted")),
    }
}
