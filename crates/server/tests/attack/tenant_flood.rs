//! Tenant flood: a publisher makes up tenants, a new one with each event. It is refused once it has begun as many streams as
//! a token may, by whichever way it comes in; the server grows no further, and another caller is served.

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use tempfile::TempDir;

use crate::campaign::Program;
use crate::stage::{in_time, scaled};

/// How many events a request has.
const BATCH: usize = 20;

/// What came of a flood.
#[derive(Debug, Default)]
struct Flooded {
    accepted: usize,
    refused: usize,
}

struct Stage {
    program: Program,
    client: reqwest::Client,
    _folder: TempDir,
}

impl Stage {
    async fn open(streams_max: usize) -> Self {
        let token = |name: &str, rights: &str| {
            let hash: String =
                Sha256::digest(name.as_bytes()).iter().map(|byte| format!("{byte:02x}")).collect();
            format!("[tokens.{name}]\nhash = \"sha256:{hash}\"\nrights = [{rights}]\n")
        };
        let settings = format!(
            "store.address = \"sqlite:redrive.db\"\nserver.streams_max = {streams_max}\n{}{}\
             [queues.orders.pull]\n[queues.mails.pull]\n",
            token("mallory", "\"publish\", \"operate\", \"read\""),
            token("alice", "\"publish\"")
        );
        let folder = tempfile::tempdir().expect("a folder");
        std::fs::write(folder.path().join("redrive.toml"), settings).expect("settings");
        let program = Program::start(folder.path()).await;
        let client = reqwest::Client::builder().no_proxy().build().expect("a client");
        Self { program, client, _folder: folder }
    }

    async fn post(&self, token: &str, path: &str, body: String) -> (u16, Value) {
        let request = self.client.post(self.program.url(path)).bearer_auth(token).body(body);
        let response = in_time(request.header("content-type", "application/json").send()).await;
        let response = response.expect("an answer");
        let status = response.status().as_u16();
        let body = in_time(response.bytes()).await.expect("a body");
        (status, serde_json::from_slice(&body).unwrap_or(Value::Null))
    }

    /// So many requests, each with a batch of tenants that were never heard of: published, or as dead letters.
    async fn flood(&self, name: &str, requests: usize) -> Flooded {
        let mut found = Flooded::default();
        for request in 0..requests {
            let queue = if request.is_multiple_of(2) { "orders" } else { "mails" };
            let tenants = (0..BATCH).map(|at| format!("{name}-{request}-{at}"));
            let (status, told) = if request % 3 == 2 {
                let line = |tenant| {
                    json!({
                        "queue": queue, "tenant": tenant, "id": "1", "published_ms": 1, "died_ms": 1, "attempts": 1,
                        "reason": "killed",
                    })
                };
                let lines: Vec<String> = tenants.map(|tenant| line(tenant).to_string()).collect();
                self.post("mallory", "/v1/dead/import", lines.join("\n")).await
            } else {
                let events: Vec<Value> =
                    tenants.map(|tenant| json!({ "id": "1", "tenant": tenant })).collect();
                let path = format!("/v1/queues/{queue}/events");
                self.post("mallory", &path, json!({ "events": events }).to_string()).await
            };
            match status {
                200 | 202 => found.accepted += BATCH,
                429 => {
                    assert_eq!(told["code"], "too-many-streams", "{told}");
                    let told = told["detail"].as_str().expect("a word").to_owned();
                    assert!(told.contains("raise server.streams_max"), "it says what to do: {told}");
                    found.refused += BATCH;
                }
                other => panic!("{other}: {told}"),
            }
        }
        found
    }

    /// How much memory the server has, in MiB.
    fn memory(&self) -> u64 {
        let id = self.program.child.id().expect("it runs");
        let status = std::fs::read_to_string(format!("/proc/{id}/status")).expect("a status");
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("its memory");
        let kib: u64 = line.trim().trim_end_matches(" kB").parse().expect("a number");
        kib / 1024
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_publisher_that_makes_up_tenants_is_refused_and_the_server_grows_no_further() {
    let max = scaled(60, 2_000);
    let stage = Stage::open(max).await;
    let first = stage.flood("first", max / BATCH + 2).await;
    assert_eq!(first.accepted, max, "exactly as many as a token may begin: {first:?}");
    let before = stage.memory();
    let more = stage.flood("more", scaled(40, 2_000)).await;
    let grown = stage.memory().saturating_sub(before);
    assert_eq!(more.accepted, 0, "{more:?}");
    let mut slowest = Duration::ZERO;
    for id in 0..scaled(20, 200) {
        let began = Instant::now();
        let event = json!({ "id": id.to_string(), "tenant": "alice" }).to_string();
        assert_eq!(stage.post("alice", "/v1/queues/orders/events", event).await.0, 202);
        slowest = slowest.max(began.elapsed());
    }
    // Those that it began stay open to it.
    let known = json!({ "id": "2", "tenant": "first-0-0" }).to_string();
    assert_eq!(stage.post("mallory", "/v1/queues/orders/events", known).await.0, 202);
    println!(
        "tenant flood: {} made-up tenants refused, {grown} MiB more, another caller served within {slowest:?}",
        more.refused
    );
    assert!(grown < 32, "{grown} MiB more");
    assert!(slowest < Duration::from_secs(scaled(10, 1)), "{slowest:?}");
}

/// The control: where the bound is far away, every made-up tenant is a stream.
#[tokio::test(flavor = "multi_thread")]
async fn control_without_its_bound_every_tenant_is_a_stream() {
    let stage = Stage::open(1_000_000).await;
    let found = stage.flood("all", 6).await;
    assert_eq!((found.accepted, found.refused), (6 * BATCH, 0));
}
