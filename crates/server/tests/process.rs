//! The program as it is run: stopped by signals under load, its logs, its backups.

use std::path::Path;
use std::process::{ExitStatus, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use redrive::Redrive;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::TcpStream;
use tokio::process::{Child, Command};
use tokio::sync::mpsc;

/// A server in a process of its own.
struct Program {
    child: Child,
    address: String,
    folder: TempDir,
    /// What it logs.
    lines: mpsc::UnboundedReceiver<String>,
}

fn redrive(folder: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_redrive"));
    command.current_dir(folder).env_clear().kill_on_drop(true).stdin(Stdio::null());
    command
}

impl Program {
    async fn start(log: &str) -> Self {
        Self::start_with(log, "[queues.orders.pull]\n").await
    }

    async fn start_with(log: &str, settings: &str) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        std::fs::write(folder.path().join("redrive.toml"), settings).expect("settings");
        let mut command = redrive(folder.path());
        command.args(["serve", "--listen", "127.0.0.1:0"]).env("REDRIVE_LOG", log);
        command.env("REDRIVE_OBSERVE_LOG_FORM", "json");
        let mut child = command.stderr(Stdio::piped()).spawn().expect("a process");
        let mut stderr = BufReader::new(child.stderr.take().expect("its logs")).lines();
        let (tell, lines) = mpsc::unbounded_channel();
        tokio::spawn(async move {
            while let Ok(Some(line)) = stderr.next_line().await {
                let _ = tell.send(line);
            }
        });
        let mut program = Self { child, address: String::new(), folder, lines };
        let line = program.wait_for("listening on http://").await;
        let line: Value = serde_json::from_str(&line).expect("JSON");
        let message = line["message"].as_str().expect("a message");
        message.rsplit("//").next().expect("an address").clone_into(&mut program.address);
        program
    }

    async fn wait_for(&mut self, text: &str) -> String {
        loop {
            let line = self.lines.recv().await.unwrap_or_else(|| panic!("it ended without `{text}`"));
            if line.contains(text) {
                return line;
            }
        }
    }

    fn signal(&self) {
        let pid = self.child.id().and_then(|pid| Pid::from_raw(i32::try_from(pid).ok()?)).expect("it runs");
        kill_process(pid, Signal::TERM).expect("a signal");
    }

    async fn end(&mut self) -> ExitStatus {
        tokio::time::timeout(Duration::from_secs(20), self.child.wait())
            .await
            .expect("in time")
            .expect("an end")
    }

    fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    /// A publish of which half is sent.
    async fn half(&self, id: &str) -> (TcpStream, String) {
        let body = json!({ "id": id, "payload": "x".repeat(100) }).to_string();
        let head = format!(
            "POST /v1/queues/orders/events HTTP/1.1\r\nhost: {}\r\ncontent-type: application/json\r\n\
             content-length: {}\r\n\r\n",
            self.address,
            body.len()
        );
        let (first, second) = body.split_at(body.len() / 2);
        let mut stream = TcpStream::connect(&self.address).await.expect("a connection");
        stream.write_all(format!("{head}{first}").as_bytes()).await.expect("sent");
        (stream, second.to_owned())
    }
}

fn client() -> reqwest::Client {
    // A connection for each request: one that is kept may be closed by either side at any time.
    reqwest::Client::builder().no_proxy().pool_max_idle_per_host(0).build().expect("a client")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_signal_under_load_cuts_nobody_off_and_loses_nothing() {
    let mut program = Program::start("info").await;
    let mut halves = Vec::new();
    for n in 0..8 {
        halves.push(program.half(&format!("half-{n}")).await);
    }
    let kept = Arc::new(Mutex::new(Vec::new()));
    let (began, mut begun) = mpsc::unbounded_channel();
    let load: Vec<_> = (0..4)
        .map(|task| {
            let (url, kept, client) = (program.url("/v1/queues/orders/events"), kept.clone(), client());
            let began = began.clone();
            tokio::spawn(async move {
                for n in 0.. {
                    let id = format!("{task}-{n}");
                    let sent = client.post(&url).json(&json!({ "id": id })).send().await;
                    // No listener any more, or the connection was never accepted: nothing was answered.
                    let Ok(answer) = sent else { return };
                    let status = answer.status();
                    answer.bytes().await.expect("an answer that began is sent whole");
                    assert_eq!(status, 202, "{id}");
                    kept.lock().expect("ids").push(id);
                    if n == 10 {
                        let _ = began.send(());
                    }
                }
            })
        })
        .collect();
    for _ in 0..4 {
        begun.recv().await.expect("load");
    }
    program.signal();
    program.wait_for("stopping").await;
    for (stream, rest) in &mut halves {
        stream.write_all(rest.as_bytes()).await.expect("it still reads");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.expect("an answer");
        assert!(answer.starts_with("HTTP/1.1 202"), "{answer}");
    }
    for task in load {
        task.await.expect("no request was cut");
    }
    assert_eq!(program.end().await.code(), Some(0));

    let store = format!("sqlite:{}", program.folder.path().join("redrive.db").display());
    let redrive = Redrive::open(&store).await.expect("the store");
    let kept = std::mem::take(&mut *kept.lock().expect("ids"));
    let halves = (0..8).map(|n| format!("half-{n}"));
    for id in kept.into_iter().chain(halves) {
        let found = redrive.event("", "orders", &id).await.expect("a look");
        assert!(found.is_some(), "{id} was accepted, and is not there");
    }
}

#[tokio::test]
async fn a_second_signal_stops_at_once() {
    let mut program = Program::start("info").await;
    let _half = program.half("a").await;
    // Accepted before this one was, and so it is under way.
    let answer = client().get(program.url("/healthz")).send().await.expect("an answer");
    assert_eq!(answer.status(), 200);
    program.signal();
    program.wait_for("stopping").await;
    program.signal();
    program.wait_for("stopped at once").await;
    assert_eq!(program.end().await.code(), Some(130));
}

#[tokio::test]
async fn every_line_of_the_log_is_json_and_tells_no_secret() {
    let mut program = Program::start("debug").await;
    let event = json!({ "id": "order-17", "payload": "a-payload-that-nobody-logs" });
    let url = program.url("/v1/queues/orders/events?key=a-secret-in-a-query");
    let request = client().post(url).bearer_auth("a-token-that-nobody-logs").json(&event);
    assert_eq!(request.send().await.expect("an answer").status(), 202);
    program.signal();
    assert_eq!(program.end().await.code(), Some(0));
    let mut lines = Vec::new();
    while let Some(line) = program.lines.recv().await {
        lines.push(line);
    }
    let parsed: Vec<Value> =
        lines.iter().map(|line| serde_json::from_str(line).unwrap_or_else(|_| panic!("{line}"))).collect();
    let answered = parsed.iter().find(|line| line["message"] == "answered").expect("an access line");
    assert_eq!(answered["path"], json!("/v1/queues/orders/events"));
    assert_eq!(answered["status"], json!(202));
    for secret in ["a-payload-that", "a-secret-in", "a-token-that"] {
        assert!(!lines.iter().any(|line| line.contains(secret)), "{secret}");
    }
}

#[tokio::test]
async fn a_destination_that_repeats_what_it_was_sent_gets_nothing_of_it_into_the_log() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address");
    let echo = async |body: String| (http::StatusCode::UNPROCESSABLE_ENTITY, body);
    tokio::spawn(async move { axum::serve(listener, axum::Router::new().fallback(echo)).await });
    let settings =
        format!("push.allow = [\"127.0.0.0/8\"]\n[queues.orders.push]\nurl = \"http://{address}/\"\n");
    let mut program = Program::start_with("debug", &settings).await;
    let event = json!({ "id": "order-17", "payload": "a-payload-that-nobody-logs" });
    let request = client().post(program.url("/v1/queues/orders/events")).json(&event);
    assert_eq!(request.send().await.expect("an answer").status(), 202);
    let mut lines = Vec::new();
    while !lines.last().is_some_and(|line: &String| line.contains("dead letter")) {
        lines.push(program.lines.recv().await.expect("it runs"));
    }
    let dead: Value = serde_json::from_str(&lines[lines.len() - 1]).expect("JSON");
    assert_eq!((&dead["kind"], &dead["code"]), (&json!("http"), &json!("422")), "{dead}");
    let history =
        client().get(program.url("/v1/queues/orders/events/order-17")).send().await.expect("an answer");
    let history = history.text().await.expect("its attempt history");
    assert!(
        history.contains("Unprocessable Entity: \\\"a-payload-that"),
        "the text is in the attempt history: {history}"
    );
    program.signal();
    assert_eq!(program.end().await.code(), Some(0));
    while let Some(line) = program.lines.recv().await {
        lines.push(line);
    }
    let told: Vec<_> = lines.iter().filter(|line| line.contains("a-payload-that")).collect();
    assert!(told.is_empty(), "{told:?}");
}

#[tokio::test]
async fn a_store_is_backed_up_through_the_server_and_past_it() {
    let mut program = Program::start("info").await;
    for n in 0..20 {
        let event = json!({ "id": n.to_string() });
        let url = program.url("/v1/queues/orders/events");
        assert_eq!(client().post(url).json(&event).send().await.expect("an answer").status(), 202);
    }
    let folder = program.folder.path().to_owned();
    let url = program.url("");
    let run = async |args: &[&str]| {
        let output = redrive(&folder).args(args).output().await.expect("a process");
        (output.status.code(), String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned())
    };
    for (copy, store, args) in [("a", "a.db", vec!["--url", url.as_str()]), ("b", "b.db", vec![])] {
        let args: Vec<_> = ["backup", copy].into_iter().chain(args).collect();
        assert_eq!(run(&args).await.0, Some(0), "{:?}", run(&args).await);
        let (code, said) = run(&args).await;
        assert!(code == Some(1) && said.contains("already"), "{said}");
        let (code, said) = run(&["restore", copy, store]).await;
        assert!(code == Some(0) && said.contains("20 events, 20 identities"), "{said}");
        let (code, said) = run(&["restore", copy, store]).await;
        assert!(code == Some(1) && said.contains("nothing is overwritten"), "{said}");
    }
    program.signal();
    assert_eq!(program.end().await.code(), Some(0));
}

/// Starts a server in a terminal of its own, closes the terminal, and says how the server ended.
const TERMINAL: &str = r#"
import os, pty, sys, time
pid, master = pty.fork()
if pid == 0:
    os.execv(sys.argv[1], sys.argv[1:])
said = b""
while b"listening on" not in said:
    said += os.read(master, 1024)
os.close(master)
for _ in range(200):
    done, status = os.waitpid(pid, os.WNOHANG)
    if done:
        print("ended with", os.waitstatus_to_exitcode(status))
        sys.exit(0)
    time.sleep(0.05)
os.kill(pid, 9)
print("stayed behind")
"#;

#[tokio::test]
async fn a_server_does_not_outlive_its_terminal() {
    let folder = tempfile::tempdir().expect("a folder");
    std::fs::write(folder.path().join("redrive.toml"), "[queues.orders.pull]\n").expect("settings");
    let mut python = Command::new("python3");
    python.current_dir(folder.path()).kill_on_drop(true).stdin(Stdio::null());
    let arguments = ["-c", TERMINAL, env!("CARGO_BIN_EXE_redrive"), "serve", "--listen", "127.0.0.1:0"];
    let said = python.args(arguments).output().await.expect("python");
    let (out, err) = (String::from_utf8_lossy(&said.stdout), String::from_utf8_lossy(&said.stderr));
    assert_eq!(out.trim(), "ended with 0", "{err}");
}
