//! What the outside sees: metrics, and whether the server can be sent work.

use std::time::{Duration, Instant};

use redrive::{Failure, Reply};
use redrive_server::config::Config;
use redrive_server::serve::Server;
use redrive_testkit::postgres::{self, Proxy, Weather, a_name};
use serde_json::json;

use crate::test_server::{TestServer, answer};

const QUEUE: &str = "[queues.orders.pull]\n[queues.orders.policy]\nattempts = 1\n";
/// How often a server is probed: on a loaded machine one answer or another comes late for other reasons.
const PROBES: usize = 5;
/// The hash of `secret`.
const HASH: &str = "sha256:d0c04f4b1951e4aeaaec8223ed2039e542f3aae805a6fa7f6d794e5afff5d272";

pub(crate) async fn scrape(server: &TestServer) -> String {
    server.client.get(server.url("/metrics")).send().await.expect("an answer").text().await.expect("a body")
}

/// A server's own lines: the counters are everybody's in this process.
#[tokio::test]
async fn events_are_shown_by_state_and_age() {
    let server = TestServer::open(QUEUE).await;
    for id in ["a", "b", "c"] {
        server.post("/v1/queues/orders/events", json!({ "id": id })).await;
    }
    let redrive = server.server.as_ref().expect("it runs").app().redrive.clone();
    let minute = Duration::from_secs(60);
    let lease = redrive.lease("orders", 1, minute).await.expect("a lease").remove(0);
    let refused = Failure::permanent_text("card refused");
    redrive.settle(vec![(lease.held(), Reply::from(refused))]).await.expect("settled");
    let _held = redrive.lease("orders", 1, minute).await.expect("a lease").remove(0);
    let text = scrape(&server).await;
    for line in [
        "redrive_events{queue=\"orders\",state=\"dead\"} 1",
        "redrive_events{queue=\"orders\",state=\"running\"} 1",
        "redrive_events{queue=\"orders\",state=\"ready\"} 1",
        "# TYPE redrive_sync_seconds histogram",
        "redrive_dead_total{queue=\"orders\",reason=\"permanent\"}",
        "redrive_http_requests_total{route=\"/v1/queues/{queue}/events\",method=\"POST\",status=\"202\"}",
    ] {
        assert!(text.contains(line), "{line}\n{text}");
    }
    let value = |name: &str| {
        let line = text.lines().find(|line| line.starts_with(name)).unwrap_or_else(|| panic!("{name}"));
        line.rsplit(' ').next().and_then(|value| value.parse::<f64>().ok()).expect("a number")
    };
    assert!(value("redrive_oldest_due_seconds{queue=\"orders\"}") > 0.0);
    assert!(value("redrive_commits_total") >= 5.0);
    assert!(value("redrive_commit_batch_count") >= 5.0);
    assert!(value("redrive_disk_free_bytes") > value("redrive_disk_least_bytes"));
}

#[tokio::test]
async fn a_scraper_that_asks_for_openmetrics_gets_it() {
    let server = TestServer::open(QUEUE).await;
    let request = server.client.get(server.url("/metrics")).header("accept", "application/openmetrics-text");
    let answer = request.send().await.expect("an answer");
    let kind = answer.headers()["content-type"].to_str().expect("text").to_owned();
    let text = answer.text().await.expect("a body");
    assert_eq!(kind, "application/openmetrics-text; version=1.0.0; charset=utf-8");
    assert!(text.ends_with("\n# EOF\n") && !text.contains("\n\n"), "{text}");
    assert!(text.contains("# TYPE redrive_dead counter\n"), "{text}");
    assert!(scrape(&server).await.contains("# TYPE redrive_dead_total counter\n"));
}

/// An alert on growth would miss the first one otherwise. A database counts its own commits, and has its disk
/// elsewhere.
#[tokio::test(flavor = "multi_thread")]
async fn what_a_store_does_not_know_is_not_shown_as_zero() {
    let settings = format!("[store]\nschema = \"{}\"\n{QUEUE}", a_name("observe"));
    let mut config: Config = toml::from_str(&settings).expect("settings");
    config.server.listen.set_port(0);
    config.store.address = postgres::Server::shared().url();
    let server = Server::start(config).await.expect("a server");
    let url = |path: &str| format!("http://{}{path}", server.address());
    let client = reqwest::Client::new();
    let event = client.post(url("/v1/queues/orders/events")).json(&json!({ "id": "a" }));
    assert_eq!(answer(event).await.0, 202);
    let text = client.get(url("/metrics")).send().await.expect("an answer").text().await.expect("a body");
    assert!(text.contains("redrive_events{queue=\"orders\",state=\"ready\"} 1"), "{text}");
    for name in ["redrive_commits_total", "redrive_commit_batch", "redrive_sync_seconds", "redrive_disk"] {
        assert!(!text.contains(name), "{name}\n{text}");
    }
    server.stop(Duration::from_secs(5)).await.expect("a clean stop");
}

#[tokio::test]
async fn dead_letters_are_counted_from_zero() {
    let server = TestServer::open("[queues.calm.pull]\n").await;
    let text = scrape(&server).await;
    for line in [
        "redrive_dead_total{queue=\"calm\",reason=\"permanent\"} 0",
        "redrive_dead_unknown_total{queue=\"calm\"} 0",
    ] {
        assert!(text.contains(line), "{line}\n{text}");
    }
}

#[tokio::test]
async fn metrics_are_for_those_who_may_read_everything() {
    let tokens = format!(
        "[tokens.all]\nhash = \"{HASH}\"\nrights = [\"read\"]\n\
         [tokens.one]\nhash = \"{}\"\nrights = [\"read\", \"operate\"]\ntenant = \"acme\"\n{QUEUE}",
        hash_of("other")
    );
    let server = TestServer::open(&tokens).await;
    let get = |token: &str| server.client.get(server.url("/metrics")).bearer_auth(token);
    assert_eq!(answer(server.client.get(server.url("/metrics"))).await.0, 401);
    let (status, problem) = answer(get("other")).await;
    assert_eq!((status, &problem["code"]), (403, &json!("not-one-tenant")));
    assert_eq!(answer(get("sesame")).await.0, 200);
    // Nor may a tenant's token have everybody's events.
    let backup = server.client.post(server.url("/v1/backup")).bearer_auth("other");
    assert_eq!(answer(backup).await.0, 403);
    let backup = server.client.post(server.url("/v1/backup")).bearer_auth("sesame");
    assert_eq!(answer(backup).await.1["right"], json!("operate"));

    let open = TestServer::open(&format!("[observe]\nopen_metrics = true\n{tokens}")).await;
    assert_eq!(answer(open.client.get(open.url("/metrics"))).await.0, 200);
}

fn hash_of(token: &str) -> String {
    use sha2::Digest as _;
    let hash = sha2::Sha256::digest(token.as_bytes());
    format!("sha256:{}", hash.iter().map(|byte| format!("{byte:02x}")).collect::<String>())
}

#[tokio::test]
async fn it_is_ready_while_it_runs_queues_and_has_room() {
    let server = TestServer::open(QUEUE).await;
    assert_eq!(server.get("/readyz").await.0, 200);
    let app = server.server.as_ref().expect("it runs").app().clone();
    app.stopping.send_replace(true);
    let (status, problem) = server.get("/readyz").await;
    assert_eq!((status, &problem["code"]), (503, &json!("stopping")));
    assert_eq!(server.get("/healthz").await.0, 200);
    app.stopping.send_replace(false);
    assert_eq!(server.get("/readyz").await.0, 200);
    app.redrive.drain(Duration::ZERO).await;
    assert_eq!(server.get("/readyz").await.0, 503);

    let full = TestServer::open(&format!("[store]\ndisk_least = {}\n{QUEUE}", i64::MAX)).await;
    let (status, problem) = full.get("/readyz").await;
    assert_eq!((status, &problem["code"]), (503, &json!("disk-low")));
    let (status, problem) = full.post("/v1/queues/orders/events", json!({ "id": "a" })).await;
    assert_eq!((status, &problem["code"]), (503, &json!("disk-low")));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_probe_is_answered_within_a_second_while_the_database_hangs_or_is_down() {
    let proxy = Proxy::start(postgres::Server::shared()).expect("a proxy");
    let mut config: Config = toml::from_str(QUEUE).expect("settings");
    config.server.listen.set_port(0);
    config.store.address = proxy.url();
    config.store.schema = a_name("probed");
    let server = Server::start(config).await.expect("a server");
    let client = reqwest::Client::builder().no_proxy().build().expect("a client");
    let probe = async || {
        let began = Instant::now();
        let answer =
            client.get(format!("http://{}/readyz", server.address())).send().await.expect("an answer");
        (answer.status().as_u16(), began.elapsed())
    };
    assert_eq!(probe().await.0, 200);
    for weather in [Weather::Hushed, Weather::Torn] {
        proxy.turn(weather);
        let mut fastest = Duration::MAX;
        for _ in 0..PROBES {
            let (status, time) = probe().await;
            assert_eq!(status, 503, "{weather:?}");
            fastest = fastest.min(time);
        }
        assert!(fastest < Duration::from_secs(1), "{weather:?}: {fastest:?}");
    }
    proxy.turn(Weather::Fair);
    while probe().await.0 != 200 {}
    server.stop(Duration::from_secs(5)).await.expect("a clean stop");
}

#[tokio::test]
async fn the_trace_of_a_request_is_kept_with_its_events() {
    let server = TestServer::open(QUEUE).await;
    let parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    let request = server.client.post(server.url("/v1/queues/orders/events")).header("traceparent", parent);
    let events = json!({ "events": [{ "id": "a" }, { "id": "b", "headers": { "traceparent": "own" } }] });
    assert_eq!(answer(request.json(&events)).await.0, 202);
    // Another attempt to publish it is another span, and no other event.
    let request = server.client.post(server.url("/v1/queues/orders/events"));
    let again = request.header("traceparent", parent.replace("b7ad", "b7ae")).json(&json!({ "id": "a" }));
    assert_eq!(answer(again).await.1["result"], json!("duplicate"));
    let redrive = &server.server.as_ref().expect("it runs").app().redrive;
    let leases = redrive.lease("orders", 9, Duration::from_secs(60)).await.expect("leases");
    let traces: Vec<_> = leases
        .iter()
        .map(|lease| lease.event.meta.as_ref().expect("headers").headers[0].1.as_str())
        .collect();
    assert_eq!(traces, [parent, "own"]);
}

#[tokio::test]
async fn every_target_has_a_budget_and_a_breaker_of_its_own() {
    let queue = |name: &str, host: &str, policy: &str| {
        format!(
            "[queues.{name}.push]\nurl = \"https://{host}.example\"\n\
             [queues.{name}.policy]\n{policy}budget = {{}}\nbreaker = {{}}\n"
        )
    };
    let shared = "name = \"shop\"\n";
    let queues = [
        queue("a", "a", ""),
        queue("b", "b", ""),
        queue("c", "c", shared),
        queue("d", "d", shared),
        queue("e", "one", ""),
        queue("f", "one", ""),
        queue("g", "g", "name = \"a\"\n"),
    ];
    let server = TestServer::open(&queues.concat()).await;
    let text = scrape(&server).await;
    for name in ["redrive_budget_tokens", "redrive_budget_spent_total", "redrive_breaker_state"] {
        let shown: Vec<&str> = text
            .lines()
            .filter_map(|line| line.strip_prefix(name)?.strip_prefix('{')?.split('}').next())
            .collect();
        let targets = [
            "target=\"a\",queue=\"a\"",
            "target=\"b\"",
            "target=\"shop\"",
            "target=\"https://one.example\"",
            "target=\"a\",queue=\"g\"",
        ];
        assert_eq!(shown, targets, "{name}");
    }
}
