//! The witness: a process that counts effects, and outlives the crashes of the workers.
//!
//! It speaks just enough HTTP to be a downstream service: `POST /effect` happens once a request, or once an
//! `Idempotency-Key`. A request with `x-lose` happens, and its answer is lost. `POST /down` is a service that fails.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

use anyhow::{Context, Result, bail};

/// Effects by run and id, and the keys that were seen.
#[derive(Default)]
struct Seen {
    effects: BTreeMap<(String, String), u64>,
    keys: BTreeSet<(String, String)>,
}

/// Serves until its standard input ends, which is when the runner does. Prints its address.
pub(crate) fn serve() -> Result<()> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    println!("{}", listener.local_addr()?);
    std::thread::spawn(|| {
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
        std::process::exit(0);
    });
    let seen = Arc::new(Mutex::new(Seen::default()));
    for stream in listener.incoming() {
        let (stream, seen) = (stream?, seen.clone());
        std::thread::spawn(move || {
            let _ = answer(&stream, &seen);
        });
    }
    Ok(())
}

/// Answers the requests of a connection.
fn answer(stream: &TcpStream, seen: &Mutex<Seen>) -> Result<()> {
    let mut lines = BufReader::new(stream);
    loop {
        let mut first = String::new();
        if lines.read_line(&mut first)? == 0 {
            return Ok(());
        }
        let mut headers = BTreeMap::new();
        loop {
            let mut line = String::new();
            lines.read_line(&mut line)?;
            let Some((name, value)) = line.trim_end().split_once(':') else { break };
            headers.insert(name.to_lowercase(), value.trim().to_owned());
        }
        let length = headers.get("content-length").and_then(|text| text.parse().ok()).unwrap_or(0);
        lines.read_exact(&mut vec![0; length])?;
        let path = first.split(' ').nth(1).unwrap_or_default();
        let (status, body) = {
            let mut seen = seen.lock().expect("a witness does not panic");
            seen.take(path, &headers)
        };
        if headers.contains_key("x-lose") {
            return Ok(());
        }
        let mut stream = stream;
        write!(stream, "HTTP/1.1 {status} said\r\ncontent-length: {}\r\n\r\n{body}", body.len())?;
    }
}

impl Seen {
    fn take(&mut self, path: &str, headers: &BTreeMap<String, String>) -> (u16, String) {
        let get = |name: &str| headers.get(name).cloned().unwrap_or_default();
        let (run, id) = (get("x-run"), get("x-id"));
        if path == "/count" {
            let of_run = self.effects.iter().filter(|((of, _), _)| *of == run);
            return (200, of_run.map(|((_, id), count)| format!("{id} {count}\n")).collect());
        }
        let is_first =
            headers.get("idempotency-key").is_none_or(|key| self.keys.insert((run.clone(), key.clone())));
        if is_first {
            *self.effects.entry((run, id)).or_default() += 1;
        }
        (if path == "/down" { 500 } else { 200 }, String::new())
    }
}

/// A worker's way to the witness.
#[derive(Clone)]
pub(crate) struct Witness {
    address: SocketAddr,
    run: String,
}

impl Witness {
    pub(crate) const fn new(address: SocketAddr, run: String) -> Self {
        Self { address, run }
    }

    pub(crate) fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    pub(crate) fn run(&self) -> &str {
        &self.run
    }

    /// Has an effect, over a connection of its own. An error: no answer came.
    pub(crate) fn effect(&self, id: &str, key: Option<&str>, is_lost: bool) -> Result<()> {
        let key = key.map(|key| format!("idempotency-key: {key}\r\n")).unwrap_or_default();
        let lose = if is_lost { "x-lose: 1\r\n" } else { "" };
        let answer = self.ask(&format!("POST /effect HTTP/1.1\r\nx-id: {id}\r\n{key}{lose}"))?;
        if answer.is_empty() { bail!("no answer") } else { Ok(()) }
    }

    /// The effects of this run.
    pub(crate) fn count(&self) -> Result<BTreeMap<String, u64>> {
        let answer = self.ask("GET /count HTTP/1.1\r\n")?;
        let (_, body) = answer.split_once("\r\n\r\n").context("no answer")?;
        let lines = body.lines().filter_map(|line| line.rsplit_once(' '));
        lines.map(|(id, count)| Ok((id.to_owned(), count.parse()?))).collect()
    }

    fn ask(&self, head: &str) -> Result<String> {
        let mut stream = TcpStream::connect(self.address)?;
        write!(stream, "{head}x-run: {}\r\n\r\n", self.run)?;
        stream.shutdown(std::net::Shutdown::Write)?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        Ok(answer)
    }
}
