//! Actions on chosen events: first what would happen, then the button.
//!
//! A list or an event sends what was chosen to `/desk/confirm`, which changes nothing; its page has the form that does.

use askama::Template;
use axum::Router;
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use http::StatusCode;
use serde_json::{Value, json};

use crate::desk::Shared;
use crate::desk::api::Problem;
use crate::desk::command::Command;
use crate::desk::link;
use crate::desk::page::Frame;
use crate::desk::session::Notice;
use crate::desk::text::{count, list, member, several};
use crate::desk::visitor::{Form, Visitor};

/// Refusals that a message names.
const REFUSALS_TOLD: usize = 3;

pub(super) fn routes() -> Router<Shared> {
    Router::new().route("/desk/confirm", post(confirm)).route("/desk/act", post(act))
}

/// What can be done with chosen events.
struct Verb {
    word: &'static str,
    name: &'static str,
    done: &'static str,
    /// What happens.
    effect: &'static str,
    /// How to take it back.
    undo: &'static str,
    is_harsh: bool,
}

const VERBS: [Verb; 5] = [
    Verb {
        word: "redrive",
        name: "Redrive",
        done: "put back",
        effect: "They run again under the same identity, at their places in the order of their keys. Their attempts \
                 count anew, and their history is kept.",
        undo: "What has run cannot be taken back. Until then, pause the queue in Flow.",
        is_harsh: false,
    },
    Verb {
        word: "discard",
        name: "Discard",
        done: "discarded",
        effect: "They end without running again, and hold up their keys no longer.",
        undo: "They can be restored, in Discarded, until their dedupe records end.",
        is_harsh: true,
    },
    Verb {
        word: "restore",
        name: "Restore",
        done: "restored",
        effect: "They are dead letters again, which hold up no key.",
        undo: "Discard them again.",
        is_harsh: false,
    },
    Verb {
        word: "kill",
        name: "Make dead letters",
        done: "made dead letters",
        effect: "They stop being retried and wait for an operator. They hold up no key.",
        undo: "Redrive them.",
        is_harsh: true,
    },
    Verb {
        word: "retry-now",
        name: "Retry now",
        done: "made due",
        effect: "Their next attempt starts now, instead of after their wait. Their attempts count on: one at its last \
                 attempt becomes a dead letter if it fails.",
        undo: "What has run cannot be taken back.",
        is_harsh: false,
    },
];

fn verb(word: &str) -> Result<&'static Verb, Problem> {
    let found = VERBS.iter().find(|verb| verb.word == word);
    found.ok_or_else(|| Problem::bad_request(format!("there is no action `{word}`")))
}

/// An event that was chosen.
struct Chosen {
    which: String,
    name: String,
    link: String,
}

fn chosen(which: &str) -> Result<(Chosen, Value), Problem> {
    let pairs = link::parse(which);
    let part = |name: &str| pairs.iter().find(|(known, _)| known == name).map_or("", |(_, value)| value);
    let (queue, tenant, id) = (part("queue"), part("tenant"), part("id"));
    if queue.is_empty() || id.is_empty() {
        return Err(Problem::bad_request("an event is named by its queue and its id; choose it on its list"));
    }
    let mut target = json!({ "queue": queue, "id": id, "rev": part("rev").parse::<u32>().ok() });
    if !tenant.is_empty() {
        target["tenant"] = tenant.into();
    }
    let name =
        if tenant.is_empty() { format!("{queue} / {id}") } else { format!("{queue} / {id} of {tenant}") };
    Ok((Chosen { which: which.to_owned(), name, link: link::event(queue, tenant, id) }, target))
}

#[derive(Template)]
#[template(path = "desk/confirm.html")]
struct ConfirmPage {
    frame: Frame,
    verb: &'static Verb,
    count: String,
    chosen: Vec<Chosen>,
    back: String,
    can_go_out_of_order: bool,
    queues: Vec<String>,
}

async fn confirm(form: Form) -> Response {
    form.visitor.answer(confirm_page(&form).await)
}

async fn confirm_page(form: &Form) -> Result<Response, Problem> {
    let verb = verb(form.field("verb"))?;
    let chosen: Vec<Chosen> =
        form.all("which").map(|which| Ok(chosen(which)?.0)).collect::<Result<_, Problem>>()?;
    let back = form.back("/desk/events");
    if chosen.is_empty() {
        return Ok(form.visitor.go(&back, Notice::bad("nothing was chosen; mark events first")));
    }
    let number = u64::try_from(chosen.len()).unwrap_or_default();
    Ok(form.visitor.show(&ConfirmPage {
        frame: form.visitor.frame(verb.name, "Events", Command::none()),
        verb,
        count: several(number, "event"),
        chosen,
        back,
        can_go_out_of_order: verb.word == "redrive",
        queues: super::plan::other_queues(&form.visitor),
    }))
}

async fn act(form: Form) -> Response {
    match perform(&form).await {
        Ok(response) => response,
        Err(problem) if problem.status == StatusCode::FORBIDDEN => form.visitor.answer(Err(problem)),
        Err(problem) => form.visitor.refuse(&form.back("/desk/events"), &problem),
    }
}

async fn perform(form: &Form) -> Result<Response, Problem> {
    let verb = verb(form.field("verb"))?;
    let targets: Vec<Value> =
        form.all("which").map(|which| Ok(chosen(which)?.1)).collect::<Result<_, Problem>>()?;
    let all = u64::try_from(targets.len()).unwrap_or_default();
    let mut body = json!({ "targets": targets });
    if verb.word == "redrive" {
        body["out_of_order"] = (form.given("out_of_order").is_some()).into();
        body["keep_attempts"] = (form.given("keep_attempts").is_some()).into();
        if let Some(to) = form.given("to") {
            body["to"] = to.into();
        }
    }
    let answer = form.visitor.post(&format!("/v1/events/{}", verb.word), &body).await?;
    Ok(form.visitor.go(&form.back("/desk/events"), told(verb, all, &answer)))
}

/// What became of it, in a sentence.
fn told(verb: &Verb, all: u64, answer: &Value) -> Notice {
    let (changed, refused) = (count(answer, "changed"), list(answer, "refused"));
    let mut text = if changed == all {
        format!("{} {}.", several(changed, "event"), verb.done)
    } else {
        format!("{changed} of {} {}.", several(all, "event"), verb.done)
    };
    for one in refused.iter().take(REFUSALS_TOLD) {
        text.push_str(&format!(" {} was refused: {}.", member(one, "id"), member(one, "detail")));
    }
    if refused.len() > REFUSALS_TOLD {
        text.push_str(&format!(" {} more were refused.", refused.len() - REFUSALS_TOLD));
    }
    let kind = if refused.is_empty() { "ok" } else { "warn" };
    Notice { kind, ..Notice::ok(text) }
}

/// A form's answer in general: back with a message, or the refusal.
pub(super) fn done(form: &Form, otherwise: &str, result: Result<String, Problem>) -> Response {
    let back = form.back(otherwise);
    match result {
        Ok(text) => form.visitor.go(&back, Notice::ok(text)).into_response(),
        Err(problem) => refused(&form.visitor, &back, problem),
    }
}

/// A refusal: on the page that the form was on, or a page of its own where the right is missing.
pub(super) fn refused(visitor: &Visitor, back: &str, problem: Problem) -> Response {
    if problem.status == StatusCode::FORBIDDEN {
        return visitor.answer(Err(problem));
    }
    visitor.refuse(back, &problem)
}
