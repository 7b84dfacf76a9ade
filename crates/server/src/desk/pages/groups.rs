//! Groups: what dead letters died of, and what retrying events fail of.

use askama::Template;
use axum::Router;
use axum::response::Response;
use axum::routing::get;
use serde_json::Value;

use crate::desk::Shared;
use crate::desk::api::Problem;
use crate::desk::command::Command;
use crate::desk::filter::EventFilter;
use crate::desk::link;
use crate::desk::page::Frame;
use crate::desk::text::{Time, count, duration, list, member, number, several, share, until};
use crate::desk::visitor::Visitor;

/// Groups on a page.
const LIMIT: &str = "200";

pub(super) fn routes() -> Router<Shared> {
    Router::new().route("/desk/groups", get(dead)).route("/desk/failing", get(failing))
}

/// A group of dead letters, as a row.
#[derive(Debug, Clone)]
pub(super) struct GroupRow {
    /// Names its elements in the page.
    pub(super) name: String,
    pub(super) title: String,
    pub(super) queues: Vec<String>,
    pub(super) letters: u64,
    pub(super) letters_text: String,
    pub(super) per_mille: u64,
    pub(super) keys: u64,
    pub(super) keys_text: String,
    pub(super) first: Time,
    pub(super) last: Time,
    pub(super) redriven: String,
    pub(super) redriven_at: Time,
    pub(super) failed_again: bool,
    /// Its list; empty where no filter says the group.
    pub(super) look: String,
    pub(super) redrive: String,
    pub(super) discard: String,
}

/// The rows of an answer of `/v1/dead/groups`.
pub(super) fn rows(answer: &Value, by: &str, queue: &str, tenant: &str) -> Vec<GroupRow> {
    let groups = list(answer, "groups");
    let all: u64 = groups.iter().map(|group| count(group, "letters")).sum();
    groups.iter().map(|group| row(group, by, queue, tenant, all)).collect()
}

fn row(group: &Value, by: &str, queue: &str, tenant: &str, all: u64) -> GroupRow {
    let (title, cause) = (member(group, "title"), member(group, "cause"));
    let letters = count(group, "letters");
    let own = match by {
        "cause" => Some(("cause", cause.as_str())),
        "queue" | "tenant" | "key" if !title.is_empty() => Some((by, title.as_str())),
        _ => None,
    };
    let to = |path: &str, act: &str| {
        let Some((name, value)) = own else { return String::new() };
        let rest = [("queue", queue), ("tenant", tenant)].into_iter().filter(|(other, _)| *other != name);
        link::address(path, [("act", act), (name, value)].into_iter().chain(rest))
    };
    let redriven = &group["redriven"];
    let (sent, again) = (count(redriven, "letters"), count(redriven, "failed"));
    let told = match (redriven.is_object(), again) {
        (false, _) => String::new(),
        (true, 0) => format!("{} put back, none failed again", number(sent)),
        (true, again) => {
            format!("{} of {} failed again ({})", number(again), number(sent), share(again, sent))
        }
    };
    let keys = count(group, "keys_blocked");
    GroupRow {
        name: format!("g-{}", link::encoded(if cause.is_empty() { &title } else { &cause })),
        title: if title.is_empty() { format!("(no {by})") } else { title.clone() },
        queues: list(group, "queues").iter().filter_map(|queue| queue.as_str().map(str::to_owned)).collect(),
        letters,
        letters_text: number(letters),
        per_mille: letters.saturating_mul(1000) / all.max(1),
        keys,
        keys_text: if keys == 0 { String::new() } else { several(keys, "key") },
        first: Time::member(group, "first"),
        last: Time::member(group, "last"),
        redriven: told,
        redriven_at: Time::member(redriven, "at"),
        failed_again: again > 0,
        look: to("/desk/events", "").replace("?act=&", "?"),
        redrive: to("/desk/redrive", "redrive"),
        discard: to("/desk/redrive", "discard"),
    }
}

/// A way to group.
pub(super) struct By {
    name: &'static str,
    link: String,
    is_here: bool,
}

#[derive(Template)]
#[template(path = "desk/groups.html")]
struct GroupsPage {
    frame: Frame,
    rows: Vec<GroupRow>,
    by: &'static str,
    ways: Vec<By>,
    all: String,
    causes: String,
    queue: String,
    tenant: String,
    more: bool,
    looked: String,
    failing: String,
}

async fn dead(visitor: Visitor) -> Response {
    visitor.answer(dead_page(&visitor).await)
}

async fn dead_page(visitor: &Visitor) -> Result<Response, Problem> {
    const WAYS: [&str; 5] = ["cause", "queue", "tenant", "type", "key"];
    let asked = visitor.asked("by").unwrap_or("cause");
    let Some(by) = WAYS.into_iter().find(|way| *way == asked) else {
        return Err(Problem::bad_request(format!(
            "cannot group by `{asked}`; use one of {}",
            WAYS.join(", ")
        )));
    };
    let filter = EventFilter::of(visitor);
    let (queue, tenant) = (filter.get("queue").to_owned(), filter.get("tenant").to_owned());
    let query = [("by", by), ("queue", &queue), ("tenant", &tenant), ("limit", LIMIT)];
    let answer = visitor.get("/v1/dead/groups", &query).await?;
    let rows = rows(&answer, by, &queue, &tenant);
    let way = |name: &'static str| {
        let link = link::address("/desk/groups", [("by", name), ("queue", &queue), ("tenant", &tenant)]);
        By { name, link, is_here: name == by }
    };
    let command = Command::new("dead groups").flag("by", Some(by).filter(|by| *by != "cause"));
    let command =
        command.flag("queue", Some(&queue)).flag("tenant", Some(&tenant)).flag("limit", Some(LIMIT));
    let all: u64 = rows.iter().map(|row| row.letters).sum();
    let looked = answer["looked"].as_u64().map_or(String::new(), number);
    visitor_page(
        visitor,
        GroupsPage {
            frame: visitor.frame("Groups", "Groups", command).live(4),
            ways: WAYS.into_iter().map(way).collect(),
            by,
            all: several(all, "dead letter"),
            causes: several(u64::try_from(rows.len()).unwrap_or_default(), by),
            more: answer["more"] == true,
            looked,
            failing: link::address("/desk/failing", [("queue", queue.as_str()), ("tenant", &tenant)]),
            rows,
            queue,
            tenant,
        },
    )
}

#[allow(clippy::unnecessary_wraps, reason = "the last step of a page that may fail")]
fn visitor_page(visitor: &Visitor, page: impl Template) -> Result<Response, Problem> {
    Ok(visitor.show(&page))
}

/// A group of retrying events, as a row.
#[derive(Debug, Clone)]
pub(super) struct FailingRow {
    pub(super) name: String,
    pub(super) title: String,
    pub(super) queues: Vec<String>,
    pub(super) events: u64,
    pub(super) events_text: String,
    pub(super) attempts: String,
    pub(super) since: Time,
    pub(super) last: Time,
    pub(super) next: String,
    pub(super) keys: String,
    pub(super) look: String,
    pub(super) retry: String,
}

/// The rows of an answer of `/v1/failing/groups`.
pub(super) fn failing_rows(answer: &Value, queue: &str, tenant: &str) -> Vec<FailingRow> {
    let row = |group: &Value| {
        let cause = member(group, "cause");
        let queues: Vec<String> = list(group, "queues").iter().map(|of| member(of, "queue")).collect();
        let own = [("cause", cause.as_str()), ("queue", queue), ("tenant", tenant)];
        let of_queue = if queue.is_empty() && queues.len() == 1 { &queues[0] } else { queue };
        let look = [("state", "failing"), ("queue", of_queue), ("tenant", tenant)];
        let keys = count(group, "keys_blocked");
        FailingRow {
            name: format!("f-{cause}"),
            title: member(group, "title"),
            events: count(group, "events"),
            events_text: number(count(group, "events")),
            attempts: number(count(group, "attempts")),
            since: Time::member(group, "since"),
            last: Time::member(group, "last"),
            next: until(&member(group, "next"))
                .map_or_else(|| "now".to_owned(), |time| format!("in {}", duration(time))),
            keys: if keys == 0 { String::new() } else { several(keys, "key") },
            look: link::address("/desk/events", look),
            retry: link::address("/desk/redrive", [("act", "retry-now")].into_iter().chain(own)),
            queues,
        }
    };
    list(answer, "groups").iter().map(row).collect()
}

#[derive(Template)]
#[template(path = "desk/failing.html")]
struct FailingPage {
    frame: Frame,
    rows: Vec<FailingRow>,
    all: String,
    more: bool,
    looked: String,
    dead: String,
}

async fn failing(visitor: Visitor) -> Response {
    visitor.answer(failing_page(&visitor).await)
}

async fn failing_page(visitor: &Visitor) -> Result<Response, Problem> {
    let filter = EventFilter::of(visitor);
    let (queue, tenant) = (filter.get("queue"), filter.get("tenant"));
    let query = [("queue", queue), ("tenant", tenant), ("limit", LIMIT)];
    let answer = visitor.get("/v1/failing/groups", &query).await?;
    let rows = failing_rows(&answer, queue, tenant);
    let command = Command::new("failing groups").flag("queue", Some(queue)).flag("tenant", Some(tenant));
    let all: u64 = rows.iter().map(|row| row.events).sum();
    visitor_page(
        visitor,
        FailingPage {
            frame: visitor.frame("Failing", "Groups", command.flag("limit", Some(LIMIT))).live(4),
            all: several(all, "retrying event"),
            more: answer["more"] == true,
            looked: answer["looked"].as_u64().map_or(String::new(), number),
            dead: link::address("/desk/groups", [("queue", queue), ("tenant", tenant)]),
            rows,
        },
    )
}
