//! Who may do what: every route of the API's description, every right, every limit, against a written table.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::dead_letters::{die, each, get_as, post_as, publish, token};
use crate::test_server::{TestServer, answer};

/// The table. A route, the rights each of which suffices (`+`: all are needed), then what becomes of a token of one
/// tenant and of a token of one queue: `own` is for its own alone, `no` is refused, `-` has no such limit.
const TABLE: &str = "
    GET    /                                        anyone           -    -
    GET    /healthz                                 anyone           -    -
    GET    /readyz                                  anyone           -    -
    GET    /openapi.json                            anyone           -    -
    GET    /metrics                                 read|metrics     no   no
    POST   /v1/queues/{queue}/events                publish          own  own
    POST   /v1/queues/{queue}/leases                consume          own  own
    POST   /v1/queues/{queue}/leases/extend         consume          own  own
    POST   /v1/queues/{queue}/leases/settle         consume          own  own
    GET    /v1/dead/groups                          read             own  own
    GET    /v1/failing/groups                       read             own  own
    GET    /v1/queues/{queue}/attempts              read             own  own
    GET    /v1/events                               read             own  own
    GET    /v1/event                                read             own  own
    GET    /v1/queues/{queue}/events/{id}           read             own  own
    GET    /v1/lookup                               read             own  own
    POST   /v1/events/redrive                       operate          own  own
    POST   /v1/events/discard                       operate          own  own
    POST   /v1/events/restore                       operate          own  own
    POST   /v1/events/kill                          operate          own  own
    POST   /v1/events/retry-now                     operate          own  own
    POST   /v1/events/edit                          operate          own  own
    POST   /v1/queues/{queue}/events/{id}/redrive   operate          own  own
    POST   /v1/queues/{queue}/events/{id}/discard   operate          own  own
    POST   /v1/queues/{queue}/events/{id}/restore   operate          own  own
    POST   /v1/queues/{queue}/events/{id}/kill      operate          own  own
    POST   /v1/queues/{queue}/events/{id}/retry-now operate          own  own
    POST   /v1/queues/{queue}/events/{id}/edit      operate          own  own
    GET    /v1/jobs                                 read             -    -
    POST   /v1/jobs                                 operate          own  own
    POST   /v1/jobs/plan                            read             own  own
    GET    /v1/jobs/{id}                            read             -    -
    POST   /v1/jobs/{id}/pause                      operate          -    -
    POST   /v1/jobs/{id}/resume                     operate          -    -
    POST   /v1/jobs/{id}/cancel                     operate          -    -
    GET    /v1/queues                               read             no   -
    GET    /v1/queues/{queue}                       read             no   own
    POST   /v1/queues/{queue}/pause                 operate          no   own
    POST   /v1/queues/{queue}/resume                operate          no   own
    POST   /v1/queues/{queue}/reroute               operate+publish  no   own
    GET    /v1/rules                                read             -    -
    POST   /v1/rules                                operate          own  own
    POST   /v1/rules/lift                           operate          own  own
    GET    /v1/keys                                 read             own  own
    POST   /v1/keys/park                            operate          own  own
    POST   /v1/keys/unpark                          operate          own  own
    POST   /v1/keys/skip-head                       operate          own  own
    GET    /v1/dead/export                          read             own  own
    POST   /v1/dead/import                          operate+publish  own  own
    GET    /v1/ledger                               read             own  no
    GET    /v1/ledger/request                       read             own  no
    POST   /v1/ledger/resolve                       operate          own  no
    POST   /v1/ledger/resolve-all                   operate          own  no
    GET    /v1/nodes                                read             no   no
    GET    /v1/audit                                read             no   no
    GET    /v1/audit/export                         read             no   no
    POST   /v1/backup                               operate          no   no
    POST   /v1/reload                               operate          no   no
    GET    /v1/secrets                              operate          no   no
    PUT    /v1/secrets/{name}                       operate          no   no
    DELETE /v1/secrets/{name}                       operate          no   no
    POST   /v1/secrets/{name}/rotate                operate          no   no
    POST   /v1/secrets/{name}/drop-old              operate          no   no
";

const RIGHTS: [&str; 5] = ["publish", "consume", "read", "operate", "metrics"];

struct Row {
    rights: &'static str,
    tenant: &'static str,
    queue: &'static str,
}

impl Row {
    /// Whether these rights suffice.
    fn allows(&self, has: &[&str]) -> bool {
        let all = |needed: &str| needed.split('+').all(|right| has.contains(&right));
        self.rights == "anyone" || self.rights.split('|').any(all)
    }
}

fn table() -> BTreeMap<(String, String), Row> {
    let row = |line: &'static str| {
        let mut words = line.split_whitespace();
        let mut word = || words.next().unwrap_or_else(|| panic!("five words in {line}"));
        let name = (word().to_owned(), word().to_owned());
        (name, Row { rights: word(), tenant: word(), queue: word() })
    };
    TABLE.lines().filter(|line| !line.trim().is_empty()).map(row).collect()
}

/// Every method of every path that the API's description has.
fn routes() -> Vec<(String, String)> {
    let document: Value = serde_json::from_str(&redrive_server::api::openapi::text()).expect("it is JSON");
    let paths = document["paths"].as_object().expect("paths").clone();
    let methods = |(path, item): (String, Value)| {
        let item = item.as_object().expect("a path").clone();
        let methods = item.into_iter().map(|(method, _)| method.to_uppercase());
        let known = methods.filter(|method| ["GET", "PUT", "POST", "DELETE"].contains(&method.as_str()));
        known.map(move |method| (method, path.clone())).collect::<Vec<_>>()
    };
    paths.into_iter().flat_map(methods).collect()
}

/// A request to a route about this queue and this tenant.
fn request(
    server: &TestServer,
    (method, path): &(String, String),
    queue: &str,
    tenant: &str,
) -> reqwest::RequestBuilder {
    let url = server.url(&path.replace("{queue}", queue).replace("{id}", "17").replace("{name}", "orders"));
    let method = reqwest::Method::from_bytes(method.as_bytes()).expect("a method");
    let request = server.client.request(method.clone(), &url);
    if method == "GET" {
        let mut query: Vec<(&str, &str)> = match path.as_str() {
            "/v1/dead/groups" | "/v1/failing/groups" | "/v1/events" | "/v1/dead/export" => {
                vec![("queue", queue)]
            }
            "/v1/event" | "/v1/lookup" => vec![("queue", queue), ("id", "17")],
            "/v1/queues/{queue}/events/{id}" | "/v1/queues/{queue}/attempts" => vec![],
            "/v1/keys" => vec![("queue", queue), ("key", "k")],
            "/v1/ledger" => vec![],
            "/v1/ledger/request" => vec![("operation", "POST /a"), ("key", "k")],
            _ => return request,
        };
        query.push(("tenant", tenant));
        let url = reqwest::Url::parse_with_params(&url, &query).expect("a url");
        return server.client.get(url);
    }
    let event = json!({ "queue": queue, "tenant": tenant, "id": "17" });
    let lease = json!({ "id": "17", "tenant": tenant, "attempt": 1, "token": "t", "disposition": "ok" });
    let body = match path.as_str() {
        "/v1/queues/{queue}/events" => json!({ "id": "new", "tenant": tenant }),
        "/v1/queues/{queue}/leases" => json!({ "tenant": tenant }),
        "/v1/queues/{queue}/leases/extend" => {
            let mut lease = lease;
            lease.as_object_mut().expect("an object").remove("disposition");
            json!({ "leases": [lease] })
        }
        "/v1/queues/{queue}/leases/settle" => json!({ "leases": [lease] }),
        "/v1/events/edit" => event,
        "/v1/jobs" | "/v1/jobs/plan" => {
            json!({ "act": "redrive", "filter": { "queue": queue, "tenant": tenant } })
        }
        "/v1/queues/{queue}/reroute" => json!({ "to": queue }),
        "/v1/rules" | "/v1/rules/lift" => {
            json!({ "rule": "park-key", "queue": queue, "tenant": tenant, "key": "k" })
        }
        "/v1/dead/import" => json!({
            "queue": queue, "tenant": tenant, "id": "new", "published_ms": 1, "died_ms": 1, "attempts": 1,
            "reason": "killed",
        }),
        "/v1/ledger/resolve" => {
            json!({ "tenant": tenant, "operation": "POST /a", "key": "k", "as": "retriable" })
        }
        "/v1/ledger/resolve-all" => json!({ "tenant": tenant, "as": "retriable" }),
        path if path.starts_with("/v1/keys/") => json!({ "queue": queue, "tenant": tenant, "key": "k" }),
        path if path.starts_with("/v1/events/") => json!({ "targets": [event] }),
        path if path.contains("/events/{id}/") => json!({ "tenant": tenant }),
        _ => json!({}),
    };
    request.json(&body)
}

/// The status of a request with a token; whether it was refused.
async fn is_refused(request: reqwest::RequestBuilder, token: Option<&str>) -> (bool, u16) {
    let request = match token {
        Some(token) => request.bearer_auth(token),
        None => request,
    };
    let status = request.send().await.expect("an answer").status().as_u16();
    (matches!(status, 401 | 403), status)
}

fn limited(name: &str, limit: &str) -> String {
    let rights = RIGHTS.map(|right| format!("\"{right}\"")).join(", ");
    format!("{}{limit}\n", token(name, &rights, None))
}

/// A server with a token for each right and each limit; `loose`: with tokens that have more.
async fn server(how: &str) -> TestServer {
    let is_loose = how == "loose";
    let right = |right: &str| {
        let more = if is_loose && right == "metrics" { ", \"read\"" } else { "" };
        token(right, &format!("\"{right}\"{more}"), None)
    };
    let mut settings: String = RIGHTS.iter().map(|it| right(it)).collect();
    settings += &token("operate-publish", "\"operate\", \"publish\"", None);
    settings += &limited("of-tenant", if is_loose { "" } else { "tenant = \"acme\"" });
    settings += &limited("of-queue", if is_loose { "" } else { "queues = [\"orders\"]" });
    let queues = "[queues.orders.pull]\n[queues.mails.pull]\n";
    TestServer::open(&format!("[server]\nedit = true\n{settings}{queues}")).await
}

/// What differs from the table in what each right may do.
async fn differs_by_right(server: &TestServer) -> Vec<String> {
    let mut differs = Vec::new();
    for (route, row) in &table() {
        let ask = || request(server, route, "orders", "acme");
        let mut asked: Vec<(&str, Vec<&str>)> = RIGHTS.iter().map(|right| (*right, vec![*right])).collect();
        asked.push(("operate-publish", vec!["operate", "publish"]));
        for (token, rights) in asked {
            let (refused, status) = is_refused(ask(), Some(token)).await;
            if refused == row.allows(&rights) {
                differs.push(format!("{route:?} with {token}: {status}"));
            }
        }
        let (refused, status) = is_refused(ask(), None).await;
        if refused == (row.rights == "anyone") {
            differs.push(format!("{route:?} without a token: {status}"));
        }
    }
    differs
}

/// What differs from the table in what a token of one tenant, and a token of one queue, may do.
async fn differs_by_limit(server: &TestServer) -> Vec<String> {
    let mut differs = Vec::new();
    for (route, row) in &table() {
        for (token, limit, other) in
            [("of-tenant", row.tenant, ("orders", "other")), ("of-queue", row.queue, ("mails", "acme"))]
        {
            let (own, own_status) = is_refused(request(server, route, "orders", "acme"), Some(token)).await;
            let (other, status) = is_refused(request(server, route, other.0, other.1), Some(token)).await;
            if own != (limit == "no") || other != (limit != "-") {
                differs.push(format!("{route:?} {token}: its own {own_status}, another {status}"));
            }
        }
    }
    differs
}

#[tokio::test]
async fn every_route_is_for_the_rights_and_limits_of_the_table_and_no_other() {
    let (routes, table) = (routes(), table());
    let unlisted: Vec<_> = routes.iter().filter(|route| !table.contains_key(*route)).collect();
    assert!(unlisted.is_empty(), "routes that the table does not have: {unlisted:?}");
    assert_eq!(routes.len(), table.len(), "the table has routes that there are not");
    let server = server("").await;
    assert_eq!(differs_by_right(&server).await, Vec::<String>::new());
    assert_eq!(differs_by_limit(&server).await, Vec::<String>::new());
}

/// The control: tokens with more than they are called for.
#[tokio::test]
async fn a_right_or_a_limit_that_differs_from_the_table_is_found() {
    let server = server("loose").await;
    let found = differs_by_right(&server).await;
    assert!(found.iter().all(|line| line.contains("with metrics")) && !found.is_empty(), "{found:?}");
    let found = differs_by_limit(&server).await;
    assert!(found.iter().any(|line| line.contains("of-tenant")), "{found:?}");
    assert!(found.iter().any(|line| line.contains("of-queue")), "{found:?}");
}

#[tokio::test]
async fn no_operator_reaches_a_destination_that_it_may_not_publish_to() {
    let tokens = [
        token("mine", "\"read\", \"operate\"", Some("acme")),
        token("both", "\"read\", \"operate\", \"publish\"", Some("acme")) + "queues = [\"orders\"]\n",
        token("chief", "\"read\", \"operate\", \"publish\"", None),
    ];
    let queues = "[queues.orders.pull]\n[queues.mails.pull]\n[notify]\nurl = \"https://hooks.example\"\n";
    let server = TestServer::open(&format!("{}{queues}", tokens.join(""))).await;
    publish(&server, "orders", "acme", None, &["1"]).await;
    assert_eq!(die(&server, "orders").await, 1);
    let targets = json!([{ "queue": "orders", "tenant": "acme", "id": "1" }]);
    let line = |queue: &str| {
        json!({
            "tenant": "acme", "queue": queue, "id": "new", "published_ms": 1, "died_ms": 1, "attempts": 1,
            "reason": "killed", "payload": "evil",
        })
    };
    let import = async |token: &str, queue: &str| {
        let request = server.client.post(server.url("/v1/dead/import")).bearer_auth(token);
        answer(request.body(line(queue).to_string())).await
    };
    for (token, to, status, kind) in [
        ("mine", "mails", 403, "forbidden"),
        ("mine", "orders", 403, "forbidden"),
        ("both", "mails", 403, "other-queue"),
        ("both", "redrive-notify", 403, "other-queue"),
        ("chief", "redrive-notify", 404, "no-such-queue"),
    ] {
        let kind = json!(kind);
        let filter = json!({ "queue": "orders", "tenant": "acme" });
        for (path, body) in [
            ("/v1/events/redrive", json!({ "targets": targets, "to": to })),
            ("/v1/queues/orders/events/1/redrive", json!({ "tenant": "acme", "to": to })),
            ("/v1/jobs", json!({ "act": "redrive", "filter": filter, "to": to })),
        ] {
            let (is, problem) = post_as(&server, token, path, body).await;
            assert_eq!((is, &problem["code"]), (status, &kind), "{token} {path} to {to}: {problem}");
        }
        let (is, problem) = import(token, to).await;
        assert_eq!((is, &problem["code"]), (status, &kind), "{token} imports into {to}: {problem}");
    }
    let (is, problem) =
        post_as(&server, "chief", "/v1/queues/orders/reroute", json!({ "to": "redrive-notify" })).await;
    assert_eq!(is, 404, "{problem}");
    let (_, dead) = get_as(&server, "chief", "/v1/events?state=dead").await;
    assert_eq!(each(&dead, "events", "id"), ["1"], "a refused import stores nothing");
    assert_eq!(import("both", "orders").await.1["changed"], 1);
}
