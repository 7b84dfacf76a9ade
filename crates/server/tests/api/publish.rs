//! Publishing, over real sockets.

use serde_json::json;

use crate::test_server::{TestServer, answer};

const QUEUE: &str = "[queues.orders.pull]\n";

#[tokio::test]
async fn an_event_is_accepted_once_and_then_a_duplicate() {
    let mut server = TestServer::open(QUEUE).await;
    let event = json!({ "id": "order-1", "payload": { "cabins": 2 } });
    let (status, accepted) = server.post("/v1/queues/orders/events", event.clone()).await;
    assert_eq!((status, &accepted["result"]), (202, &json!("accepted")));
    server.stop().await;
    server.start().await;
    let (status, again) = server.post("/v1/queues/orders/events", event).await;
    assert_eq!((status, &again["result"]), (202, &json!("duplicate")));
    assert_eq!(again["first"]["state"], json!("ready"));
}

#[tokio::test]
async fn a_time_further_away_than_can_be_written_is_the_last_one_that_can() {
    let mut server = TestServer::open(QUEUE).await;
    for (id, when) in [
        ("at", json!({ "at": "9999-12-31T23:59:59Z" })),
        ("delay", json!({ "delay": "500000000000years" })),
        ("expires", json!({ "delay": "1h", "expires_after": "500000000000years" })),
        ("expires_at", json!({ "delay": "1h", "expires_at": "9999-12-31T23:59:59Z" })),
    ] {
        let mut event = when;
        event["id"] = id.into();
        let (status, told) = server.post("/v1/queues/orders/events", event.clone()).await;
        assert_eq!((status, &told["result"]), (202, &json!("accepted")), "{id}: {told}");
        let (status, told) = server.post("/v1/queues/orders/events", event).await;
        assert_eq!((status, &told["result"]), (202, &json!("duplicate")), "{id}: {told}");
    }
    let (status, rule) = server.post("/v1/queues/orders/pause", json!({ "for": "500000000000years" })).await;
    assert_eq!(status, 200, "{rule}");
    let last = |value: &serde_json::Value| value.as_str().is_some_and(|text| text.starts_with("2554-07-21T"));
    for _ in 0..2 {
        for id in ["at", "delay"] {
            let (status, shown) = server.get(&format!("/v1/queues/orders/events/{id}")).await;
            assert!(status == 200 && last(&shown["due"]), "{id}: {shown}");
        }
        let (status, rules) = server.get("/v1/rules").await;
        assert!(status == 200 && last(&rules["rules"][0]["until"]), "{rules}");
        server.stop().await;
        server.start().await;
    }
}

#[tokio::test]
async fn the_same_id_with_another_payload_is_a_problem() {
    let server = TestServer::open(QUEUE).await;
    server.post("/v1/queues/orders/events", json!({ "id": "order-1", "payload": 1 })).await;
    let (status, problem) =
        server.post("/v1/queues/orders/events", json!({ "id": "order-1", "payload": 2 })).await;
    assert_eq!((status, &problem["code"]), (422, &json!("id-reused")));
}

#[tokio::test]
async fn each_event_of_a_batch_has_its_answer() {
    let server = TestServer::open(QUEUE).await;
    let events = json!({ "events": [{ "id": "a" }, { "payload": 1 }, { "id": "a" }, { "id": "b" }] });
    let (status, answer) = server.post("/v1/queues/orders/events", events).await;
    assert_eq!(status, 207);
    let results: Vec<_> =
        answer["results"].as_array().expect("a list").iter().map(|r| &r["result"]).collect();
    assert_eq!(results, ["accepted", "refused", "duplicate", "accepted"]);
}

/// What each of a batch is told: its id, what became of it, and the status of its problem.
fn told(answer: &serde_json::Value) -> Vec<(Option<&str>, &str, Option<u64>)> {
    let results = answer["results"].as_array().unwrap_or_else(|| panic!("results in {answer}"));
    let told = |one| {
        let one: &serde_json::Value = one;
        (one["id"].as_str(), one["result"].as_str().unwrap_or_default(), one["problem"]["status"].as_u64())
    };
    results.iter().map(told).collect()
}

#[tokio::test]
async fn what_cannot_be_read_of_a_batch_is_refused_alone_and_says_which_it_is() {
    let server = TestServer::open(QUEUE).await;
    let long = "x".repeat(300);
    let items = [
        r#"{"id":"a"}"#,
        r#"{"id":"b","paylaod":1}"#,
        r#"{"id":7}"#,
        r#"["c"]"#,
        r#"{"id":"d","payload":1,"payload_base64":"AA=="}"#,
        &format!(r#"{{"id":"{long}"}}"#),
        &format!(r#"{{"id":"{long}","x":1}}"#),
    ];
    let expected = [
        (Some("a"), "accepted", None),
        (Some("b"), "refused", Some(400)),
        (None, "refused", Some(400)),
        (None, "refused", Some(400)),
        (Some("d"), "refused", Some(422)),
        (None, "refused", Some(422)),
        (None, "refused", Some(400)),
    ];
    let send = async |kind: &str, body: String| {
        let request = server.client.post(server.url("/v1/queues/orders/events")).header("content-type", kind);
        answer(request.body(body)).await
    };
    // The last line is cut off.
    let lines = format!("{}\n{{\"id\":\"cut", items.join("\n"));
    let (status, answer) = send("application/x-ndjson", lines).await;
    assert_eq!(status, 207, "{answer}");
    let cut = (None, "refused", Some(400));
    assert_eq!(told(&answer), [&expected[..], &[cut]].concat());
    let detail = answer["results"][1]["problem"]["detail"].as_str().expect("a detail");
    assert!(detail.starts_with("line 2 is not an event: unknown field `paylaod`"), "{detail}");
    let (status, answer) = send("application/json", format!("{{\"events\":[{}]}}", items.join(","))).await;
    assert_eq!(status, 207, "{answer}");
    let again = (Some("a"), "duplicate", None);
    assert_eq!(told(&answer), [&[again], &expected[1..]].concat());
    // A document that is none as a whole has no parts.
    assert_eq!(send("application/json", "{\"events\":[{\"id\":\"e\"}".to_owned()).await.0, 400);
    assert_eq!(send("application/json", "{\"events\":[{\"id\":\"e\"}],\"x\":1}".to_owned()).await.0, 400);
}

#[tokio::test]
async fn what_would_never_run_is_refused_unless_it_is_known() {
    let server = TestServer::open(QUEUE).await;
    let publish = async |event| server.post("/v1/queues/orders/events", event).await;
    for (id, when) in
        [("a", json!({ "expires_at": "2020-01-31T12:00:00Z" })), ("b", json!({ "expires_after": "0s" }))]
    {
        let mut event = when;
        event["id"] = id.into();
        let (status, problem) = publish(event.clone()).await;
        assert_eq!((status, &problem["code"]), (422, &json!("expired")), "{problem}");
        assert_eq!(
            server.get(&format!("/v1/queues/orders/events/{id}")).await.0,
            404,
            "nothing is kept of it"
        );
        // Under an id that is known, the first one's fate is told: its publisher may have lost the answer.
        assert_eq!(publish(json!({ "id": id })).await.0, 202);
        let (status, told) = publish(event).await;
        assert_eq!((status, &told["result"]), (202, &json!("duplicate")), "{told}");
    }
    let (status, problem) =
        publish(json!({ "id": "a", "payload": 1, "expires_at": "2020-01-31T12:00:00Z" })).await;
    assert_eq!((status, &problem["code"]), (422, &json!("id-reused")), "{problem}");
    assert_eq!(publish(json!({ "id": "c", "expires_after": "1h" })).await.0, 202);
}

#[tokio::test]
async fn lines_and_bodies_as_they_are_can_be_published() {
    let server = TestServer::open(QUEUE).await;
    let url = server.url("/v1/queues/orders/events");
    let lines = server.client.post(&url).header("content-type", "application/x-ndjson");
    let (status, told) = answer(lines.body("{\"id\":\"a\"}\n\n{\"id\":\"b\",\"payload\":[1]}\n")).await;
    assert_eq!((status, told["results"].as_array().map(Vec::len)), (202, Some(2)));
    let raw = server.client.post(&url).header("redrive-id", "c").header("content-type", "text/plain");
    let (status, told) = answer(raw.body("as it is")).await;
    assert_eq!((status, &told["result"]), (202, &json!("accepted")));
}

#[tokio::test]
async fn a_queue_that_is_not_there_is_told() {
    let server = TestServer::open(QUEUE).await;
    let (status, problem) = server.post("/v1/queues/order/events", json!({ "id": "a" })).await;
    assert_eq!((status, &problem["code"]), (404, &json!("no-such-queue")));
}

#[tokio::test]
async fn a_tenant_over_its_quota_is_told_when_to_come_again() {
    let server =
        TestServer::open(&format!("[tenants.acme]\nrate = {{ per_second = 0.1, burst = 1 }}\n{QUEUE}")).await;
    let event = |id: &str| json!({ "id": id, "tenant": "acme" });
    assert_eq!(server.post("/v1/queues/orders/events", event("a")).await.0, 202);
    let request = server.client.post(server.url("/v1/queues/orders/events")).json(&event("b"));
    let response = request.send().await.expect("an answer");
    assert_eq!(response.status(), 429);
    let wait: u64 = response.headers()["retry-after"].to_str().unwrap().parse().expect("seconds");
    assert!((9..=10).contains(&wait), "{wait}");
    assert_eq!(server.post("/v1/queues/orders/events", json!({ "id": "a", "tenant": "other" })).await.0, 202);
}

#[tokio::test]
async fn a_batch_that_is_over_one_tenants_quota_costs_the_others_nothing() {
    let rate = "rate = { per_second = 0.01, burst = 1 }";
    let server = TestServer::open(&format!("[tenants.a]\n{rate}\n[tenants.b]\n{rate}\n{QUEUE}")).await;
    let event = |id: &str, tenant: &str| json!({ "id": id, "tenant": tenant });
    let publish = async |body| server.post("/v1/queues/orders/events", body).await.0;
    assert_eq!(publish(event("1", "b")).await, 202);
    assert_eq!(publish(json!({ "events": [event("2", "a"), event("2", "b")] })).await, 429);
    assert_eq!(publish(event("3", "a")).await, 202);
    assert_eq!(publish(event("4", "a")).await, 429);
}

#[tokio::test]
async fn without_its_token_nothing_is_told() {
    let hash = "sha256:d0c04f4b1951e4aeaaec8223ed2039e542f3aae805a6fa7f6d794e5afff5d272";
    let tokens =
        format!("[tokens.shop]\nhash = \"{hash}\"\nrights = [\"publish\"]\ntenant = \"acme\"\n{QUEUE}");
    let server = TestServer::open(&tokens).await;
    let (status, problem) = server.post("/v1/queues/orders/events", json!({ "id": "a" })).await;
    assert_eq!((status, &problem["code"]), (401, &json!("unauthorized")));
    let post =
        |event| server.client.post(server.url("/v1/queues/orders/events")).bearer_auth("sesame").json(&event);
    assert_eq!(answer(post(json!({ "id": "a" }))).await.0, 202);
    assert_eq!(answer(post(json!({ "id": "b", "tenant": "other" }))).await.1["code"], "other-tenant");
}

#[tokio::test]
async fn what_would_mean_nothing_is_refused() {
    let server = TestServer::open(QUEUE).await;
    let misspelt = server.client.post(server.url("/v1/queues/orders/events")).header("redrive-id", "a");
    let (status, problem) = answer(misspelt.header("redrive-dely", "1h").body("now")).await;
    assert_eq!(status, 400, "{problem}");
    let never = json!({ "id": "b", "policy": { "attempts": 0 } });
    assert_eq!(server.post("/v1/queues/orders/events", never).await.0, 422);
}

/// The page's own example of a policy, and the limit that it names.
#[tokio::test]
async fn a_policy_and_a_payload_are_as_the_page_says() {
    let server = TestServer::open(QUEUE).await;
    let page = include_str!("../../../../docs/guides/publishing.md");
    let mut examples = page.split("```json\n").skip(1).filter_map(|rest| rest.split("```").next());
    let example = examples.find(|example| example.contains("\"policy\"")).expect("an example");
    let example: serde_json::Value = serde_json::from_str(example).expect("JSON");
    let (status, told) = server.post("/v1/queues/orders/events", example).await;
    assert_eq!(status, 202, "{told}");
    for (more, status) in [(0, 202), (1, 422)] {
        let id = more.to_string();
        let request = server.client.post(server.url("/v1/queues/orders/events")).header("redrive-id", &id);
        let (is, told) = answer(request.body(vec![0; (1 << 20) + more])).await;
        assert_eq!(is, status, "{told}");
    }
}

#[tokio::test]
async fn no_cache_may_store_a_response() {
    let server = TestServer::open("[queues.orders.pull]\n").await;
    for path in ["/v1/events", "/v1/secrets", "/metrics", "/v1/nothing"] {
        let answer = server.client.get(server.url(path)).send().await.expect("an answer");
        assert_eq!(answer.headers()["cache-control"], "no-store", "{path}");
    }
}

#[tokio::test]
async fn a_token_that_makes_up_tenants_is_refused_and_keeps_those_it_has() {
    let server = TestServer::open("[server]\nstreams_max = 3\n[queues.orders.pull]\n").await;
    let publish = async |tenant: &str, id: &str| {
        server.post("/v1/queues/orders/events", json!({ "id": id, "tenant": tenant })).await
    };
    for tenant in ["a", "b", "c"] {
        assert_eq!(publish(tenant, "1").await.0, 202);
    }
    let (status, problem) = publish("d", "1").await;
    assert_eq!((status, &problem["code"]), (429, &json!("too-many-streams")));
    assert_eq!(publish("a", "2").await.0, 202);
}
