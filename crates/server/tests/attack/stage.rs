//! What all campaigns need: the program under attack, connections to it, and how long to go on.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use serde_json::Value;
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::TcpStream;
use tokio::process::{Child, ChildStderr, Command};

pub(crate) use crate::campaign::scaled;

/// How long anything may take that has to happen.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// The program, without the environment of the test run.
pub(crate) fn redrive(folder: &TempDir) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_redrive"));
    let ours = std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("REDRIVE_"));
    ours.for_each(|(name, _)| _ = command.env_remove(name));
    command.current_dir(folder.path()).env("REDRIVE_OBSERVE_LOG_FORM", "json").kill_on_drop(true);
    command
}

/// A gateway that runs; it ends when this is dropped.
pub(crate) struct Gateway {
    pub(crate) address: SocketAddr,
    pub(crate) admin: SocketAddr,
    folder: TempDir,
    _child: Child,
}

impl Gateway {
    /// In front of this upstream, with these settings.
    pub(crate) async fn before(upstream: SocketAddr, settings: &str) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        std::fs::write(folder.path().join("redrive.toml"), settings).expect("settings");
        let mut command = redrive(&folder);
        command.args(["gateway", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"]);
        command.args(["--store", "sqlite:gateway.db", "--upstream", &format!("http://{upstream}")]);
        let mut child = command.stderr(Stdio::piped()).spawn().expect("a process");
        let mut lines = BufReader::new(child.stderr.take().expect("it is piped")).lines();
        let mut addresses = Vec::new();
        while addresses.len() < 2 {
            let line = in_time(lines.next_line()).await.expect("it talks").expect("it still runs");
            let line: Value = serde_json::from_str(&line).unwrap_or_else(|_| panic!("{line}"));
            let message = line["message"].as_str().unwrap_or_default().to_owned();
            let address = message.split("http://").nth(1).and_then(|rest| rest.split(',').next());
            addresses.extend(address.and_then(|address| address.parse::<SocketAddr>().ok()));
        }
        tokio::spawn(drain(lines.into_inner()));
        Self { address: addresses[0], admin: addresses[1], folder, _child: child }
    }

    /// A file of its folder.
    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }
}

/// Reads what the program says, so that it is never held up by it.
async fn drain(mut log: BufReader<ChildStderr>) {
    let mut line = String::new();
    while log.read_line(&mut line).await.is_ok_and(|length| length > 0) {
        line.clear();
    }
}

/// What came back.
#[derive(Debug, Clone)]
pub(crate) struct Reply {
    pub(crate) status: u16,
    pub(crate) head: String,
    pub(crate) body: String,
}

impl Reply {
    /// A header, in lower case.
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        let mut lines = self.head.lines().filter_map(|line| line.split_once(':'));
        lines.find(|(known, _)| known.eq_ignore_ascii_case(name)).map(|(_, value)| value.trim())
    }
}

/// Sends raw bytes on a connection of their own. `None` where the other side ends without a reply.
pub(crate) async fn shout(address: SocketAddr, bytes: &[u8]) -> Option<Reply> {
    let mut stream = TcpStream::connect(address).await.ok()?;
    stream.write_all(bytes).await.ok()?;
    in_time(reply(&mut stream)).await
}

/// Reads one reply with a length.
pub(crate) async fn reply(stream: &mut TcpStream) -> Option<Reply> {
    let mut read = Vec::new();
    let end = loop {
        if let Some(end) = read.windows(4).position(|window| window == b"\r\n\r\n") {
            break end + 4;
        }
        if stream.read_buf(&mut read).await.ok()? == 0 {
            return None;
        }
    };
    let head = String::from_utf8_lossy(&read[..end]).into_owned();
    let status = head.split(' ').nth(1)?.parse().ok()?;
    let mut found = Reply { status, head, body: String::new() };
    let length = found.header("content-length").and_then(|length| length.parse().ok()).unwrap_or(0);
    while read.len() < end + length && stream.read_buf(&mut read).await.ok()? > 0 {}
    found.body = String::from_utf8_lossy(&read[end..]).into_owned();
    Some(found)
}

/// Fails where it takes too long.
pub(crate) async fn in_time<T>(what: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, what).await.expect("in time")
}

/// A client that keeps its connection.
pub(crate) struct Client {
    address: SocketAddr,
    stream: Option<TcpStream>,
}

impl Client {
    pub(crate) const fn of(address: SocketAddr) -> Self {
        Self { address, stream: None }
    }

    /// Sends a request and has its reply.
    pub(crate) async fn ask(&mut self, request: &str) -> Reply {
        let asked = in_time(self.try_ask(request)).await;
        asked.unwrap_or_else(|| panic!("no reply to {request}"))
    }

    async fn try_ask(&mut self, request: &str) -> Option<Reply> {
        let mut stream = match self.stream.take() {
            Some(stream) => stream,
            None => TcpStream::connect(self.address).await.ok()?,
        };
        stream.write_all(request.as_bytes()).await.ok()?;
        let found = reply(&mut stream).await?;
        if found.header("connection") != Some("close") {
            self.stream = Some(stream);
        }
        Some(found)
    }
}

/// A request with a key; headers end in line ends.
pub(crate) fn post(path: &str, key: &str, headers: &str, body: &str) -> String {
    format!(
        "POST {path} HTTP/1.1\r\nHost: a\r\nIdempotency-Key: {key}\r\n{headers}Content-Length: {}\r\n\r\n{body}",
        body.len()
    )
}

/// Does something for each number below `count`, by some clients at once; gives what came of each.
pub(crate) async fn each<T, F, Fut>(address: SocketAddr, count: usize, work: F) -> Vec<T>
where
    F: Fn(Client, usize) -> Fut + Clone + Send + 'static,
    Fut: Future<Output = (Client, T)> + Send,
    T: Send + 'static,
{
    const AT_ONCE: usize = 32;
    let mut workers = tokio::task::JoinSet::new();
    for worker in 0..AT_ONCE {
        let work = work.clone();
        workers.spawn(async move {
            let (mut client, mut found) = (Client::of(address), Vec::new());
            for number in (worker..count).step_by(AT_ONCE) {
                let (kept, one) = work(client, number).await;
                client = kept;
                found.push(one);
            }
            found
        });
    }
    workers.join_all().await.into_iter().flatten().collect()
}

/// Lets this process have as many connections as the system allows.
pub(crate) fn many_connections() {
    use rustix::process::{Resource, getrlimit, setrlimit};

    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    let _ = setrlimit(Resource::Nofile, limit);
}
