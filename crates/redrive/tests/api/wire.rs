//! A server on a free port and a client that writes bytes, so that tests see the bytes on the wire.

use std::net::SocketAddr;
use std::sync::Arc;

use axum::Router;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

use crate::spy::within;

/// A server that ends with its test.
pub(crate) struct Server {
    address: SocketAddr,
    serving: JoinHandle<()>,
}

impl Drop for Server {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

impl Server {
    pub(crate) async fn start(app: Router) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let serving = tokio::spawn(async move { axum::serve(listener, app).await.unwrap() });
        Self { address, serving }
    }

    /// The URL of a path, for other clients.
    #[cfg(feature = "reqwest")]
    pub(crate) fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    /// Sends a request, and leaves the connection open.
    pub(crate) async fn send(&self, request: &Request) -> TcpStream {
        let mut stream = TcpStream::connect(self.address).await.unwrap();
        stream.write_all(&request.bytes()).await.unwrap();
        stream
    }

    /// Asks, while the test goes on.
    pub(crate) fn later(self: &Arc<Self>, request: Request) -> JoinHandle<Answer> {
        let server = Arc::clone(self);
        tokio::spawn(async move { server.ask(&request).await })
    }

    pub(crate) async fn ask(&self, request: &Request) -> Answer {
        let mut stream = self.send(request).await;
        let mut bytes = Vec::new();
        within(stream.read_to_end(&mut bytes)).await.unwrap();
        Answer::parse(&bytes)
    }
}

/// A request, byte for byte.
#[derive(Debug, Clone)]
pub(crate) struct Request {
    line: String,
    headers: Vec<(String, Vec<u8>)>,
    body: Vec<u8>,
    chunked: bool,
}

/// `POST /bookings` with this body.
pub(crate) fn post(body: &str) -> Request {
    let json = ("content-type".to_owned(), b"application/json".to_vec());
    Request { line: "POST /bookings".to_owned(), headers: vec![json], body: body.into(), chunked: false }
}

impl Request {
    pub(crate) fn line(mut self, line: &str) -> Self {
        line.clone_into(&mut self.line);
        self
    }

    /// Does not announce the length of the body.
    pub(crate) fn chunked(mut self) -> Self {
        self.chunked = true;
        self
    }

    pub(crate) fn key(self, key: &str) -> Self {
        self.header("idempotency-key", key)
    }

    pub(crate) fn header(mut self, name: &str, value: impl AsRef<[u8]>) -> Self {
        self.headers.push((name.to_owned(), value.as_ref().to_vec()));
        self
    }

    fn bytes(&self) -> Vec<u8> {
        let mut bytes = format!("{} HTTP/1.1\r\nhost: test\r\nconnection: close\r\n", self.line).into_bytes();
        for (name, value) in &self.headers {
            bytes.extend_from_slice(name.as_bytes());
            bytes.extend_from_slice(b": ");
            bytes.extend_from_slice(value);
            bytes.extend_from_slice(b"\r\n");
        }
        if self.chunked {
            bytes.extend_from_slice(b"transfer-encoding: chunked\r\n\r\n");
            for byte in &self.body {
                bytes.extend_from_slice(&[b'1', b'\r', b'\n', *byte, b'\r', b'\n']);
            }
            bytes.extend_from_slice(b"0\r\n\r\n");
            return bytes;
        }
        bytes.extend_from_slice(format!("content-length: {}\r\n\r\n", self.body.len()).as_bytes());
        bytes.extend_from_slice(&self.body);
        bytes
    }
}

/// The response.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) headers: Vec<(String, Vec<u8>)>,
    pub(crate) body: Vec<u8>,
}

impl Answer {
    fn parse(bytes: &[u8]) -> Self {
        let end = bytes.windows(4).position(|four| four == b"\r\n\r\n").expect("a head");
        let (head, mut body) = (&bytes[..end], bytes[end + 4..].to_vec());
        let mut lines = head.split(|byte| *byte == b'\n').map(<[u8]>::trim_ascii);
        let line = String::from_utf8_lossy(lines.next().unwrap()).into_owned();
        let status = line.split(' ').nth(1).unwrap().parse().unwrap();
        let header = |line: &[u8]| {
            let at = line.iter().position(|byte| *byte == b':').unwrap();
            (String::from_utf8_lossy(&line[..at]).to_ascii_lowercase(), line[at + 1..].trim_ascii().to_vec())
        };
        let headers: Vec<_> = lines.map(header).collect();
        let chunked = headers.iter().any(|(name, value)| name == "transfer-encoding" && value == b"chunked");
        if chunked {
            body = unchunked(&body);
        }
        Self { status, headers, body }
    }

    pub(crate) fn header(&self, name: &str) -> Option<String> {
        let found = self.headers.iter().find(|(known, _)| known == name);
        found.map(|(_, value)| String::from_utf8_lossy(value).into_owned())
    }

    pub(crate) fn all(&self, name: &str) -> Vec<String> {
        let found = self.headers.iter().filter(|(known, _)| known == name);
        found.map(|(_, value)| String::from_utf8_lossy(value).into_owned()).collect()
    }

    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    pub(crate) fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.body).unwrap()
    }

    /// The code of a problem document, which is checked to be complete.
    pub(crate) fn code(&self) -> String {
        assert_eq!(self.header("content-type").as_deref(), Some("application/problem+json"), "{self:?}");
        let json = self.json();
        let code = json["code"].as_str().unwrap().to_owned();
        assert_eq!(json["status"], self.status);
        assert!(json["retryable"].is_boolean(), "{json}");
        assert!(json["type"].as_str().unwrap().ends_with(&format!("#{code}")), "{json}");
        code
    }
}

fn unchunked(mut rest: &[u8]) -> Vec<u8> {
    let mut body = Vec::new();
    while let Some(at) = rest.windows(2).position(|two| two == b"\r\n") {
        let size = usize::from_str_radix(std::str::from_utf8(&rest[..at]).unwrap(), 16).unwrap();
        body.extend_from_slice(&rest[at + 2..at + 2 + size]);
        rest = &rest[at + 2 + size + 2..];
        if size == 0 {
            break;
        }
    }
    body
}
