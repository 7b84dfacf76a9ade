//! A client that costs little: requests written as bytes, answers read no further than they must be.

use std::future::Future;
use std::time::{Duration, Instant};

use redrive_benches::server_process::used;
use redrive_benches::turn::WARM_UP;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::{CONNECTIONS, REPLAYED};

/// What a request asks: some JSON, as an API has it.
const BODY: &str = r#"{"cabin":"A-117","guests":[{"name":"Ada Lovelace","age":36},{"name":"Charles Babbage","age":44}],"nights":7,"price":{"amount":1284.50,"currency":"EUR"},"from":"2026-12-24","note":"late arrival, please keep the key at the desk"}"#;

/// Which keys requests have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Keys {
    /// One that was never seen.
    Fresh,
    /// One whose request ended before.
    Replayed,
}

/// What to ask whom.
pub(crate) struct Load {
    pub(crate) address: String,
    pub(crate) connections: usize,
    pub(crate) keys: Keys,
    pub(crate) time: Duration,
    /// The process that answers.
    pub(crate) server: u32,
}

/// What came of it.
pub(crate) struct Measured {
    /// Requests a second.
    pub(crate) rate: f64,
    /// What one of them cost the server, in microseconds of a processor.
    pub(crate) micros: Option<f64>,
}

impl Load {
    pub(crate) async fn run(self) -> Result<Measured, String> {
        let Self { address, connections, keys, time, server } = self;
        let prepared = (0..connections).map(|number| Connection::open(address.clone(), number, keys));
        let prepared = all(prepared).await?;

        let start = Instant::now() + WARM_UP;
        let end = start + time;
        let cost = tokio::spawn(async move {
            tokio::time::sleep_until(start.into()).await;
            let before = used(server)?;
            tokio::time::sleep_until(end.into()).await;
            Some(used(server)? - before)
        });
        let counts = all(prepared.into_iter().map(|connection| connection.ask_from(start, end))).await?;
        let cost = cost.await.map_err(|error| error.to_string())?;
        let count: f64 = counts.into_iter().map(f64::from).sum();
        Ok(Measured { rate: count / time.as_secs_f64(), micros: cost.map(|cost| cost * 1e6 / count) })
    }
}

/// All of them at once.
async fn all<T: Send + 'static>(
    tasks: impl Iterator<Item = impl Future<Output = Result<T, String>> + Send + 'static>,
) -> Result<Vec<T>, String> {
    let mut set: tokio::task::JoinSet<_> = tasks.collect();
    let mut results = Vec::new();
    while let Some(done) = set.join_next().await {
        results.push(done.map_err(|error| error.to_string())??);
    }
    Ok(results)
}

/// A client with a connection of its own.
struct Connection {
    stream: TcpStream,
    /// What every request begins with.
    head: String,
    number: usize,
    keys: Keys,
    answer: Vec<u8>,
}

impl Connection {
    /// Connects, and has run what is to be replayed.
    async fn open(address: String, number: usize, keys: Keys) -> Result<Self, String> {
        let text = |error: std::io::Error| format!("{address}: {error}");
        let stream = TcpStream::connect(&address).await.map_err(text)?;
        stream.set_nodelay(true).map_err(text)?;
        let mut this = Self { stream, head: String::new(), number, keys, answer: Vec::new() };
        // A rival that keeps answers in a session wants one.
        let made = this.exchange(&format!("GET /session HTTP/1.1\r\nhost: {address}\r\n\r\n")).await?;
        let cookie = made.lines().find_map(|line| line.strip_prefix("set-cookie: ")?.split(';').next());
        let cookie = cookie.map(|cookie| format!("cookie: {cookie}\r\n")).unwrap_or_default();
        this.head = format!(
            "POST /bookings HTTP/1.1\r\nhost: {address}\r\n{cookie}content-type: application/json\r\n\
             content-length: {}\r\nidempotency-key: ",
            BODY.len()
        );
        let before = if keys == Keys::Replayed { REPLAYED / CONNECTIONS } else { 0 };
        for turn in 0..before {
            this.post(turn).await?;
        }
        Ok(this)
    }

    /// Asks again and again; the requests that were answered between the two.
    async fn ask_from(mut self, start: Instant, end: Instant) -> Result<u32, String> {
        let (mut counted, mut turn) = (0, 0);
        loop {
            let head = self.post(turn).await?;
            check(&head, self.keys)?;
            let now = Instant::now();
            if now >= end {
                return Ok(counted);
            }
            counted += u32::from(now >= start);
            turn += 1;
        }
    }

    async fn post(&mut self, turn: usize) -> Result<String, String> {
        let request = format!("{}{}\r\n\r\n{BODY}", self.head, self.keys.key(self.number, turn));
        let head = self.exchange(&request).await?;
        if head.starts_with("http/1.1 201") { Ok(head) } else { Err(format!("the server says {head}")) }
    }

    async fn exchange(&mut self, request: &str) -> Result<String, String> {
        self.stream.write_all(request.as_bytes()).await.map_err(|error| error.to_string())?;
        read(&mut self.stream, &mut self.answer).await
    }
}

/// A contender that does not replay measures something else. The bare handler has no header.
fn check(head: &str, keys: Keys) -> Result<(), String> {
    let ours = head.lines().find_map(|line| line.strip_prefix("idempotent-replayed: "));
    let rival = head.contains("\r\nidempotency-replayed: true");
    match (ours, keys) {
        (Some("true"), Keys::Fresh) | (Some("false"), Keys::Replayed) => Err(format!("not {keys:?}: {head}")),
        (None, Keys::Fresh) if rival => Err(format!("not {keys:?}: {head}")),
        (None, Keys::Replayed) if !rival && head.contains("x-rival") => Err(format!("not {keys:?}: {head}")),
        _ => Ok(()),
    }
}

/// Reads one answer; its head, in lower case.
async fn read(stream: &mut TcpStream, answer: &mut Vec<u8>) -> Result<String, String> {
    answer.clear();
    loop {
        let count = stream.read_buf(answer).await.map_err(|error| error.to_string())?;
        if count == 0 {
            return Err("the server hung up".to_owned());
        }
        let Some(head) = answer.windows(4).position(|bytes| bytes == b"\r\n\r\n") else { continue };
        let text = String::from_utf8_lossy(&answer[..head]).into_owned();
        let lower = text.to_ascii_lowercase();
        let length =
            lower.lines().find_map(|line| line.strip_prefix("content-length: ")?.trim().parse().ok());
        let length: usize = length.ok_or("an answer without a length")?;
        if answer.len() >= head + 4 + length {
            // A cookie's value is not to be changed.
            let cookie = text.lines().find(|line| line.to_ascii_lowercase().starts_with("set-cookie: "));
            let cookie = cookie.map(|line| format!("\r\nset-cookie: {}", &line[12..])).unwrap_or_default();
            return Ok(format!("{}{cookie}", lower.replace("\r\nset-cookie: ", "\r\nx-cookie: ")));
        }
    }
}
