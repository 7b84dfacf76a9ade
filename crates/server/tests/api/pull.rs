//! Pulling: which worker gets which events, and the results of settling.

use serde_json::{Value, json};

use crate::test_server::{TestServer, answer};

pub(crate) const QUEUE: &str = "
    [queues.jobs]
    order = 'key'
    [queues.jobs.policy]
    attempts = 3
    [queues.jobs.policy.backoff.exponential]
    base = '1ms'
    factor = 1.0
    cap = '1ms'
    [queues.jobs.pull]
    lease = '30s'
    lease_max = '1h'
    ";

pub(crate) async fn publish(server: &TestServer, event: Value) {
    let (status, told) = server.post("/v1/queues/jobs/events", event).await;
    assert_eq!(status, 202, "{told}");
}

/// Leases one, and waits for it.
pub(crate) async fn lease(server: &TestServer, ask: Value) -> Value {
    let (status, mut told) = server.post("/v1/queues/jobs/leases", ask).await;
    assert_eq!(status, 200, "{told}");
    told["leases"].get_mut(0).map(Value::take).unwrap_or_default()
}

/// What is needed to settle it.
pub(crate) fn held(lease: &Value) -> Value {
    json!({ "id": lease["id"], "tenant": lease["tenant"], "attempt": lease["attempt"], "token": lease["token"] })
}

/// Settles one; the status of all, and what is said of it.
pub(crate) async fn settle(server: &TestServer, lease: &Value, disposition: Value) -> (u16, Value) {
    let mut item = held(lease);
    item.as_object_mut().expect("an object").extend(disposition.as_object().expect("an object").clone());
    let (status, mut told) = server.post("/v1/queues/jobs/leases/settle", json!({ "leases": [item] })).await;
    (status, told["results"][0].take())
}

#[tokio::test]
async fn a_lease_shows_what_a_worker_needs() {
    let server = TestServer::open(QUEUE).await;
    let event = json!({
        "id": "1", "tenant": "acme", "key": "k", "payload": { "cabins": 2 }, "headers": { "a": "b" },
        "correlation": "c",
    });
    publish(&server, event).await;
    let lease = lease(&server, json!({ "max": 10, "lease": "1m", "wait": "30s" })).await;
    for (name, value) in [
        ("id", json!("1")),
        ("tenant", json!("acme")),
        ("key", json!("k")),
        ("attempt", json!(1)),
        ("mode", json!("live")),
        ("payload", json!("{ \"cabins\": 2 }".replace(' ', ""))),
        ("content_type", json!("application/json")),
        ("headers", json!([["a", "b"]])),
        ("correlation", json!("c")),
    ] {
        assert_eq!(lease[name], value, "{name} of {lease}");
    }
    assert_eq!(lease["idempotency_key"].as_str().map(str::len), Some(32));
    let until = humantime::parse_rfc3339(lease["until"].as_str().expect("a time")).expect("a time");
    let left = until.duration_since(std::time::SystemTime::now()).expect("it is later").as_secs();
    assert!((50..=60).contains(&left), "{left}");
}

#[tokio::test]
async fn bytes_that_are_no_text_are_in_base64() {
    let server = TestServer::open(QUEUE).await;
    publish(&server, json!({ "id": "1", "payload_base64": "/wA=" })).await;
    let lease = lease(&server, json!({})).await;
    assert_eq!((&lease["payload_base64"], &lease["payload"]), (&json!("/wA="), &Value::Null));
}

#[tokio::test]
async fn a_settle_is_judged_by_its_attempt_also_after_a_restart() {
    let mut server = TestServer::open(QUEUE).await;
    publish(&server, json!({ "id": "1" })).await;
    let first = lease(&server, json!({ "lease": "1h" })).await;
    server.stop().await;
    server.start().await;
    let (status, told) = settle(&server, &first, json!({ "disposition": "ok", "result": "booked" })).await;
    assert_eq!((status, &told["status"], &told["result"]), (200, &json!(200), &json!("applied")), "{told}");
    server.stop().await;
    server.start().await;
    let (status, told) = settle(&server, &first, json!({ "disposition": "ok" })).await;
    assert_eq!((status, &told["status"], &told["result"]), (200, &json!(200), &json!("already")), "{told}");
    let (status, told) = settle(&server, &first, json!({ "disposition": "permanent" })).await;
    assert_eq!(
        (status, &told["status"], &told["now"]["state"]),
        (207, &json!(409), &json!("done")),
        "{told}"
    );
    let mut nobody = first.clone();
    nobody["id"] = json!("nobody");
    let (status, told) = settle(&server, &nobody, json!({ "disposition": "ok" })).await;
    assert_eq!((status, &told["status"], &told["result"]), (207, &json!(404), &json!("unknown")), "{told}");
    let (_, again) = server.post("/v1/queues/jobs/events", json!({ "id": "1" })).await;
    assert_eq!((&again["first"]["state"], &again["first"]["result"]), (&json!("done"), &json!("booked")));
}

#[tokio::test]
async fn who_is_late_is_told_what_is_so_now() {
    let mut server = TestServer::open(QUEUE).await;
    publish(&server, json!({ "id": "1" })).await;
    let late = lease(&server, json!({ "lease": "1ms" })).await;
    let second = lease(&server, json!({ "wait": "30s" })).await;
    assert_eq!((&second["attempt"], &second["mode"]), (&json!(2), &json!("retry")));
    for _ in 0..2 {
        let (status, told) = settle(&server, &late, json!({ "disposition": "ok" })).await;
        assert_eq!((status, &told["status"], &told["result"]), (207, &json!(409), &json!("conflict")));
        assert_eq!(told["now"]["state"], "running", "{told}");
        server.stop().await;
        server.start().await;
    }
    assert_eq!(settle(&server, &second, json!({ "disposition": "ok" })).await.0, 200);
}

#[tokio::test]
async fn each_word_has_its_meaning() {
    let server = TestServer::open(QUEUE).await;
    let fate = async |id: &str| {
        let (_, mut told) = server.post("/v1/queues/jobs/events", json!({ "id": id })).await;
        told["first"].take()
    };
    for id in ["bad", "gone"] {
        publish(&server, json!({ "id": id })).await;
    }
    let (bad, gone) = (lease(&server, json!({})).await, lease(&server, json!({})).await);
    let error = json!({ "kind": "CardDeclined", "code": "402", "message": "no money" });
    let say = json!({ "disposition": "permanent", "error": error, "executed": "no" });
    assert_eq!(settle(&server, &bad, say).await.0, 200);
    let dead = fate("bad").await;
    assert_eq!((&dead["state"], &dead["reason"]), (&json!("dead"), &json!("permanent")), "{dead}");
    assert_eq!(settle(&server, &gone, json!({ "disposition": "drop" })).await.0, 200);
    assert_eq!(fate("gone").await["state"], "dropped");
    publish(&server, json!({ "id": "busy" })).await;
    let busy = lease(&server, json!({})).await;
    assert_eq!(settle(&server, &busy, json!({ "disposition": "retry", "after": "200ms" })).await.0, 200);
    assert_eq!(lease(&server, json!({})).await, Value::Null, "it is not due");
    let again = lease(&server, json!({ "wait": "30s" })).await;
    assert_eq!((&again["id"], &again["attempt"]), (&json!("busy"), &json!(2)));
    for attempt in 2..=3 {
        let busy = if attempt == 2 { again.clone() } else { lease(&server, json!({ "wait": "30s" })).await };
        assert_eq!(settle(&server, &busy, json!({ "disposition": "retry" })).await.0, 200);
    }
    assert_eq!(fate("busy").await["reason"], "attempts_spent");
}

#[tokio::test]
async fn a_batch_is_settled_item_by_item() {
    let server = TestServer::open(QUEUE).await;
    for id in ["1", "2"] {
        publish(&server, json!({ "id": id })).await;
    }
    let (_, leased) = server.post("/v1/queues/jobs/leases", json!({ "max": 10 })).await;
    let leases = leased["leases"].as_array().expect("a list");
    assert_eq!(leases.len(), 2);
    let mut items: Vec<Value> = leases.iter().map(held).collect();
    items.push(json!({ "id": "3", "attempt": 1, "token": "0.0" }));
    items.iter_mut().for_each(|item| item["disposition"] = json!("ok"));
    let (status, told) = server.post("/v1/queues/jobs/leases/settle", json!({ "leases": items })).await;
    let statuses: Vec<_> =
        told["results"].as_array().expect("a list").iter().map(|item| &item["status"]).collect();
    assert_eq!((status, statuses), (207, vec![&json!(200), &json!(200), &json!(404)]));
}

#[tokio::test]
async fn a_lease_can_be_made_longer_while_it_is_held() {
    let server = TestServer::open(QUEUE).await;
    publish(&server, json!({ "id": "1" })).await;
    let lease = lease(&server, json!({ "lease": "10m" })).await;
    let mut forged = held(&lease);
    forged["token"] = json!("0.00");
    let extend = async |leases: Value| {
        let (_, told) =
            server.post("/v1/queues/jobs/leases/extend", json!({ "leases": leases, "lease": "1h" })).await;
        told["results"].clone()
    };
    let told = extend(json!([held(&lease), forged])).await;
    assert_eq!((&told[0]["status"], &told[1]["status"]), (&json!(200), &json!(409)), "{told}");
    let (_, fate) = server.post("/v1/queues/jobs/events", json!({ "id": "1" })).await;
    let until = humantime::parse_rfc3339(fate["first"]["until"].as_str().expect("a time")).expect("a time");
    let left = until.duration_since(std::time::SystemTime::now()).expect("it is later").as_secs();
    assert!(left > 3000, "{left}");
    settle(&server, &lease, json!({ "disposition": "ok" })).await;
    let told = extend(json!([held(&lease)])).await;
    assert_eq!((&told[0]["status"], &told[0]["now"]["state"]), (&json!(409), &json!("done")), "{told}");
}

#[tokio::test]
async fn what_makes_no_sense_is_refused_and_changes_nothing() {
    let pushed = "[push]\nallow = ['127.0.0.0/8']\n[queues.mails.push]\nurl = 'http://127.0.0.1:9/'\n";
    let server = TestServer::open(&format!("[server]\nbatch_max = 2\n{QUEUE}\n{pushed}")).await;
    publish(&server, json!({ "id": "1" })).await;
    let lease = lease(&server, json!({})).await;
    let with = |more: Value| {
        let mut item = held(&lease);
        item.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
        item
    };
    let two = |more: Value| json!({ "leases": [with(json!({ "disposition": "ok" })), with(more)] });
    let long = "x".repeat(20_000);
    for (path, body, status, kind) in [
        ("jobs/leases", json!({ "max": 0 }), 422, "senseless"),
        ("jobs/leases", json!({ "max": 1001 }), 422, "senseless"),
        ("jobs/leases", json!({ "max": -1 }), 400, "bad-request"),
        ("jobs/leases", json!({ "lease": "0s" }), 422, "senseless"),
        ("jobs/leases", json!({ "lease": "2h" }), 422, "senseless"),
        ("jobs/leases", json!({ "lease": 30 }), 400, "bad-request"),
        ("jobs/leases", json!({ "waits": "1s" }), 400, "bad-request"),
        ("jobs/leases", json!([]), 400, "bad-request"),
        ("nowhere/leases", json!({}), 404, "no-such-queue"),
        ("mails/leases", json!({}), 409, "not-pulled"),
        ("mails/leases/settle", json!({ "leases": [] }), 409, "not-pulled"),
        ("jobs/leases/extend", json!({ "leases": [held(&lease)], "lease": "2h" }), 422, "senseless"),
        ("jobs/leases/settle", json!({ "leases": [{ "id": "1", "disposition": "ok" }] }), 400, "bad-request"),
        ("jobs/leases/settle", two(json!({ "disposition": "fine" })), 400, "bad-request"),
        ("jobs/leases/settle", two(json!({ "disposition": "ok", "after": "1s" })), 422, "senseless"),
        ("jobs/leases/settle", two(json!({ "disposition": "ok", "error": {} })), 422, "senseless"),
        ("jobs/leases/settle", two(json!({ "disposition": "retry", "result": "x" })), 422, "senseless"),
        ("jobs/leases/settle", two(json!({ "disposition": "ok", "result": long })), 422, "senseless"),
        (
            "jobs/leases/settle",
            two(json!({ "disposition": "retry", "error": { "kind": "a\nb" } })),
            422,
            "senseless",
        ),
        (
            "jobs/leases/settle",
            json!({ "leases": vec![with(json!({ "disposition": "ok" })); 3] }),
            413,
            "too-many",
        ),
    ] {
        let (is, told) = server.post(&format!("/v1/queues/{path}"), body.clone()).await;
        let told = told["code"].as_str().unwrap_or_default().to_owned();
        assert_eq!((is, told.as_str()), (status, kind), "{path} {body}");
    }
    assert_eq!(settle(&server, &lease, json!({ "disposition": "ok" })).await.1["result"], "applied");
}

#[tokio::test]
async fn a_token_for_a_tenant_consumes_that_tenants_events_alone() {
    let token = |name: &str, secret: &str, rest: &str| {
        format!("[tokens.{name}]\nhash = 'sha256:{}'\nrights = {rest}\n", sha256(secret))
    };
    let all = ["publish", "consume"];
    let tokens = token("shop", "all", &format!("{all:?}"))
        + &token("acme", "acme", "['consume']\ntenant = 'acme'")
        + &token("writer", "writer", "['publish']");
    let server = TestServer::open(&format!("{tokens}{QUEUE}")).await;
    let post = async |token: &str, path: &str, body: Value| {
        answer(
            server.client.post(server.url(&format!("/v1/queues/jobs/{path}"))).bearer_auth(token).json(&body),
        )
        .await
    };
    for tenant in ["", "acme", "other"] {
        assert_eq!(post("all", "events", json!({ "id": "1", "tenant": tenant })).await.0, 202);
    }
    assert_eq!(post("writer", "leases", json!({})).await.1["right"], "consume");
    let (_, mine) = post("acme", "leases", json!({ "max": 10 })).await;
    let (_, others) = post("all", "leases", json!({ "max": 10 })).await;
    let tenants = |told: &Value| -> Vec<String> {
        let leases = told["leases"].as_array().expect("a list").iter();
        leases.map(|lease| lease["tenant"].as_str().expect("a text").to_owned()).collect()
    };
    assert_eq!(
        (tenants(&mine), tenants(&others)),
        (vec!["acme".to_owned()], vec![String::new(), "other".to_owned()])
    );
    for (path, body) in [
        ("leases", json!({ "tenant": "other" })),
        ("leases/settle", json!({ "leases": [with_say(&others["leases"][1])] })),
        ("leases/extend", json!({ "leases": [held(&others["leases"][1])] })),
    ] {
        let (status, told) = post("acme", path, body).await;
        assert_eq!((status, &told["code"]), (403, &json!("other-tenant")), "{path}");
    }
    // Without a tenant in it, an item is about the token's own.
    let mut own = with_say(&mine["leases"][0]);
    own.as_object_mut().expect("an object").remove("tenant");
    let (status, told) = post("acme", "leases/settle", json!({ "leases": [own] })).await;
    assert_eq!((status, &told["results"][0]["tenant"]), (200, &json!("acme")), "{told}");
    let (_, none) = post("all", "leases", json!({ "tenant": "acme" })).await;
    assert_eq!(none["leases"], json!([]));
}

fn with_say(lease: &Value) -> Value {
    let mut item = held(lease);
    item["disposition"] = json!("ok");
    item
}

pub(crate) fn sha256(text: &str) -> String {
    use sha2::{Digest, Sha256};
    Sha256::digest(text.as_bytes()).iter().map(|byte| format!("{byte:02x}")).collect()
}

#[tokio::test]
async fn whose_lease_is_over_hears_that_its_answer_still_counts() {
    let server = TestServer::open(&QUEUE.replace("attempts = 3", "attempts = 1")).await;
    publish(&server, json!({ "id": "1" })).await;
    let late = lease(&server, json!({ "lease": "1ms" })).await;
    // It is checked when a worker asks for events; it had one attempt.
    loop {
        assert_eq!(lease(&server, json!({})).await, Value::Null);
        let (_, told) = server.post("/v1/queues/jobs/events", json!({ "id": "1" })).await;
        if told["first"]["state"] == "dead" {
            break;
        }
    }
    let extend = async || {
        let (status, mut told) =
            server.post("/v1/queues/jobs/leases/extend", json!({ "leases": [held(&late)] })).await;
        (status, told["results"][0].take())
    };
    let (status, told) = extend().await;
    assert_eq!((status, &told["status"], &told["result"]), (207, &json!(409), &json!("lapsed")), "{told}");
    assert_eq!((&told["settle_counts"], &told["now"]["state"]), (&json!(true), &json!("dead")), "{told}");
    let (status, told) = settle(&server, &late, json!({ "disposition": "ok" })).await;
    assert_eq!((status, &told["result"]), (200, &json!("applied")), "{told}");
    let (_, told) = extend().await;
    assert_eq!((&told["result"], &told["settle_counts"]), (&json!("conflict"), &Value::Null), "{told}");
}

#[tokio::test]
async fn who_has_not_done_it_is_not_told_so() {
    let server = TestServer::open(QUEUE).await;
    publish(&server, json!({ "id": "1" })).await;
    let first = lease(&server, json!({})).await;
    assert_eq!(settle(&server, &first, json!({ "disposition": "ok" })).await.0, 200);
    let mut forged = first.clone();
    forged["token"] = json!("a guess");
    let (status, told) = settle(&server, &forged, json!({ "disposition": "ok" })).await;
    assert_eq!((status, &told["status"], &told["result"]), (207, &json!(409), &json!("conflict")), "{told}");
    assert_eq!(settle(&server, &first, json!({ "disposition": "ok" })).await.1["result"], "already");
}
