//! A bulk action: which events, what to expect, how fast; then the button.
//!
//! The plan is a `GET`, so that its address can be shared and looked at again. What dies after a job began is left alone.

use askama::Template;
use axum::Router;
use axum::response::{IntoResponse, Redirect, Response};
use axum::routing::{get, post};
use serde_json::{Value, json};

use crate::desk::Shared;
use crate::desk::api::Problem;
use crate::desk::command::Command;
use crate::desk::filter::{Chip, EventFilter};
use crate::desk::link::{self, Pairs};
use crate::desk::page::Frame;
use crate::desk::text::{count, list, member, number, several};
use crate::desk::visitor::{Form, Visitor};

/// Above so many events the number is typed before they are discarded.
const TYPED_ABOVE: u64 = 1_000;

pub(super) fn routes() -> Router<Shared> {
    Router::new().route("/desk/redrive", get(plan)).route("/desk/redrive/start", post(start))
}

/// How a bulk action goes, as the page's address says it.
#[derive(Debug, Clone, Default)]
struct Strategy {
    act: String,
    rate: String,
    ramp: String,
    canary: String,
    /// In per cent.
    stop_at: String,
    to: String,
    keep_attempts: bool,
    out_of_order: bool,
}

impl Strategy {
    fn read(pairs: &Pairs) -> Self {
        let part = |name: &str| {
            pairs
                .iter()
                .find(|(known, _)| known == name)
                .map_or(String::new(), |(_, value)| value.trim().to_owned())
        };
        let is_planned = !part("planned").is_empty();
        // A first look proposes a careful way; what is emptied after that stays empty.
        let or = |name: &str, careful: &str| match part(name) {
            value if value.is_empty() && !is_planned => careful.to_owned(),
            value => value,
        };
        let act = Some(part("act")).filter(|act| !act.is_empty()).unwrap_or_else(|| "redrive".to_owned());
        let runs = act != "discard";
        Self {
            rate: if runs { or("rate", "50") } else { part("rate") },
            ramp: part("ramp"),
            canary: if runs { or("canary", "5") } else { String::new() },
            stop_at: if runs { or("stop_at", "20") } else { String::new() },
            to: part("to"),
            keep_attempts: !part("keep_attempts").is_empty(),
            out_of_order: !part("out_of_order").is_empty(),
            act,
        }
    }

    /// As a request of the API.
    fn body(&self, filter: &EventFilter) -> Result<Value, Problem> {
        let mut body = json!({ "act": self.act, "filter": filter.json() });
        if let Some(rate) = float("rate", &self.rate)? {
            body["rate"] = rate.into();
        }
        if !self.ramp.is_empty() {
            body["ramp"] = self.ramp.clone().into();
        }
        if !self.canary.is_empty() {
            let canary: u32 = self.canary.parse().map_err(|_| wrong("canary", &self.canary))?;
            body["canary"] = canary.into();
        }
        if let Some(share) = float("stop at", self.stop_at.trim_end_matches('%').trim())? {
            body["stop_at"] = (share / 100.0).into();
        }
        if self.act == "redrive" {
            body["keep_attempts"] = self.keep_attempts.into();
            body["out_of_order"] = self.out_of_order.into();
            if !self.to.is_empty() {
                body["to"] = self.to.clone().into();
            }
        }
        Ok(body)
    }

    /// The command that starts the same.
    fn command(&self, filter: &EventFilter) -> Command {
        let (command, needs_yes) = match self.act.as_str() {
            "discard" => (Command::new("dead discard"), true),
            "retry-now" => (Command::new("event retry-now"), false),
            _ => (Command::new("dead redrive"), true),
        };
        let rate = if self.rate.is_empty() { String::new() } else { format!("{}/s", self.rate) };
        let stop_at = if self.stop_at.is_empty() {
            String::new()
        } else {
            format!("{}%", self.stop_at.trim_end_matches('%'))
        };
        let command = filter.flags(command).unwrap_or_default();
        let command = command.flag("rate", Some(&rate)).flag("ramp", Some(&self.ramp));
        let command = command.flag("canary", Some(&self.canary)).flag("stop-at", Some(&stop_at));
        let command = command.flag("to", Some(&self.to)).switch("keep-attempts", self.keep_attempts);
        command.switch("out-of-order", self.out_of_order).switch("yes", needs_yes)
    }
}

fn float(name: &str, text: &str) -> Result<Option<f64>, Problem> {
    if text.is_empty() {
        return Ok(None);
    }
    text.trim_end_matches("/s").parse().map(Some).map_err(|_| wrong(name, text))
}

fn wrong(name: &str, text: &str) -> Problem {
    Problem::bad_request(format!("`{name}` must be a number, not `{text}`"))
}

#[derive(Template)]
#[template(path = "desk/plan.html")]
struct PlanPage {
    frame: Frame,
    title: &'static str,
    strategy: Strategy,
    chips: Vec<Chip>,
    /// The filter, percent-encoded, as a form's value.
    filter: String,
    hidden: Vec<(String, String)>,
    count: u64,
    count_text: String,
    noun: &'static str,
    keys_text: String,
    queues: Vec<(String, String)>,
    keys_shown: Vec<String>,
    time: String,
    warnings: Vec<String>,
    look: String,
    other_queues: Vec<String>,
    must_type: bool,
    runs: bool,
    is_everything: bool,
    wrong: String,
}

/// Queues whose handler may run the events of another.
pub(super) fn other_queues(visitor: &Visitor) -> Vec<String> {
    let live = visitor.app().live();
    let may = |queue: &&String| visitor.caller.may_send_to(queue, &live.config).is_ok();
    live.config.queues.keys().filter(may).cloned().collect()
}

async fn plan(visitor: Visitor) -> Response {
    visitor.answer(plan_page(&visitor).await)
}

async fn plan_page(visitor: &Visitor) -> Result<Response, Problem> {
    let filter = EventFilter::of(visitor);
    let strategy = Strategy::read(&visitor.query);
    // A number that makes no sense is said beside the form, which stays filled in.
    let (planned, wrong) = match strategy.body(&filter) {
        Ok(body) => match visitor.post("/v1/jobs/plan", &body).await {
            Ok(planned) => (planned, String::new()),
            Err(problem) if problem.kind == "senseless" => (Value::Null, problem.detail),
            Err(problem) => return Err(problem),
        },
        Err(problem) => (Value::Null, problem.detail),
    };
    let letters = count(&planned, "letters");
    let (title, noun) = match strategy.act.as_str() {
        "discard" => ("Discard", "dead letter"),
        "retry-now" => ("Retry now", "retrying event"),
        _ => ("Redrive", "dead letter"),
    };
    let keys = count(&planned, "keys_blocked");
    let queue = |queue: &Value| (member(queue, "queue"), number(count(queue, "letters")));
    let state = if strategy.act == "retry-now" { "failing" } else { "" };
    let own = [("act", strategy.act.as_str())];
    let command = strategy.command(&filter);
    Ok(visitor.show(&PlanPage {
        frame: visitor.frame(title, "Jobs", command),
        title,
        chips: filter.chips("/desk/redrive", &own),
        filter: link::query(filter.pairs()),
        hidden: filter.pairs().map(|(name, value)| (name.to_owned(), value.to_owned())).collect(),
        count: letters,
        count_text: several(letters, noun),
        noun,
        keys_text: several(keys, "key"),
        queues: list(&planned, "queues").iter().map(queue).collect(),
        keys_shown: list(&planned, "keys").iter().filter_map(|key| key.as_str().map(str::to_owned)).collect(),
        time: member(&planned, "time"),
        warnings: list(&planned, "warnings")
            .iter()
            .filter_map(|text| text.as_str().map(str::to_owned))
            .collect(),
        look: filter.address("/desk/events", &[("state", state)]),
        other_queues: other_queues(visitor),
        must_type: strategy.act == "discard" && letters > TYPED_ABOVE,
        runs: strategy.act != "discard",
        is_everything: filter.is_empty(),
        strategy,
        wrong,
    }))
}

async fn start(form: Form) -> Response {
    let filter = EventFilter::read(&link::parse(form.field("filter")));
    let strategy = Strategy::read(&form.fields);
    let back = back(&form, &filter);
    match started(&form, &filter, &strategy).await {
        Ok(job) => Redirect::to(&format!("/desk/jobs/{job}")).into_response(),
        Err(problem) => super::acts::refused(&form.visitor, &back, problem),
    }
}

/// The plan that the form was on, as it was filled in.
fn back(form: &Form, filter: &EventFilter) -> String {
    const OWN: [&str; 8] =
        ["act", "rate", "ramp", "canary", "stop_at", "to", "keep_attempts", "out_of_order"];
    let own = OWN.iter().map(|name| (*name, form.field(name)));
    link::address("/desk/redrive", own.chain([("planned", "1")]).chain(filter.pairs()))
}

async fn started(form: &Form, filter: &EventFilter, strategy: &Strategy) -> Result<u64, Problem> {
    let mut body = strategy.body(filter)?;
    if let Some(typed) = form.given("count") {
        let planned = form.field("planned_count");
        if typed.replace([',', ' '], "") != planned {
            return Err(Problem::bad_request(format!(
                "type {planned} to discard so many; `{typed}` was typed"
            )));
        }
    } else if !form.field("must_type").is_empty() {
        return Err(Problem::bad_request("type the number of dead letters before you discard so many"));
    }
    // The plan said how many it is.
    body["yes"] = true.into();
    let job = form.visitor.post("/v1/jobs", &body).await?;
    Ok(count(&job, "id"))
}
