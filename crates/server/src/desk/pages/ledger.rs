//! The ledger: requests by idempotency key, and the inbox of those whose outcome is unknown.

use askama::Template;
use axum::Router;
use axum::response::Response;
use axum::routing::{get, post};
use serde_json::{Value, json};

use crate::desk::Shared;
use crate::desk::api::Problem;
use crate::desk::command::Command;
use crate::desk::link;
use crate::desk::page::Frame;
use crate::desk::text::{Time, count, list, member};
use crate::desk::visitor::{Form, Visitor};

pub(super) fn routes() -> Router<Shared> {
    Router::new()
        .route("/desk/ledger", get(ledger))
        .route("/desk/ledger/request", get(request))
        .route("/desk/ledger/resolve", post(resolve))
}

/// A request, as a row.
#[derive(Debug, Clone)]
struct RequestRow {
    key: String,
    operation: String,
    tenant: String,
    principal: String,
    state: String,
    attempt: u64,
    first: Time,
    since: Time,
    until: Time,
    resource: String,
    status: String,
    link: String,
    /// Its identity, percent-encoded, as a form's value.
    which: String,
}

impl RequestRow {
    fn of(request: &Value) -> Self {
        let [key, operation, tenant, principal] =
            ["key", "operation", "tenant", "principal"].map(|name| member(request, name));
        let which = [
            ("operation", operation.as_str()),
            ("tenant", &tenant),
            ("principal", &principal),
            ("key", &key),
        ];
        Self {
            which: link::query(which),
            link: link::address("/desk/ledger/request", which),
            state: member(request, "state").replace('_', " "),
            attempt: count(request, "attempt"),
            first: Time::member(request, "first"),
            since: Time::member(request, "since"),
            until: Time::member(request, "until"),
            resource: member(request, "resource"),
            status: member(request, "status"),
            key,
            operation,
            tenant,
            principal,
        }
    }
}

struct PhaseTab {
    name: String,
    link: String,
    is_here: bool,
}

#[derive(Template)]
#[template(path = "desk/ledger.html")]
struct LedgerPage {
    frame: Frame,
    state: String,
    tabs: Vec<PhaseTab>,
    key: String,
    resource: String,
    rows: Vec<RequestRow>,
    first: String,
    next: String,
}

async fn ledger(visitor: Visitor) -> Response {
    visitor.answer(list_page(&visitor).await)
}

async fn list_page(visitor: &Visitor) -> Result<Response, Problem> {
    const STATES: [&str; 6] = ["unknown", "in_flight", "retriable", "completed", "tombstone", "any"];
    let part = |name| visitor.asked(name).unwrap_or_default();
    let (key, resource, tenant, after) = (part("key"), part("resource"), part("tenant"), part("after"));
    let is_search = !key.is_empty() || !resource.is_empty();
    let state = visitor.asked("state").unwrap_or(if is_search { "any" } else { "unknown" });
    let word = if state == "any" { "" } else { state };
    let query = [
        ("key", key),
        ("state", word),
        ("tenant", tenant),
        ("resource", resource),
        ("after", after),
        ("limit", "100"),
    ];
    let answer = visitor.get("/v1/ledger", &query).await?;
    let next = member(&answer, "next");
    let here = |state: &str, after: &str| {
        let own =
            [("state", state), ("key", key), ("resource", resource), ("tenant", tenant), ("after", after)];
        link::address("/desk/ledger", own)
    };
    let tab =
        |name: &str| PhaseTab { name: name.replace('_', " "), link: here(name, ""), is_here: name == state };
    let command = if key.is_empty() {
        let list = Command::new("ledger ls").switch("unknown", word == "unknown");
        let list =
            list.flag("state", Some(word).filter(|word| *word != "unknown")).flag("tenant", Some(tenant));
        list.flag("resource", Some(resource)).flag("limit", Some("100")).flag("after", Some(after))
    } else {
        Command::new("ledger show").flag("tenant", Some(tenant)).word(key)
    };
    Ok(visitor.show(&LedgerPage {
        frame: visitor.frame("Ledger", "Ledger", command),
        tabs: STATES.into_iter().map(tab).collect(),
        rows: list(&answer, "requests").iter().map(RequestRow::of).collect(),
        first: if after.is_empty() { String::new() } else { here(state, "") },
        next: if next.is_empty() { String::new() } else { here(state, &next) },
        state: state.to_owned(),
        key: key.to_owned(),
        resource: resource.to_owned(),
    }))
}

#[derive(Template)]
#[template(path = "desk/request.html")]
struct RequestPage {
    frame: Frame,
    row: RequestRow,
    is_unknown: bool,
}

async fn request(visitor: Visitor) -> Response {
    visitor.answer(request_page(&visitor).await)
}

async fn request_page(visitor: &Visitor) -> Result<Response, Problem> {
    let part = |name| visitor.asked(name).unwrap_or_default();
    let query = ["operation", "tenant", "principal", "key"].map(|name| (name, part(name)));
    let answer = visitor.get("/v1/ledger/request", &query).await?;
    let row = RequestRow::of(&answer);
    let command = Command::new("ledger show").flag("operation", Some(&row.operation));
    let command =
        command.flag("tenant", Some(&row.tenant)).flag("principal", Some(&row.principal)).word(&row.key);
    let is_unknown = row.state == "unknown";
    Ok(visitor.show(&RequestPage {
        frame: visitor.frame(row.key.clone(), "Ledger", command),
        row,
        is_unknown,
    }))
}

async fn resolve(form: Form) -> Response {
    let result = perform(&form).await;
    super::acts::done(&form, "/desk/ledger", result)
}

async fn perform(form: &Form) -> Result<String, Problem> {
    let why = form.field("why").trim();
    if why.is_empty() {
        return Err(Problem::bad_request("say how you know: the reason is kept in the audit"));
    }
    let which = link::parse(form.field("which"));
    let mut body: Value = which.into_iter().map(|(name, value)| (name, Value::from(value))).collect();
    body["why"] = why.into();
    body["as"] = form.field("as").into();
    let told = if form.field("as") == "completed" {
        let status: u16 = form
            .field("status")
            .parse()
            .map_err(|_| Problem::bad_request("the status is a number such as 201"))?;
        body["status"] = status.into();
        if form.given("gone").is_some() {
            body["gone"] = true.into();
        } else {
            body["body"] = crate::desk::payload::returned(form.field("body")).into();
            if let Some(media_type) = form.given("content_type") {
                body["headers"] = json!([["content-type", media_type]]);
            }
        }
        format!("It happened: clients get status {status} from now on.")
    } else {
        "It did not happen: the next request under this key runs.".to_owned()
    };
    form.visitor.post("/v1/ledger/resolve", &body).await?;
    Ok(told)
}
