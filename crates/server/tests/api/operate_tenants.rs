//! A token with a tenant sees and changes that tenant's events alone; a token without the right, nothing.

use serde_json::{Value, json};

use crate::dead_letters::{die, each, get_as, post_as, publish, succeed, token, until};
use crate::test_server::{TestServer, answer};

async fn server() -> TestServer {
    let tokens = [
        token("acme", "\"read\", \"operate\", \"publish\"", Some("acme")),
        token("reader", "\"read\"", None),
        token("chief", "\"read\", \"operate\", \"publish\"", None),
        token("shop", "\"publish\"", None),
    ];
    let queue = "[queues.orders]\norder = \"key\"\nafter_dead = \"park\"\n[queues.orders.pull]\n";
    let server = TestServer::open(&format!("[server]\nedit = true\n{}{queue}", tokens.join(""))).await;
    publish(&server, "orders", "acme", Some("k"), &["mine"]).await;
    publish(&server, "orders", "other", Some("k"), &["theirs", "mine"]).await;
    assert_eq!(die(&server, "orders").await, 2);
    server
}

#[tokio::test]
async fn a_tenant_sees_its_own_alone() {
    let server = server().await;
    let get = async |path: &str| get_as(&server, "acme", path).await;
    let (_, groups) = get("/v1/dead/groups").await;
    assert_eq!(groups["groups"].as_array().map(|all| all.len()), Some(1));
    assert_eq!(groups["groups"][0]["letters"], 1);
    assert_eq!(each(&get("/v1/dead/groups?by=tenant").await.1, "groups", "title"), ["acme"]);
    for state in ["", "state=dead&", "state=parked&"] {
        let (_, page) = get(&format!("/v1/events?{state}limit=9")).await;
        assert!(each(&page, "events", "tenant").iter().all(|tenant| *tenant == "acme"), "{page}");
    }
    assert_eq!(get("/v1/event?queue=orders&id=mine").await.1["tenant"], "acme");
    assert_eq!(get("/v1/event?queue=orders&id=theirs").await.0, 404);
    assert_eq!(each(&get("/v1/lookup?id=mine").await.1, "events", "tenant"), ["acme"]);
    assert_eq!(get("/v1/lookup?id=theirs").await.1["events"], json!([]));
    assert_eq!(each(&get("/v1/keys?queue=orders&key=k").await.1, "events", "tenant"), ["acme"]);
    let lines =
        server.client.get(server.url("/v1/dead/export")).bearer_auth("acme").send().await.expect("lines");
    let lines = lines.text().await.expect("lines");
    assert!(lines.lines().count() == 1 && lines.contains("\"acme\""));
    for path in [
        "/v1/dead/groups?tenant=other",
        "/v1/events?tenant=other",
        "/v1/event?queue=orders&id=theirs&tenant=other",
        "/v1/queues/orders/events/theirs?tenant=other",
        "/v1/lookup?id=theirs&tenant=other",
        "/v1/keys?queue=orders&key=k&tenant=other",
        "/v1/dead/export?tenant=other",
        "/v1/dead/export?tenant=",
        "/v1/queues",
        "/v1/queues/orders",
        "/v1/nodes",
        "/v1/audit",
        "/v1/audit/export",
    ] {
        assert_eq!(get(path).await.0, 403, "{path}");
    }
}

#[tokio::test]
async fn a_tenant_changes_its_own_alone() {
    let server = server().await;
    let post = async |path: &str, body: Value| post_as(&server, "acme", path, body).await;
    let theirs = json!({ "queue": "orders", "tenant": "other", "id": "theirs" });
    let key = json!({ "queue": "orders", "tenant": "other", "key": "k" });
    for verb in ["redrive", "discard", "restore", "kill", "retry-now"] {
        let many = post(&format!("/v1/events/{verb}"), json!({ "targets": [theirs] })).await;
        let one =
            post(&format!("/v1/queues/orders/events/theirs/{verb}"), json!({ "tenant": "other" })).await;
        assert_eq!((many.0, one.0), (403, 403), "{verb}");
    }
    let mut rule = key.clone();
    rule["rule"] = "park-key".into();
    for (path, body) in [
        ("/v1/events/edit", theirs),
        ("/v1/jobs", json!({ "act": "discard", "filter": { "tenant": "other" } })),
        ("/v1/jobs/plan", json!({ "act": "discard", "filter": { "tenant": "other" } })),
        ("/v1/keys/park", key.clone()),
        ("/v1/keys/unpark", key.clone()),
        ("/v1/keys/skip-head", key),
        ("/v1/rules", rule.clone()),
        ("/v1/rules/lift", rule),
        ("/v1/rules", json!({ "rule": "quarantine-tenant", "tenant": "acme" })),
        ("/v1/rules/lift", json!({ "rule": "quarantine-tenant", "tenant": "acme" })),
        ("/v1/rules", json!({ "rule": "pause", "queue": "orders" })),
        ("/v1/queues/orders/pause", json!({})),
        ("/v1/queues/orders/resume", json!({})),
        ("/v1/queues/orders/reroute", json!({ "to": "orders" })),
    ] {
        assert_eq!(post(path, body).await.0, 403, "{path}");
    }
    let line = json!({
        "tenant": "other", "queue": "orders", "id": "new", "published_ms": 1, "died_ms": 1, "attempts": 1,
        "reason": "killed",
    });
    let import = server.client.post(server.url("/v1/dead/import")).bearer_auth("acme");
    assert_eq!(answer(import.body(line.to_string())).await.0, 403);
    // The members' values in their order are no letter, and one of another tenant spoils those before it as well.
    let values = json!(["other", "orders", "new", null, "evil", null, null, 1, 1, null, 1, "killed", null]);
    let mut own = line.clone();
    (own["tenant"], own["id"]) = ("acme".into(), "before".into());
    for (lines, status) in [(format!("{values}\n"), 422), (format!("{own}\n{line}\n"), 403)] {
        let import = server.client.post(server.url("/v1/dead/import")).bearer_auth("acme");
        assert_eq!(answer(import.body(lines.clone())).await.0, status, "{lines}");
    }
    let (_, dead) = get_as(&server, "chief", "/v1/events?state=dead&tenant=acme").await;
    assert_eq!(each(&dead, "events", "id"), ["mine"], "a refused import keeps nothing");
    let (_, dead) = get_as(&server, "chief", "/v1/events?state=dead&tenant=other").await;
    assert_eq!(each(&dead, "events", "id"), ["theirs"], "nothing of theirs was changed");

    let (status, done) =
        post("/v1/events/redrive", json!({ "targets": [{ "queue": "orders", "id": "mine" }] })).await;
    assert_eq!((status, &done["changed"]), (200, &json!(1)), "{done}");
    for rule in [
        json!({ "rule": "pause", "queue": "orders" }),
        json!({ "rule": "park-key", "queue": "orders", "tenant": "other", "key": "k" }),
    ] {
        assert_eq!(post_as(&server, "chief", "/v1/rules", rule).await.0, 200);
    }
    assert_eq!(post("/v1/keys/park", json!({ "queue": "orders", "key": "k" })).await.1["tenant"], "acme");
    assert_eq!(each(&get_as(&server, "acme", "/v1/rules").await.1, "rules", "tenant"), ["acme"]);
}

#[tokio::test]
async fn a_list_of_values_is_taken_for_no_object() {
    let server = server().await;
    let named = json!(["orders", "acme", "mine", null]);
    for (path, body) in [
        ("/v1/events/kill", json!([[{ "queue": "orders", "id": "mine" }], null, false, false])),
        ("/v1/events/kill", json!({ "targets": [named] })),
        ("/v1/queues/orders/events/mine/redrive", json!(["acme", null, null, false, false])),
        ("/v1/events/edit", json!(["orders", "acme", "mine"])),
        ("/v1/jobs", json!(["discard"])),
        ("/v1/jobs/plan", json!(["discard"])),
        ("/v1/keys/park", json!(["orders", "acme", "k"])),
        ("/v1/keys/unpark", json!(["orders", "acme", "k"])),
        ("/v1/keys/skip-head", json!(["orders", "acme", "k"])),
        ("/v1/rules", json!(["pause", "orders"])),
        ("/v1/rules/lift", json!(["pause", "orders"])),
        ("/v1/queues/orders/pause", json!([null, false, null])),
        ("/v1/queues/orders/reroute", json!(["orders", null, null])),
    ] {
        let (status, problem) = post_as(&server, "chief", path, body).await;
        assert_eq!(status, 400, "{path}: {problem}");
        assert!(problem["detail"].as_str().is_some_and(|detail| detail.contains("an object")), "{problem}");
    }
    let event = json!(["pos1", null, null, { "a": 1 }]);
    let url = server.url("/v1/queues/orders/events");
    for (kind, body) in [
        ("application/x-ndjson", event.clone()),
        ("application/json", event.clone()),
        ("application/json", json!({ "events": [event] })),
    ] {
        let publish = server.client.post(&url).bearer_auth("shop").header("content-type", kind);
        let (status, told) = answer(publish.body(body.to_string())).await;
        // Of many, each has its answer.
        let is = told["results"][0]["problem"]["status"].as_u64().unwrap_or(status.into());
        assert!(is == 400 && told["results"][0]["id"].is_null(), "{kind}: {body}: {told}");
    }
}

#[tokio::test]
async fn the_job_of_a_tenant_is_about_its_own() {
    let server = server().await;
    let (status, job) = post_as(&server, "acme", "/v1/jobs", json!({ "act": "discard", "yes": true })).await;
    assert_eq!((status, &job["filter"]["tenant"], &job["planned"]), (202, &json!("acme"), &json!(1)));
    let (_, theirs) =
        post_as(&server, "chief", "/v1/jobs", json!({ "act": "redrive", "filter": { "tenant": "other" } }))
            .await;
    let (_, jobs) = get_as(&server, "acme", "/v1/jobs").await;
    assert_eq!(jobs["jobs"].as_array().map(Vec::len), Some(1));
    let path = format!("/v1/jobs/{}", theirs["id"]);
    assert_eq!(get_as(&server, "acme", &path).await.0, 404);
    assert_eq!(post_as(&server, "acme", &format!("{path}/cancel"), json!({})).await.0, 404);
    let is_done = async || get_as(&server, "chief", &path).await.1["state"] == "done";
    let working = async {
        while !is_done().await {
            succeed(&server, "orders").await;
        }
    };
    tokio::time::timeout(std::time::Duration::from_secs(60), working).await.expect("the job ends");
    let (_, lines) = get_as(&server, "chief", "/v1/audit").await;
    assert!(each(&lines, "lines", "who").contains(&"acme"), "{lines}");
    until(&server, "/healthz", |answer| answer["status"] == "ok").await;
}

#[tokio::test]
async fn who_may_only_look_changes_nothing_and_who_may_only_publish_sees_nothing() {
    let server = server().await;
    for path in ["/v1/dead/groups", "/v1/events", "/v1/jobs", "/v1/rules", "/v1/queues", "/v1/audit"] {
        assert_eq!(get_as(&server, "reader", path).await.0, 200, "{path}");
        assert_eq!(get_as(&server, "shop", path).await.0, 403, "{path}");
        assert_eq!(server.get(path).await.0, 401, "{path}");
    }
    for (path, body) in [
        ("/v1/events/redrive", json!({ "targets": [] })),
        ("/v1/events/edit", json!({})),
        ("/v1/jobs", json!({ "act": "redrive" })),
        ("/v1/jobs/1/cancel", json!({})),
        ("/v1/rules", json!({})),
        ("/v1/rules/lift", json!({})),
        ("/v1/keys/park", json!({})),
        ("/v1/queues/orders/pause", json!({})),
        ("/v1/dead/import", json!({})),
    ] {
        let (status, problem) = post_as(&server, "reader", path, body).await;
        assert_eq!((status, &problem["right"]), (403, &json!("operate")), "{path}");
    }
}

#[tokio::test]
async fn reads_of_payloads_exports_and_failed_sign_ins_are_in_the_audit() {
    let server = server().await;
    let path = "/v1/event?queue=orders&id=mine&tenant=acme";
    assert_eq!(get_as(&server, "reader", path).await.0, 200);
    assert_eq!(get_as(&server, "reader", &format!("{path}&contents=1")).await.0, 200);
    get_as(&server, "acme", "/v1/dead/export").await;
    for _ in 0..3 {
        assert_eq!(get_as(&server, "guessed", "/v1/jobs").await.0, 401);
    }
    assert_eq!(server.get("/v1/jobs").await.0, 401);
    let audited = async || {
        let (_, lines) = get_as(&server, "reader", "/v1/audit").await;
        let line = |line: &Value| {
            let text = |name: &str| line[name].as_str().unwrap_or_default().to_owned();
            (text("who"), text("verb"), text("target"), line["count"].as_u64().unwrap_or_default())
        };
        lines["lines"].as_array().expect("lines").iter().map(line).collect::<Vec<_>>()
    };
    let line = |who: &str, verb: &str, target: &str, count: u64| {
        (who.to_owned(), verb.to_owned(), target.to_owned(), count)
    };
    let waiting = async {
        while audited().await.first() != Some(&line("unknown", "sign-in-failed", "token", 3)) {
            tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        }
    };
    tokio::time::timeout(std::time::Duration::from_secs(30), waiting).await.expect("it is written");
    let lines = audited().await;
    assert_eq!(lines[1], line("acme", "export", "dead letters of queue any, tenant acme", 1));
    assert_eq!(lines[2], line("reader", "read-contents", "orders/acme/mine", 1));
    assert_eq!(lines.iter().filter(|line| line.1 == "read-contents").count(), 1, "contents alone");
}
