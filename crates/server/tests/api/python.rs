//! The worker in Python, against a server: it fails, settles, and is killed.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::sync::mpsc;

use crate::pull::{QUEUE, publish};
use crate::test_server::TestServer;

/// A worker, and what it says.
struct Worker {
    child: Child,
    said: mpsc::UnboundedReceiver<String>,
}

impl Worker {
    fn start(server: &TestServer, flags: &[&str]) -> Self {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/python-worker/worker.py");
        let mut command = Command::new("python3");
        command.arg(script).args(["jobs", "--url", &server.url("")]).args(flags);
        // A proxy configured in the environment cannot reach this server.
        command.env("no_proxy", "*").env_remove("REDRIVE_TOKEN").stdout(Stdio::piped());
        let mut child = command.spawn().expect("python3 is needed: `cargo xtask install`");
        let (tell, said) = mpsc::unbounded_channel();
        let stdout = child.stdout.take().expect("it is piped");
        std::thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                let _ = tell.send(line);
            }
        });
        Self { child, said }
    }

    /// Waits until it has said all of these, in any order.
    async fn says(&mut self, what: &[&str]) {
        let mut missing = what.to_vec();
        let saying = async {
            while !missing.is_empty() {
                let line = self.said.recv().await.expect("it still runs");
                missing.retain(|what| *what != line);
            }
        };
        let said = tokio::time::timeout(Duration::from_secs(60), saying).await;
        assert!(said.is_ok(), "it does not say {missing:?}");
    }

    fn signal(&self, name: &str) {
        let status = Command::new("kill").args([name, &self.child.id().to_string()]).status().expect("kill");
        assert!(status.success());
    }

    /// Its exit code, once it is gone.
    async fn ends(mut self) -> Option<i32> {
        let waiting = tokio::task::spawn_blocking(move || self.child.wait());
        waiting.await.expect("it is waited for").expect("it ends").code()
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        // Where a test failed.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The state of an event, as returned to a publisher that repeats it.
async fn fate_of(server: &TestServer, id: &str, payload: &Value) -> Value {
    let again = json!({ "id": id, "payload": payload });
    server.post("/v1/queues/jobs/events", again).await.1["first"].take()
}

#[tokio::test]
async fn a_worker_in_python_settles_what_works_what_fails_and_what_never_will() {
    let server = TestServer::open(QUEUE).await;
    let cases = [
        ("plain", json!({}), "done", 1, Value::Null),
        ("flaky", json!({ "fails": 2 }), "done", 3, Value::Null),
        ("bad", json!({ "bad": true }), "dead", 1, json!("permanent")),
        ("hopeless", json!({ "fails": 9 }), "dead", 3, json!("attempts_spent")),
    ];
    for (id, order, ..) in &cases {
        publish(&server, json!({ "id": id, "payload": order })).await;
    }
    let mut worker = Worker::start(&server, &["--wait", "5"]);
    worker
        .says(&[
            "ok plain at attempt 1: applied",
            "permanent bad at attempt 1: applied",
            "ok flaky at attempt 3: applied",
            "retry hopeless at attempt 3: applied",
        ])
        .await;
    worker.signal("-INT");
    assert_eq!(worker.ends().await, Some(0), "Ctrl-C ends it cleanly");
    for (id, order, state, attempts, reason) in cases {
        let fate = fate_of(&server, id, &order).await;
        assert_eq!((&fate["state"], &fate["attempts"]), (&json!(state), &json!(attempts)), "{id}: {fate}");
        assert_eq!(fate["reason"], reason, "{id}: {fate}");
    }
}

#[tokio::test]
async fn what_a_killed_worker_had_is_done_by_another() {
    let server = TestServer::open(QUEUE).await;
    let order = json!({ "stuck": 1 });
    publish(&server, json!({ "id": "1", "payload": order })).await;
    let mut killed = Worker::start(&server, &["--lease", "1"]);
    killed.says(&["begins 1 at attempt 1"]).await;
    let mut other = Worker::start(&server, &["--lease", "20"]);
    killed.signal("-KILL");
    assert_eq!(killed.ends().await, None);
    other.says(&["ok 1 at attempt 2: applied"]).await;
    other.signal("-TERM");
    assert_eq!(other.ends().await, Some(0));
    assert_eq!(fate_of(&server, "1", &order).await["state"], "done");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_worker_carries_its_token_to_no_other_server() {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    let bind = || tokio::net::TcpListener::bind("127.0.0.1:0");
    let (first, second) = (bind().await.expect("a port"), bind().await.expect("a port"));
    let (url, other) = (first.local_addr().expect("an address"), second.local_addr().expect("an address"));
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/python-worker/worker.py");
    let mut worker = tokio::process::Command::new("python3")
        .arg(script)
        .args(["jobs", "--url", &format!("http://{url}")])
        .env("no_proxy", "*")
        .env("REDRIVE_TOKEN", "rdt_hush")
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .expect("python3 is needed: `cargo xtask install`");
    let (mut stream, _) = first.accept().await.expect("the worker");
    let mut head = [0; 4096];
    let read = stream.read(&mut head).await.expect("a request");
    assert!(String::from_utf8_lossy(&head[..read]).contains("rdt_hush"), "to this one it does");
    let answer = format!("HTTP/1.1 302 Found\r\nlocation: http://{other}/\r\ncontent-length: 0\r\n\r\n");
    stream.write_all(answer.as_bytes()).await.expect("an answer");
    tokio::select! {
        _ = second.accept() => panic!("it followed"),
        ended = worker.wait() => assert_eq!(ended.expect("it ends").code(), Some(1)),
    }
}
