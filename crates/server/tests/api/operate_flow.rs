//! Holding back and letting go, and who did what, over real sockets.

use serde_json::json;

use crate::dead_letters::{die, each, engine, publish, succeed};
use crate::test_server::TestServer;

const ORDERED: &str = "[queues.orders]\norder = \"key\"\nafter_dead = \"park\"\n[queues.orders.pull]\n";

#[tokio::test]
async fn a_paused_queue_starts_nothing_until_it_is_resumed() {
    let server = TestServer::open("[queues.orders.pull]\n").await;
    publish(&server, "orders", "", None, &["a"]).await;
    let pause = json!({ "for": "1h", "why": "the shop is closed" });
    let (status, rule) = server.post("/v1/queues/orders/pause", pause).await;
    assert_eq!((status, &rule["rule"], &rule["why"]), (200, &json!("pause"), &json!("the shop is closed")));
    assert!(rule["until"].is_string());
    assert_eq!(succeed(&server, "orders").await, 0);
    let (_, queue) = server.get("/v1/queues/orders").await;
    assert_eq!((&queue["delivery"], &queue["events"]["ready"]), (&json!("pull"), &json!(1)));
    assert_eq!(each(&queue, "rules", "rule"), ["pause"]);
    assert_eq!(server.post("/v1/queues/orders/resume", json!({})).await.0, 200);
    assert_eq!(server.post("/v1/queues/orders/resume", json!({})).await.0, 404, "it is not paused");
    assert_eq!(succeed(&server, "orders").await, 1);
    let (_, rule) = server.post("/v1/queues/orders/pause", json!({ "retries": true })).await;
    assert_eq!(rule["rule"], "pause-retries");
    assert_eq!(server.post("/v1/queues/nowhere/pause", json!({})).await.0, 404);
    assert_eq!(each(&server.get("/v1/queues").await.1, "queues", "queue"), ["orders"]);
    assert_eq!(server.get("/v1/queues/nowhere").await.0, 404);
    server.post("/v1/queues/orders/pause", json!({})).await;
    let (_, first) = server.get("/v1/rules?limit=1").await;
    assert_eq!((first["rules"].as_array().map(Vec::len), &first["next"]), (Some(1), &json!(1)));
    let (_, rest) = server.get("/v1/rules?limit=1&after=1").await;
    assert_eq!((rest["rules"].as_array().map(Vec::len), &rest["next"]), (Some(1), &json!(null)));
    assert_ne!(first["rules"][0]["rule"], rest["rules"][0]["rule"]);
}

#[tokio::test]
async fn a_key_is_shown_parked_and_let_go() {
    let server = TestServer::open(ORDERED).await;
    publish(&server, "orders", "", Some("k/ö"), &["a", "b", "c"]).await;
    assert_eq!(die(&server, "orders").await, 1);
    let key = json!({ "queue": "orders", "key": "k/ö" });
    let show = "/v1/keys?queue=orders&key=k%2F%C3%B6";
    let (_, shown) = server.get(show).await;
    assert_eq!((each(&shown, "events", "id"), &shown["held_by_dead"]), (vec!["a", "b", "c"], &json!(true)));
    assert_eq!(server.post("/v1/keys/skip-head", key.clone()).await.0, 200);
    assert_eq!(server.post("/v1/keys/skip-head", key.clone()).await.0, 409, "nothing is at its head");
    let (_, shown) = server.get(show).await;
    assert_eq!(shown["held_by_dead"], false);

    let mut park = key.clone();
    park["why"] = "a customer calls".into();
    assert_eq!(server.post("/v1/keys/park", park).await.1["rule"], "park-key");
    assert_eq!(succeed(&server, "orders").await, 0);
    assert_eq!(each(&server.get(show).await.1, "rules", "why"), ["a customer calls"]);
    assert_eq!(server.post("/v1/keys/unpark", key).await.0, 200);
    assert_eq!(succeed(&server, "orders").await, 2);
}

#[tokio::test]
async fn tenants_and_keys_are_held_in_quarantine() {
    let server = TestServer::open(ORDERED).await;
    publish(&server, "orders", "acme", Some("k"), &["a"]).await;
    publish(&server, "orders", "", Some("k"), &["b"]).await;
    let tenant = json!({ "rule": "quarantine-tenant", "tenant": "acme" });
    let key = json!({ "rule": "quarantine-key", "queue": "orders", "key": "k", "tenant": "" });
    for rule in [&tenant, &key] {
        assert_eq!(server.post("/v1/rules", rule.clone()).await.0, 200);
    }
    assert_eq!(succeed(&server, "orders").await, 0);
    let (_, held) = server.get("/v1/events?state=quarantined").await;
    let mut ids = each(&held, "events", "id");
    ids.sort_unstable();
    assert_eq!(ids, ["a", "b"]);
    assert_eq!(each(&server.get("/v1/rules?rule=quarantine-key").await.1, "rules", "key"), ["k"]);
    for rule in [tenant, key] {
        assert_eq!(server.post("/v1/rules/lift", rule.clone()).await.0, 200);
        assert_eq!(server.post("/v1/rules/lift", rule).await.0, 404);
    }
    assert_eq!(succeed(&server, "orders").await, 2);
    for wrong in [
        json!({ "rule": "quarantine-tenant" }),
        json!({ "rule": "quarantine-tenant", "tenant": "a", "quue": "orders" }),
        json!({ "rule": "quarantine-key", "queue": "orders" }),
        json!({ "rule": "pause", "queue": "orders", "key": "k" }),
        json!({ "rule": "punish", "queue": "orders" }),
    ] {
        assert_eq!(server.post("/v1/rules", wrong.clone()).await.0, 400, "{wrong}");
    }
}

#[tokio::test]
async fn a_queue_is_rerouted_and_sent_back() {
    let server = TestServer::open("[push]\nallow = [\"127.0.0.0/8\"]\n[queues.a.push]\nurl = \"http://127.0.0.1:9/\"\n[queues.b.push]\nurl = \"http://127.0.0.1:9/\"\n[queues.c.pull]\n").await;
    let (status, rule) = server.post("/v1/queues/a/reroute", json!({ "to": "b", "for": "10m" })).await;
    assert_eq!((status, &rule["to"]), (200, &json!("b")), "{rule}");
    let (status, problem) = server.post("/v1/queues/a/reroute", json!({ "to": "c" })).await;
    assert_eq!((status, &problem["code"]), (422, &json!("senseless")));
    assert_eq!(server.post("/v1/queues/a/reroute", json!({ "to": null })).await.0, 200);
    assert_eq!(server.post("/v1/queues/a/reroute", json!({ "to": null })).await.0, 404);
}

#[tokio::test]
async fn who_did_what_is_told_page_by_page() {
    let server = TestServer::open("[queues.orders.pull]\n").await;
    for _ in 0..2 {
        server.post("/v1/queues/orders/pause", json!({ "why": "a test" })).await;
        server.post("/v1/queues/orders/resume", json!({})).await;
    }
    let (_, page) = server.get("/v1/audit?limit=3").await;
    assert_eq!(each(&page, "lines", "verb"), ["lift", "pause", "lift"]);
    let line = &page["lines"][1];
    assert_eq!(
        (&line["who"], &line["from"], &line["note"]),
        (&json!("local"), &json!("127.0.0.1"), &json!("a test"))
    );
    let (_, rest) = server.get(&format!("/v1/audit?limit=3&before={}", page["next"])).await;
    assert_eq!((each(&rest, "lines", "verb"), &rest["next"]), (vec!["pause"], &json!(null)));
    let lines = server.client.get(server.url("/v1/audit/export")).send().await.expect("an answer");
    let lines = lines.text().await.expect("lines");
    assert_eq!(lines.lines().count(), 4);
    assert!(lines.lines().all(|line| serde_json::from_str::<serde_json::Value>(line).is_ok()));
    assert!(engine(&server).counts().await.is_ok());
}
