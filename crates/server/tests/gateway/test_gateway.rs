//! A gateway between a client and an upstream that a test plays both of, byte by byte.

use std::net::SocketAddr;
use std::time::Duration;

use redrive_server::config::Config;
use redrive_server::gateway::Gateway;
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufStream};
use tokio::net::{TcpListener, TcpStream};

/// How long anything may take that has to happen.
const PATIENCE: Duration = Duration::from_secs(20);

/// The upstream: nothing happens there but what the test says.
pub(crate) struct Upstream(TcpListener);

impl Upstream {
    pub(crate) async fn open() -> Self {
        Self(TcpListener::bind("127.0.0.1:0").await.expect("a port"))
    }

    /// At an address that was in use before.
    pub(crate) async fn at(address: SocketAddr) -> Self {
        Self(TcpListener::bind(address).await.expect("it is free"))
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.0.local_addr().expect("an address")
    }

    /// The next connection.
    pub(crate) async fn accept(&self) -> Talk {
        let accepted = in_time(self.0.accept()).await;
        Talk(BufStream::new(accepted.expect("a connection").0))
    }

    /// Whether there was no connection. Call it when all possible clients are done.
    pub(crate) async fn is_alone(&self) -> bool {
        futures_util::poll!(std::pin::pin!(self.0.accept())).is_pending()
    }
}

/// A gateway in front of it.
pub(crate) struct Gate(pub(crate) Gateway);

impl Gate {
    /// With these settings beside its addresses.
    pub(crate) async fn before(upstream: SocketAddr, settings: &str) -> Self {
        Self(Gateway::start(config(upstream, settings)).await.expect("it starts"))
    }

    pub(crate) async fn connect(&self) -> Talk {
        Talk::to(self.0.address()).await
    }
}

/// The settings of a gateway on a free port, with its records in memory.
pub(crate) fn config(upstream: SocketAddr, settings: &str) -> Config {
    let store = if settings.contains("store.address") { "" } else { "store.address = \"memory:\"\n" };
    let text = format!(
        "{store}gateway.listen = \"127.0.0.1:0\"\ngateway.upstream = \"http://{upstream}\"\n\
         {settings}"
    );
    toml::from_str(&text).unwrap_or_else(|error| panic!("{error}\n{text}"))
}

/// One side of a connection, in plain text.
#[derive(Debug)]
pub(crate) struct Talk(BufStream<TcpStream>);

impl Talk {
    pub(crate) async fn to(address: SocketAddr) -> Self {
        Self(BufStream::new(TcpStream::connect(address).await.expect("a connection")))
    }

    /// Sends this. Line ends are written as `\n`.
    pub(crate) async fn say(&mut self, text: &str) {
        self.send(text.replace('\n', "\r\n").as_bytes()).await;
    }

    pub(crate) async fn send(&mut self, bytes: &[u8]) {
        self.0.write_all(bytes).await.expect("it is sent");
        self.0.flush().await.expect("it is sent");
    }

    /// The next line, without its end.
    pub(crate) async fn line(&mut self) -> String {
        let mut line = String::new();
        in_time(self.0.read_line(&mut line)).await.expect("a line");
        line.trim_end_matches(['\r', '\n']).to_owned()
    }

    /// The head of a message: its first line, and its headers in small letters.
    pub(crate) async fn head(&mut self) -> Head {
        let first = self.line().await;
        let mut headers = Vec::new();
        loop {
            let line = self.line().await;
            if line.is_empty() {
                return Head { first, headers };
            }
            let (name, value) = line.split_once(':').unwrap_or((&line, ""));
            headers.push((name.to_lowercase(), value.trim().to_owned()));
        }
    }

    /// So many bytes, as text.
    pub(crate) async fn bytes(&mut self, count: usize) -> String {
        let mut bytes = vec![0; count];
        in_time(self.0.read_exact(&mut bytes)).await.expect("bytes");
        String::from_utf8(bytes).expect("text")
    }

    /// A whole message with a length.
    pub(crate) async fn message(&mut self) -> (Head, String) {
        let head = self.head().await;
        let length = head.get("content-length").and_then(|length| length.parse().ok()).unwrap_or(0);
        let body = self.bytes(length).await;
        (head, body)
    }

    /// Everything until the other side closes; and whether it did so cleanly.
    pub(crate) async fn rest(&mut self) -> String {
        let mut rest = Vec::new();
        // A reset is an end, too.
        let _ = in_time(self.0.read_to_end(&mut rest)).await;
        String::from_utf8(rest).expect("text")
    }
}

/// The head of a message.
#[derive(Debug)]
pub(crate) struct Head {
    pub(crate) first: String,
    pub(crate) headers: Vec<(String, String)>,
}

impl Head {
    pub(crate) fn get(&self, name: &str) -> Option<&str> {
        self.all(name).first().copied()
    }

    pub(crate) fn all(&self, name: &str) -> Vec<&str> {
        self.headers.iter().filter(|(known, _)| known == name).map(|(_, value)| value.as_str()).collect()
    }

    pub(crate) fn status(&self) -> u16 {
        self.first.split(' ').nth(1).and_then(|status| status.parse().ok()).expect("a status")
    }
}

/// Fails where it takes too long.
pub(crate) async fn in_time<T>(what: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, what).await.expect("in time")
}

/// The word of a problem document.
pub(crate) fn code(body: &str) -> String {
    let document: serde_json::Value = serde_json::from_str(body).unwrap_or_else(|_| panic!("{body}"));
    document["code"].as_str().unwrap_or_else(|| panic!("{body}")).to_owned()
}
