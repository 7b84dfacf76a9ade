//! Another configuration, without a restart.

use std::path::PathBuf;
use std::process::Stdio;

use redrive_server::config::{Layer, Source};
use redrive_server::serve::Server;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt as _, BufReader};

use crate::push::queue;
use crate::receiver::Receiver;
use crate::test_server::answer;

/// A server with a file that it reads again.
struct Reloaded {
    server: Server,
    client: reqwest::Client,
    folder: TempDir,
}

fn file(folder: &TempDir) -> PathBuf {
    folder.path().join("redrive.toml")
}

impl Reloaded {
    async fn open(settings: &str) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        std::fs::write(file(&folder), settings).expect("a file");
        let layers = vec![
            Layer::flag("--listen", ["server", "listen"], "127.0.0.1:0"),
            Layer::flag("--store", ["store", "address"], "memory:"),
        ];
        let source = Source { file: Some(file(&folder)), layers };
        let config = source.load().expect("settings");
        let server = Server::start_from(config, source).await.expect("a server");
        let client = reqwest::Client::builder().no_proxy().build().expect("a client");
        Self { server, client, folder }
    }

    async fn reload(&self, settings: &str) -> (u16, Value) {
        std::fs::write(file(&self.folder), settings).expect("a file");
        self.post("/v1/reload", json!({})).await
    }

    /// What the audit has, the latest first: verb, target and count.
    async fn audit(&self) -> Vec<(Value, Value, Value)> {
        let url = format!("http://{}/v1/audit", self.server.address());
        let (_, mut audit) = answer(self.client.get(url)).await;
        let lines = audit["lines"].as_array_mut().expect("lines");
        lines
            .iter_mut()
            .map(|line| (line["verb"].take(), line["target"].take(), line["count"].take()))
            .collect()
    }

    async fn post(&self, path: &str, body: Value) -> (u16, Value) {
        let url = format!("http://{}{path}", self.server.address());
        answer(self.client.post(url).bearer_auth("sesame").json(&body)).await
    }
}

#[tokio::test]
async fn who_reloads_is_in_the_audit() {
    let server = Reloaded::open("[queues.orders.pull]\n").await;
    assert_eq!(server.reload("server.edit = true\n[queues.orders.pull]\n").await.0, 200);
    assert_eq!(server.reload("server.nonsense = true\n").await.0, 422);
    let line = |count: u64| (json!("reload"), json!("configuration"), json!(count));
    assert_eq!(server.audit().await, [line(0), line(1), line(1)]);
}

#[tokio::test]
async fn a_destination_and_what_it_may_reach_change_while_events_run() {
    let (mut first, mut second) = (Receiver::friendly().await, Receiver::friendly().await);
    let server = Reloaded::open(&queue(first.address, "", "")).await;
    let publish = async |id: &str| server.post("/v1/queues/orders/events", json!({ "id": id })).await.0;
    publish("a").await;
    assert_eq!(first.next().await.text("redrive-id"), "a");
    let told = server.reload(&queue(second.address, "", "headers = { x-new = \"1\" }")).await;
    assert_eq!(told, (200, json!({ "reloaded": true, "warnings": [] })));
    publish("b").await;
    let got = second.next().await;
    assert_eq!((got.text("redrive-id"), got.text("x-new")), ("b", "1"));
    assert!(first.is_quiet());

    // What is not allowed any more is not reached over a connection that was kept, either.
    let name = format!("localhost:{}", second.address.port());
    let by_name = |allow| queue(&name, "", "").replace("\"127.0.0.0/8\"", allow);
    assert_eq!(server.reload(&by_name("\"127.0.0.0/8\", \"::1\"")).await.0, 200);
    publish("c").await;
    assert_eq!(second.next().await.text("redrive-id"), "c");
    assert_eq!(server.reload(&by_name("")).await.0, 200);
    publish("d").await;
    server.server.app().redrive.idle().await;
    assert!(second.is_quiet());
    let (status, problem) =
        server.reload(&queue(second.address, "", "").replace("\"127.0.0.0/8\"", "")).await;
    assert_eq!(status, 422);
    let detail = "queues.orders.push: destination refused: 127.0.0.1 is loopback; allow it with push.allow";
    assert_eq!(problem["detail"], detail);
}

#[tokio::test]
async fn who_shares_a_budget_with_whom_needs_a_restart() {
    let queues = |orders: &str, mails: &str| {
        format!(
            "[queues.mails.push]\nurl = \"https://{mails}.example/m\"\n[queues.orders.push]\nurl = \
             \"https://{orders}.example/o\"\n"
        )
    };
    let server = Reloaded::open(&queues("shop", "shop")).await;
    let (status, problem) = server.reload(&queues("hall", "shop")).await;
    let told = json!(["queues.orders.push.url (which queues share a budget)"]);
    assert_eq!((status, &problem["restart"]), (409, &told));
    assert_eq!(server.reload(&queues("shop", "shop").replace("/o", "/other")).await.0, 200);
    let server = Reloaded::open(&queues("shop", "post")).await;
    assert_eq!(server.reload(&queues("hall", "post")).await.0, 200, "it is alone before and after");
    assert_eq!(server.reload(&queues("post", "post")).await.1["restart"], told);
}

#[tokio::test]
async fn tokens_quotas_and_limits_change_at_once() {
    let hash = "sha256:d0c04f4b1951e4aeaaec8223ed2039e542f3aae805a6fa7f6d794e5afff5d272";
    let token = |rights: &str| format!("[tokens.a]\nhash = \"{hash}\"\nrights = [\"operate\"{rights}]\n");
    let queue = "[queues.orders.pull]\n";
    let server = Reloaded::open(&format!("{}{queue}", token(""))).await;
    let publish = async |id: &str| server.post("/v1/queues/orders/events", json!({ "id": id })).await.0;
    assert_eq!(publish("a").await, 403);
    assert_eq!(server.reload(&format!("{}{queue}", token(", \"publish\""))).await.0, 200);
    assert_eq!(publish("a").await, 202);
    let quota = "quota.rate = { per_second = 0.01, burst = 1 }\n";
    assert_eq!(server.reload(&format!("{quota}{}{queue}", token(", \"publish\""))).await.0, 200);
    assert_eq!((publish("b").await, publish("c").await), (202, 429));
    assert_eq!(
        server.reload(&format!("server.body_max = 5\n{}{queue}", token(", \"publish\""))).await.0,
        200
    );
    assert_eq!(publish("d").await, 413);
}

#[tokio::test]
async fn what_needs_a_restart_is_refused_as_a_whole() {
    let server = Reloaded::open("[queues.orders.pull]\n").await;
    let (status, problem) =
        server.reload("server.body_max = 1\nserver.grace = \"1s\"\n[queues.new.pull]\n[queues.orders]\nconcurrency = 3\npull = {}\n").await;
    assert_eq!((status, &problem["code"]), (409, &json!("needs-restart")));
    assert_eq!(problem["restart"], json!(["server.grace", "queues.orders.concurrency", "queues.new (new)"]));
    let (status, problem) = server.reload("observe.log = \"debug\"\n[queues.orders.pull]\n").await;
    assert_eq!((status, &problem["restart"]), (409, &json!(["observe.log"])));
    assert_eq!(server.reload("server.body_maxi = 1\n[queues.orders.pull]\n").await.0, 422);
    // The old one holds, down to what could have been changed.
    let (status, _) = server.post("/v1/queues/orders/events", json!({ "id": "a" })).await;
    assert_eq!(status, 202);
}

/// The program itself, by its signal; and its attempts ask no proxy of the environment.
#[tokio::test]
async fn a_hangup_has_the_program_read_its_configuration_again() {
    let mut receiver = Receiver::friendly().await;
    let folder = tempfile::tempdir().expect("a folder");
    std::fs::write(file(&folder), queue(receiver.address, "", "")).expect("a file");
    let mut program = tokio::process::Command::new(env!("CARGO_BIN_EXE_redrive"))
        .env("REDRIVE_OBSERVE_LOG_FORM", "text")
        .args(["serve", "--listen", "127.0.0.1:0", "--store", "memory:", "--config"])
        .arg(file(&folder))
        .envs([("HTTP_PROXY", "http://127.0.0.1:9"), ("http_proxy", "http://127.0.0.1:9")])
        .env_remove("NO_PROXY")
        .env_remove("no_proxy")
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .expect("the program");
    let mut said = BufReader::new(program.stderr.take().expect("its talk")).lines();
    let mut line_with = async |part: &str| loop {
        let line = said.next_line().await.expect("its talk").unwrap_or_else(|| panic!("no line with {part}"));
        if line.contains(part) {
            return line;
        }
    };
    let listening = line_with("listening on ").await;
    let address =
        listening.split("http://").nth(1).and_then(|rest| rest.split(',').next()).expect("an address");
    let client = reqwest::Client::builder().no_proxy().build().expect("a client");
    let publish = async |id: &str| {
        let url = format!("http://{address}/v1/queues/orders/events");
        assert_eq!(answer(client.post(url).json(&json!({ "id": id }))).await.0, 202);
    };
    publish("a").await;
    assert_eq!(receiver.next().await.text("redrive-id"), "a");
    let pid = program.id().expect("it runs").to_string();
    let hang_up = async || {
        let status = tokio::process::Command::new("kill").args(["-HUP", &pid]).status().await;
        assert!(status.expect("kill").success());
    };
    std::fs::write(file(&folder), queue(receiver.address, "", "headers = { x-new = \"1\" }"))
        .expect("a file");
    hang_up().await;
    line_with("configuration reloaded").await;
    publish("b").await;
    assert_eq!(receiver.next().await.text("x-new"), "1");
    std::fs::write(file(&folder), "[queues.orders.pull]\n").expect("a file");
    hang_up().await;
    let told = line_with("the old one stays").await;
    assert!(told.ends_with("queues.orders.push or pull"), "{told}");
    publish("c").await;
    assert_eq!(receiver.next().await.text("x-new"), "1");
    program.kill().await.expect("its end");
}
