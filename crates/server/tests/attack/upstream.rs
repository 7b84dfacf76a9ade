//! The API behind the gateway: a small server that answers each request as the campaign says.

use std::net::SocketAddr;
use std::sync::Arc;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

/// What it was asked: the head as it came, in bytes, and the body.
pub(crate) struct Asked {
    pub(crate) head: Vec<u8>,
    pub(crate) body: Vec<u8>,
}

impl Asked {
    /// The values of a header, in bytes.
    pub(crate) fn all(&self, name: &str) -> Vec<Vec<u8>> {
        let lines = self.head.split(|byte| *byte == b'\n');
        let pairs = lines.filter_map(|line| {
            let colon = line.iter().position(|byte| *byte == b':')?;
            Some((&line[..colon], line[colon + 1..].trim_ascii()))
        });
        let named = pairs.filter(|(known, _)| known.eq_ignore_ascii_case(name.as_bytes()));
        named.map(|(_, value)| value.to_vec()).collect()
    }

    /// The one value of a header, as text.
    pub(crate) fn header(&self, name: &str) -> Option<String> {
        self.all(name).first().map(|value| String::from_utf8_lossy(value).into_owned())
    }
}

/// A running server; it ends when this is dropped.
pub(crate) struct Upstream {
    pub(crate) address: SocketAddr,
    accepting: JoinHandle<()>,
}

impl Drop for Upstream {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

impl Upstream {
    /// Answers each request with these bytes. A connection ends after an answer without a length.
    pub(crate) async fn answering<F>(answer: F) -> Self
    where
        F: Fn(&Asked) -> Vec<u8> + Send + Sync + 'static,
    {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address");
        let answer = Arc::new(answer);
        let accepting = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let answer = answer.clone();
                tokio::spawn(async move { serve(stream, &*answer).await });
            }
        });
        Self { address, accepting }
    }
}

async fn serve(mut stream: TcpStream, answer: &(impl Fn(&Asked) -> Vec<u8> + ?Sized)) -> Option<()> {
    let mut read = Vec::new();
    loop {
        let end = loop {
            if let Some(end) = read.windows(4).position(|window| window == b"\r\n\r\n") {
                break end + 4;
            }
            if stream.read_buf(&mut read).await.ok()? == 0 {
                return None;
            }
        };
        let mut asked = Asked { head: read.drain(..end).collect(), body: Vec::new() };
        let length = asked.header("content-length").and_then(|text| text.parse().ok()).unwrap_or(0);
        while read.len() < length && stream.read_buf(&mut read).await.ok()? > 0 {}
        asked.body = read.drain(..length.min(read.len())).collect();
        let bytes = answer(&asked);
        stream.write_all(&bytes).await.ok()?;
        if !bytes.windows(15).any(|window| window.eq_ignore_ascii_case(b"content-length:")) {
            return None;
        }
    }
}

/// An answer with a length.
pub(crate) fn answer(status: &str, headers: &str, body: &str) -> Vec<u8> {
    format!("HTTP/1.1 {status}\r\n{headers}Content-Length: {}\r\n\r\n{body}", body.len()).into_bytes()
}
