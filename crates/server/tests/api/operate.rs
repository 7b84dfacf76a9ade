//! Looking at dead letters and dealing with them, over real sockets.

use serde_json::json;

use crate::dead_letters::{die, each, engine, fail, publish, succeed, until};
use crate::test_server::{TestServer, answer};

const QUEUE: &str = "[queues.orders.pull]\n";

#[tokio::test]
async fn letters_of_one_cause_are_a_group_and_fit_filters() {
    let server = TestServer::open(QUEUE).await;
    publish(&server, "orders", "", None, &["order-1", "order-2", "order-3"]).await;
    assert_eq!(die(&server, "orders").await, 3);
    let (status, groups) = server.get("/v1/dead/groups").await;
    let group = &groups["groups"][0];
    assert_eq!((status, &group["letters"], &groups["more"]), (200, &json!(3), &json!(false)));
    assert_eq!(group["title"], "Shop 404: no customer for #");
    let cause = group["cause"].as_str().expect("a cause");

    let (_, page) = server.get(&format!("/v1/events?state=dead&cause={cause}&limit=2")).await;
    assert_eq!(each(&page, "events", "id"), ["order-1", "order-2"]);
    assert_eq!(page["events"][0]["error"]["message"], "no customer for order-1");
    let next = page["next"].as_str().expect("a next page");
    let (_, page) = server.get(&format!("/v1/events?state=dead&cause={cause}&limit=2&after={next}")).await;
    assert_eq!(each(&page, "events", "id"), ["order-3"]);
    assert_eq!(page["next"], json!(null));

    for (query, ids) in [
        ("match=ORDER-2", &["order-2"][..]),
        ("id=order-3", &["order-3"]),
        ("since=1h&attempts_min=1&attempts_max=1&reason=permanent", &["order-1", "order-2", "order-3"]),
        ("before=1h", &[]),
        ("queue=elsewhere", &[]),
    ] {
        let (_, page) = server.get(&format!("/v1/events?state=dead&{query}")).await;
        assert_eq!(each(&page, "events", "id"), ids, "{query}");
    }
}

#[tokio::test]
async fn letters_are_put_together_by_type_and_key() {
    let server = TestServer::open(QUEUE).await;
    publish(&server, "orders", "", Some("customer-3"), &["1", "2"]).await;
    for (id, kind) in [("3", "order.paid"), ("4", "order.paid"), ("5", "order.sent")] {
        let event = json!({ "specversion": "1.0", "id": id, "source": "/shop", "type": kind });
        let request = server.client.post(server.url("/v1/queues/orders/events")).body(event.to_string());
        let request = request.header("content-type", "application/cloudevents+json");
        assert_eq!(answer(request).await.0, 202);
    }
    assert_eq!(die(&server, "orders").await, 5);
    for (by, titles, letters) in
        [("type", &["order.paid", "", "order.sent"][..], [2, 2, 1]), ("key", &["", "customer-3"], [3, 2, 0])]
    {
        let (status, groups) = server.get(&format!("/v1/dead/groups?by={by}&queue=orders")).await;
        let mut found = each(&groups, "groups", "title");
        // Two with the same count are in the order of their last death.
        found.sort_unstable();
        let mut titles = titles.to_vec();
        titles.sort_unstable();
        assert_eq!((status, found), (200, titles), "{groups}");
        let counts: Vec<_> =
            groups["groups"].as_array().expect("a list").iter().map(|it| &it["letters"]).collect();
        assert_eq!(counts, letters.iter().filter(|letters| **letters > 0).collect::<Vec<_>>(), "{groups}");
        assert_eq!(groups["looked"], json!(null), "all were counted");
    }
}

#[tokio::test]
async fn what_is_asked_wrongly_is_told() {
    let server = TestServer::open(&format!("[server]\nbatch_max = 2\n{QUEUE}")).await;
    for path in [
        "/v1/events?stat=dead",
        "/v1/events?state=done",
        "/v1/events?cause=xyz",
        "/v1/events?reason=boredom",
        "/v1/events?since=yesterday",
        "/v1/events?limit=0",
        "/v1/events?limit=100000",
        "/v1/events?after=x",
        "/v1/dead/groups?by=weather",
        "/v1/event?queue=orders",
        "/v1/dead/export?state=dead",
        "/v1/audit?limit=0",
        "/v1/events?id=a&id=b",
        "/v1/queues/orders/events/%FF",
        "/v1/queues/orders/events/a?queue=mails",
        "/v1/queues/orders/events/a?id=b",
        "/v1/lookup?id=a&contents=1",
        "/v1/rules?rule=pausse",
        "/v1/queues/%FF",
    ] {
        let (status, problem) = server.get(path).await;
        assert_eq!((status, &problem["code"]), (400, &json!("bad-request")), "{path}");
    }
    let (status, problem) =
        server.post("/v1/jobs", json!({ "act": "redrive", "filter": { "quue": "orders" } })).await;
    assert_eq!(status, 400, "{problem}");
    // A list of its members' values is no object, although it could be read as one.
    for (path, list) in [
        ("/v1/queues/orders/pause", json!(["1h", false, ""])),
        ("/v1/keys/park", json!(["orders", null, "k", null, ""])),
        ("/v1/rules", json!(["pause", "orders", null, null, null, null, ""])),
        ("/v1/events/kill", json!([[{ "queue": "orders", "id": "a" }], null, false, false])),
    ] {
        let (status, problem) = server.post(path, list).await;
        assert_eq!((status, &problem["code"]), (400, &json!("bad-request")), "{path}");
    }
    let three = vec![json!({ "queue": "orders", "id": "a" }); 3];
    for targets in [vec![], three] {
        let (status, problem) = server.post("/v1/events/kill", json!({ "targets": targets })).await;
        assert_eq!((status, &problem["code"]), (422, &json!("targets")));
    }
}

#[tokio::test]
async fn an_event_is_shown_with_its_story_whatever_its_id() {
    let server =
        TestServer::open("[queues.orders]\norder = \"key\"\nafter_dead = \"park\"\n[queues.orders.pull]\n")
            .await;
    let id = "a/b ö?&#%..";
    publish(&server, "orders", "", Some("k/1"), &[id, "next", ".."]).await;
    assert_eq!(die(&server, "orders").await, 1);
    let (status, shown) =
        server.get("/v1/queues/orders/events/a%2Fb%20%C3%B6%3F%26%23%25..?contents=1").await;
    assert_eq!((status, &shown["id"], &shown["state"]), (200, &json!(id), &json!("dead")), "{shown}");
    assert_eq!(shown["payload"], json!({ "order": id }).to_string());
    assert_eq!((&shown["holds_key"], &shown["history"][0]["attempt"]), (&json!(true), &json!(1)));
    assert_eq!(each(&shown, "behind", "id"), ["next", ".."]);
    let (_, bare) = server.get("/v1/event?queue=orders&id=a%2Fb%20%C3%B6%3F%26%23%25..").await;
    assert_eq!((&bare["id"], &bare["payload"]), (&json!(id), &json!(null)));
    let (status, dots) = server.get("/v1/event?queue=orders&id=..").await;
    assert_eq!((status, &dots["id"], &dots["state"]), (200, &json!(".."), &json!("parked")));
    let (status, _) = server.get("/v1/event?queue=orders&id=never").await;
    assert_eq!(status, 404);
    let (_, found) = server.get("/v1/lookup?id=next").await;
    assert_eq!(each(&found, "events", "queue"), ["orders"]);
}

#[tokio::test]
async fn an_id_is_found_in_every_queue_that_has_it() {
    let server = TestServer::open("[queues.orders.pull]\n[queues.mails.pull]\n").await;
    publish(&server, "orders", "", None, &["1"]).await;
    publish(&server, "mails", "nobody-knows", None, &["1", "2"]).await;
    let (_, found) = server.get("/v1/lookup?id=1").await;
    assert_eq!(
        each(&found, "events", "queue"),
        ["orders", "mails"],
        "of a tenant that no setting names, too"
    );
    let (_, found) = server.get("/v1/lookup?id=2").await;
    assert_eq!(each(&found, "events", "tenant"), ["nobody-knows"]);
    let (_, found) = server.get("/v1/lookup?id=1&queue=mails").await;
    assert_eq!(each(&found, "events", "tenant"), ["nobody-knows"]);
    die(&server, "mails").await;
    let (_, found) = server.get("/v1/lookup?id=1").await;
    assert_eq!(each(&found, "events", "queue"), ["orders", "mails"]);
    let (_, none) = server.get("/v1/lookup?id=3").await;
    assert_eq!((&none["events"], &none["complete"]), (&json!([]), &json!(true)));
}

#[tokio::test]
async fn each_target_of_an_order_is_changed_or_says_why_not() {
    let server = TestServer::open(QUEUE).await;
    publish(&server, "orders", "", None, &["a", "b"]).await;
    die(&server, "orders").await;
    let named = |id: &str| json!({ "queue": "orders", "id": id });
    let mut stale = named("b");
    stale["rev"] = 77.into();
    let order = json!({ "targets": [named("a"), stale, named("c")] });
    let (status, done) = server.post("/v1/events/redrive", order).await;
    assert_eq!((status, &done["changed"]), (207, &json!(1)), "{done}");
    assert_eq!(each(&done, "refused", "reason"), ["changed", "not-found"]);
    assert_eq!(each(&done, "refused", "id"), ["b", "c"]);
    assert_eq!(succeed(&server, "orders").await, 1);

    let (status, done) = server.post("/v1/events/discard", json!({ "targets": [named("b")] })).await;
    assert_eq!((status, &done["changed"]), (200, &json!(1)));
    let (_, gone) = server.get("/v1/events?state=discarded").await;
    assert_eq!(each(&gone, "events", "id"), ["b"]);
    let (status, _) = server.post("/v1/queues/orders/events/b/restore", json!({})).await;
    assert_eq!(status, 200);
    let (status, problem) = server.post("/v1/queues/orders/events/b/restore", json!({})).await;
    assert_eq!((status, &problem["detail"]), (409, &json!("it is dead")));
    let (status, _) = server.post("/v1/queues/orders/events/zz/kill", json!({})).await;
    assert_eq!(status, 404);
    let (status, _) = server.post("/v1/events/kill", json!({ "targets": [named("b")], "to": "x" })).await;
    assert_eq!(status, 400);
}

#[tokio::test]
async fn what_waits_is_made_due_or_killed() {
    let server = TestServer::open(QUEUE).await;
    for id in ["a", "b"] {
        let event = redrive::Event::new("orders", id).delay(std::time::Duration::from_secs(3600));
        engine(&server).publish(event).await.expect("it is kept");
    }
    assert_eq!(each(&server.get("/v1/events?state=waiting").await.1, "events", "id"), ["a", "b"]);
    let (status, done) = server.post("/v1/queues/orders/events/a/retry-now", json!({})).await;
    assert_eq!((status, &done["changed"]), (200, &json!(1)));
    assert_eq!(succeed(&server, "orders").await, 1);
    // An order by address needs no body at all.
    let (status, _) = answer(server.client.post(server.url("/v1/queues/orders/events/b/kill"))).await;
    assert_eq!(status, 200);
    let (_, dead) = server.get("/v1/events?state=dead").await;
    assert_eq!((each(&dead, "events", "id"), each(&dead, "events", "reason")), (vec!["b"], vec!["killed"]));
}

#[tokio::test]
async fn an_edit_has_to_be_switched_on_and_makes_one_new_event() {
    let mut server = TestServer::open(QUEUE).await;
    publish(&server, "orders", "", None, &["a"]).await;
    die(&server, "orders").await;
    let edit = json!({ "payload": { "mended": true } });
    let (status, problem) = server.post("/v1/queues/orders/events/a/edit", edit.clone()).await;
    assert_eq!((status, &problem["code"]), (403, &json!("edit-off")));
    server.stop().await;

    server.settings_are(&format!("[server]\nedit = true\n{QUEUE}"));
    server.start().await;
    let (_, shown) = server.get("/v1/queues/orders/events/a").await;
    for (name, value) in
        [("Redrive-Id", "x"), ("authorization", "Bearer x"), ("webhook-id", "x"), ("x-a", "b\r\nhost: evil")]
    {
        let not_its_own = json!({ "headers": { name: value } });
        assert_eq!(server.post("/v1/queues/orders/events/a/edit", not_its_own).await.0, 400, "{name}");
    }
    let (status, done) = server.post("/v1/queues/orders/events/a/edit", edit.clone()).await;
    let id = format!("a.edit{}", shown["rev"]);
    assert_eq!((status, &done["id"], &done["unsure"]), (200, &json!(id), &json!(false)), "{done}");
    let (status, again) = server.post("/v1/queues/orders/events/a/edit", edit).await;
    assert_eq!(status, 409, "{again}");
    let (_, new) = server.get(&format!("/v1/queues/orders/events/{id}?contents=1")).await;
    assert_eq!((&new["payload"], &new["causation"]), (&json!("{\"mended\":true}"), &json!("a")));
    assert_eq!(succeed(&server, "orders").await, 1);
}

#[tokio::test]
async fn a_job_is_planned_started_and_done() {
    let server = TestServer::open(QUEUE).await;
    let ids: Vec<String> = (0..30).map(|number| format!("order-{number}")).collect();
    let ids: Vec<&str> = ids.iter().map(String::as_str).collect();
    publish(&server, "orders", "", None, &ids).await;
    assert_eq!(die(&server, "orders").await, 30);
    let wanted = json!({ "act": "redrive", "filter": { "queue": "orders" }, "rate": 10.0, "ramp": "2s" });
    let (status, plan) = server.post("/v1/jobs/plan", wanted).await;
    assert_eq!((status, &plan["letters"], &plan["time"]), (200, &json!(30), &json!("4s")), "{plan}");

    let (status, problem) = server.post("/v1/jobs", json!({ "act": "redrive" })).await;
    assert_eq!((status, &problem["code"]), (422, &json!("say-yes")));
    assert_eq!(problem["plan"]["letters"], 30);
    let (status, job) = server.post("/v1/jobs", json!({ "act": "redrive", "yes": true, "canary": 2 })).await;
    assert_eq!((status, &job["state"], &job["planned"]), (202, &json!("running"), &json!(30)), "{job}");
    let path = format!("/v1/jobs/{}", job["id"]);
    until(&server, &path, |job| job["taken"] == 2).await;
    assert_eq!(succeed(&server, "orders").await, 2, "the canary alone");
    until(&server, &path, |job| job["taken"] == 30).await;
    assert_eq!(succeed(&server, "orders").await, 28);
    let job = until(&server, &path, |job| job["state"] == "done").await;
    assert_eq!((&job["done"], &job["failed"]), (&json!(30), &json!(0)));
    assert_eq!(server.get("/v1/jobs").await.1["jobs"][0]["id"], job["id"]);
}

#[tokio::test]
async fn a_job_is_paused_goes_on_and_is_cancelled() {
    let server = TestServer::open(QUEUE).await;
    publish(&server, "orders", "", None, &["a", "b"]).await;
    die(&server, "orders").await;
    let wanted = json!({ "act": "discard", "filter": { "queue": "orders" }, "rate": 0.001 });
    let (_, job) = server.post("/v1/jobs", wanted).await;
    let path = |verb: &str| format!("/v1/jobs/{}/{verb}", job["id"]);
    for (verb, state) in [("pause", "paused"), ("resume", "running"), ("cancel", "cancelled")] {
        let (status, job) = server.post(&path(verb), json!({})).await;
        assert_eq!((status, &job["state"]), (200, &json!(state)));
    }
    let (status, problem) = server.post(&path("resume"), json!({})).await;
    assert_eq!((status, &problem["detail"]), (409, &json!("the job is cancelled")));
    assert_eq!(server.get("/v1/jobs/99").await.0, 404);
    assert_eq!(server.get("/v1/jobs/x").await.0, 404);
}

#[tokio::test]
async fn letters_go_out_and_come_in_as_lines() {
    let server = TestServer::open(QUEUE).await;
    publish(&server, "orders", "", None, &["a", "b", "c"]).await;
    die(&server, "orders").await;
    let lines = server.client.get(server.url("/v1/dead/export")).send().await.expect("an answer");
    assert_eq!(lines.headers()["content-type"], "application/x-ndjson");
    let lines = lines.text().await.expect("lines");
    assert_eq!(lines.lines().count(), 3);
    let page = server.client.get(server.url("/v1/dead/export?limit=2")).send().await.expect("an answer");
    assert_eq!(page.headers()["redrive-damaged"], "0");
    let next = page.headers()["redrive-next"].to_str().expect("text").to_owned();
    let first = page.text().await.expect("lines");
    let rest = server.client.get(server.url(&format!("/v1/dead/export?limit=2&after={next}")));
    let rest = rest.send().await.expect("an answer");
    assert!(rest.headers().get("redrive-next").is_none());
    assert_eq!(first + &rest.text().await.expect("lines"), lines);

    let other = TestServer::open(QUEUE).await;
    let import = |lines: String| answer(other.client.post(other.url("/v1/dead/import")).body(lines));
    let (status, done) = import(lines.clone()).await;
    assert_eq!((status, &done["changed"]), (200, &json!(3)), "{done}");
    let (_, again) = import(lines.clone()).await;
    assert_eq!((&again["changed"], again["refused"].as_array().map(Vec::len)), (&json!(0), Some(3)));
    let (status, problem) = import(format!("{lines}\nnonsense\n")).await;
    assert_eq!((status, &problem["line"]), (422, &json!(5)), "{problem}");
}

/// More of them than are read at once.
#[tokio::test]
async fn a_stream_of_letters_goes_on_to_its_end() {
    let server = TestServer::open(QUEUE).await;
    let ids: Vec<String> = (0..130).map(|number| format!("order-{number:03}")).collect();
    publish(&server, "orders", "", None, &ids.iter().map(String::as_str).collect::<Vec<_>>()).await;
    assert_eq!(die(&server, "orders").await, 130);
    let lines =
        server.client.get(server.url("/v1/dead/export?queue=orders")).send().await.expect("an answer");
    let lines = lines.text().await.expect("lines");
    let id = |line: &str| {
        serde_json::from_str::<serde_json::Value>(line).expect("JSON")["id"].as_str().map(str::to_owned)
    };
    assert_eq!(lines.lines().filter_map(id).collect::<Vec<_>>(), ids);
}

/// However many are asked for: a page of large ones is short, and says where the next begins.
#[tokio::test]
async fn a_page_of_large_events_is_short() {
    let server = TestServer::open("[queues.orders.pull]\n").await;
    for id in 0..7 {
        let event = json!({ "id": id.to_string(), "payload": "x".repeat(900_000) });
        assert_eq!(server.post("/v1/queues/orders/events", event).await.0, 202);
    }
    let (_, page) = server.get("/v1/events?limit=1000").await;
    assert_eq!(page["events"].as_array().map(Vec::len), Some(5), "4 MiB, and the one that goes over");
    let next = page["next"].as_str().expect("there are more");
    let (_, page) = server.get(&format!("/v1/events?limit=1000&after={next}")).await;
    assert_eq!((page["events"].as_array().map(Vec::len), &page["next"]), (Some(2), &serde_json::Value::Null));
}

#[tokio::test]
async fn what_fails_is_grouped_for_the_tenant_that_is_asked_for() {
    let hour =
        "[queues.orders.policy]\njitter = \"none\"\nbackoff.constant.delay = \"1h\"\n[queues.orders.pull]\n";
    let server = TestServer::open(hour).await;
    publish(&server, "orders", "", None, &["1"]).await;
    publish(&server, "orders", "acme", None, &["2"]).await;
    fail(&server, "orders").await;
    let (status, all) = server.get("/v1/failing/groups").await;
    assert_eq!((status, &all["groups"][0]["events"], &all["more"]), (200, &json!(2), &json!(false)), "{all}");
    let (_, own) = server.get("/v1/failing/groups?tenant=acme").await;
    assert_eq!(own["groups"][0]["events"], 1);
    let (status, problem) = server.post("/v1/jobs", json!({ "act": "retry-now" })).await;
    assert_eq!((status, &problem["code"]), (422, &json!("say-yes")));
    assert_eq!(problem["plan"]["letters"], 2);
    let redrive = json!({ "act": "retry-now", "to": "orders", "yes": true });
    assert_eq!(server.post("/v1/jobs", redrive).await.0, 400, "it changes when they run, and not where");
}
