//! `redrive gateway` as a process: what it says, and how it ends.

use std::net::SocketAddr;
use std::path::Path;
use std::process::{ExitStatus, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt as _, BufReader, Lines};
use tokio::process::{Child, ChildStderr, Command};

use crate::test_gateway::{Talk, Upstream, in_time};

/// A gateway that runs.
pub(crate) struct Program {
    child: Child,
    lines: Lines<BufReader<ChildStderr>>,
    told: Vec<String>,
    folder: TempDir,
}

/// The program, without the environment of the test run.
fn redrive(folder: &TempDir) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_redrive"));
    let ours = std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("REDRIVE_"));
    ours.for_each(|(name, _)| _ = command.env_remove(name));
    command.current_dir(folder.path()).env("REDRIVE_OBSERVE_LOG_FORM", "json").kill_on_drop(true);
    command
}

impl Program {
    /// In front of this upstream, with these settings.
    pub(crate) async fn gateway(upstream: SocketAddr, settings: &str) -> Self {
        Self::before(&format!("http://{upstream}"), settings, Path::new("none.pem")).await
    }

    /// The same for any address, with these certificates trusted.
    pub(crate) async fn before(upstream: &str, settings: &str, roots: &Path) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        std::fs::write(folder.path().join("redrive.toml"), settings).expect("settings");
        let mut command = redrive(&folder);
        command.args(["gateway", "--listen", "127.0.0.1:0", "--store", "sqlite:gateway.db"]);
        command.args(["--upstream", upstream]).stderr(Stdio::piped());
        command.env("SSL_CERT_FILE", roots).env_remove("SSL_CERT_DIR");
        let mut child = command.spawn().expect("a process");
        let lines = BufReader::new(child.stderr.take().expect("it is piped")).lines();
        let mut program = Self { child, lines, told: Vec::new(), folder };
        program.says("all other requests are forwarded unchanged").await;
        program
    }

    /// Waits until it says this.
    pub(crate) async fn says(&mut self, what: &str) {
        loop {
            let line = in_time(self.lines.next_line()).await.expect("it talks");
            let line: Value = serde_json::from_str(&line.expect("it still runs")).expect("JSON");
            let message = line["message"].as_str().expect("a message").to_owned();
            let is_it = message.contains(what);
            self.told.push(message);
            if is_it {
                return;
            }
        }
    }

    pub(crate) fn address(&self) -> SocketAddr {
        let first =
            self.told.iter().find_map(|line| line.strip_prefix("listening on http://")).expect("an address");
        first.split(',').next().expect("an address").parse().expect("an address")
    }

    /// Another command, over the same store.
    pub(crate) async fn command(&self, args: &[&str]) -> String {
        let mut command = redrive(&self.folder);
        let output = in_time(command.args(args).args(["--store", "sqlite:gateway.db"]).output())
            .await
            .expect("a process");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    fn signal(&self) {
        let pid = self.child.id().and_then(|pid| Pid::from_raw(i32::try_from(pid).ok()?)).expect("it runs");
        kill_process(pid, Signal::INT).expect("a signal");
    }

    async fn end(&mut self) -> ExitStatus {
        in_time(self.child.wait()).await.expect("an end")
    }
}

#[tokio::test]
async fn it_says_what_it_answers_for_and_lets_requests_under_way_end() {
    let upstream = Upstream::open().await;
    let mut gateway = Program::gateway(upstream.address(), "").await;
    let told = gateway.told.join("\n");
    for what in [
        "POST /{*path}",
        "PATCH /{*path}",
        "with an Idempotency-Key",
        "opaque, hold",
        "redrive ledger show KEY --store sqlite:gateway.db",
    ] {
        assert!(told.contains(what), "{what}: {told}");
    }
    let mut client = Talk::to(gateway.address()).await;
    client.say("POST /a HTTP/1.1\nHost: a\nIdempotency-Key: k\nContent-Length: 0\n\n").await;
    let mut served = upstream.accept().await;
    served.head().await;
    gateway.signal();
    gateway.says("stopping").await;
    served.say("HTTP/1.1 201 Created\nContent-Length: 2\n\nhi").await;
    assert_eq!(client.message().await.1, "hi");
    assert_eq!(gateway.end().await.code(), Some(0));
}

#[tokio::test]
async fn a_second_signal_ends_it_at_once() {
    let upstream = Upstream::open().await;
    let mut gateway = Program::gateway(upstream.address(), "").await;
    let mut client = Talk::to(gateway.address()).await;
    client.say("GET / HTTP/1.1\nHost: a\n\n").await;
    upstream.accept().await.head().await;
    gateway.signal();
    gateway.says("stopping").await;
    gateway.signal();
    gateway.says("stopped at once").await;
    assert_eq!(gateway.end().await.code(), Some(130));
}

#[tokio::test]
async fn what_is_wrong_is_told_before_anything_starts() {
    let folder = tempfile::tempdir().expect("a folder");
    let route = "[[gateway.routes]]\nmatch = \"POST /a\"\ntenant = \"a\"\neffects = \"transactional\"\n";
    std::fs::write(folder.path().join("wrong.toml"), route).expect("settings");
    std::fs::write(folder.path().join("misspelt.toml"), "[gateway]\nupstraem = \"http://a\"\n")
        .expect("settings");
    for (args, told) in [
        (vec!["gateway"], "name the API: --upstream http://127.0.0.1:8080"),
        (
            vec!["gateway", "--upstream", "127.0.0.1:8080"],
            "gateway.upstream: must begin with http:// or https://",
        ),
        (vec!["gateway", "--upstream", "http://a", "--listen", "here"], "--listen: "),
        (
            vec!["gateway", "--config", "wrong.toml"],
            "effects cannot be transactional: the gateway does not take part in the API's transaction",
        ),
        (
            vec!["check", "--config", "wrong.toml"],
            "gateway.routes `POST /a`: effects cannot be transactional",
        ),
        (
            vec!["check", "--config", "misspelt.toml"],
            "misspelt.toml:2: unknown field `upstraem`; did you mean `upstream`?",
        ),
        (vec!["gateway", "--upstreem", "a"], "--upstream"),
    ] {
        let output = redrive(&folder).args(&args).output().await.expect("a process");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && said.contains(told), "{args:?}: {said}");
    }
    assert!(!folder.path().join("redrive.db").exists(), "nothing was touched");
}
