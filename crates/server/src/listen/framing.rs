//! Requests whose length two readers could see differently: 400, and the connection ends (RFC 9112, 6.1 and 6.3).
//!
//! The HTTP library accepts a `Content-Length` beside `Transfer-Encoding`, removes it, and goes on by the chunks. That
//! is what the RFC asks for at least; a proxy in front that went by the length has then sent a second request inside
//! of the first. The removed line cannot be seen in the parsed request, so the bytes are watched as they are read:
//! which framing headers the lines since the last request line have.
//!
//! The watcher is no second parser, and errs to one side: lines of a head are always seen, and a body that looks like a
//! head can only have the chunked request after it refused. It hands the bytes over up to the end of each head, so that
//! the lines it has seen are those of the request that the library has just parsed, and it looks at them only for
//! requests with chunks.
//!
//! A head has a line that ends in its version. An empty line after no such line is of a body: if it ended a read too, a
//! body of empty lines would be read byte by byte.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};

use axum::body::Body;
use axum::response::IntoResponse as _;
use bytes::{Buf as _, Bytes};
use http::header::{CONNECTION, TRANSFER_ENCODING};
use http::{HeaderMap, HeaderValue, Response, StatusCode};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::api::ApiProblem;

/// How every request line ends that the library reads.
const VERSIONS: [u64; 2] = [u64::from_be_bytes(*b"HTTP/1.0"), u64::from_be_bytes(*b"HTTP/1.1")];

/// Longer names are no header that matters.
const NAME_MAX: usize = 18;

/// Whether the head that was read last has a `Content-Length`.
#[derive(Debug, Clone, Default)]
pub(super) struct LastHead(Arc<AtomicBool>);

impl LastHead {
    /// Notes whether a head that ended has a length.
    fn note(&self, end: Option<bool>) {
        if let Some(has_length) = end {
            self.0.store(has_length, Ordering::Release);
        }
    }

    /// Whether the request that was just parsed has an ambiguous length.
    pub(super) fn is_ambiguous(&self, headers: &HeaderMap) -> bool {
        let mut codings = headers.get_all(TRANSFER_ENCODING).iter().map(HeaderValue::as_bytes);
        match (codings.next(), codings.next()) {
            (None, _) => false,
            (Some(coding), None) if coding.eq_ignore_ascii_case(b"chunked") => self.0.load(Ordering::Acquire),
            // Several codings, or one that cannot be passed on.
            _ => true,
        }
    }
}

/// The response to such a request. Its connection ends, because what follows on it may be no request.
pub(super) fn refusal() -> Response<Body> {
    let detail =
        "the length of the request is ambiguous: send Content-Length, or Transfer-Encoding: chunked, once";
    let problem = ApiProblem::new(StatusCode::BAD_REQUEST, "framing-ambiguous", detail);
    let problem = problem.with("code", "framing-ambiguous").with("retryable", false);
    let mut response = problem.into_response();
    response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    response
}

/// Where in a line the watcher is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Line {
    /// Nothing but a carriage return so far.
    Empty,
    /// In what may be the name of a header.
    Name,
    /// After the colon.
    Value,
    /// It cannot be a header: a request line, or a part of a body.
    Other,
}

/// Follows the lines of a connection.
#[derive(Debug)]
struct Lines {
    line: Line,
    name: [u8; NAME_MAX],
    length: usize,
    /// The lines since the last one that is no header have a `Content-Length`.
    has_length: bool,
    /// The last bytes of the line, but for carriage returns.
    tail: u64,
    /// A line since the last empty one may be a request line.
    is_head: bool,
}

impl Lines {
    const fn new() -> Self {
        Self { line: Line::Empty, name: [0; NAME_MAX], length: 0, has_length: false, tail: 0, is_head: false }
    }

    /// Goes on to the end of the next head, or of the bytes: how many bytes that are, and whether a head ends there
    /// that has a length.
    fn advance(&mut self, bytes: &[u8]) -> (usize, Option<bool>) {
        for (at, byte) in bytes.iter().enumerate() {
            if *byte == b'\n' {
                self.is_head |= VERSIONS.contains(&self.tail);
            }
            if *byte != b'\r' {
                self.tail = self.tail << 8 | u64::from(*byte);
            }
            match (self.line, *byte) {
                (Line::Empty, b'\n') => {
                    let has_length = std::mem::take(&mut self.has_length);
                    if std::mem::take(&mut self.is_head) {
                        return (at + 1, Some(has_length));
                    }
                }
                (Line::Empty, b'\r') => {}
                (_, b'\n') => {
                    match self.line {
                        Line::Value => {
                            let name = &self.name[..self.length.min(NAME_MAX)];
                            self.has_length |= name.eq_ignore_ascii_case(b"content-length");
                        }
                        // Headers follow it, or it is no head.
                        _ => self.has_length = false,
                    }
                    self.line = Line::Empty;
                    self.length = 0;
                }
                (Line::Empty | Line::Name, b':') => self.line = Line::Value,
                (Line::Empty | Line::Name, byte) if byte.is_ascii_graphic() => {
                    self.line = Line::Name;
                    if let Some(place) = self.name.get_mut(self.length) {
                        *place = byte;
                    }
                    self.length += 1;
                }
                (Line::Empty | Line::Name, _) => self.line = Line::Other,
                (Line::Value | Line::Other, _) => {}
            }
        }
        (bytes.len(), None)
    }
}

/// A connection whose heads are watched.
#[derive(Debug)]
pub(super) struct WatchedStream<S> {
    stream: S,
    lines: Lines,
    last: LastHead,
    /// Bytes after the end of a head, for the next read.
    rest: Bytes,
}

impl<S> WatchedStream<S> {
    pub(super) fn new(stream: S, last: LastHead) -> Self {
        Self { stream, lines: Lines::new(), last, rest: Bytes::new() }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for WatchedStream<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        if !this.rest.is_empty() {
            // Only what is handed over is copied: there may be many heads in it.
            let count = this.rest.len().min(buf.remaining());
            let (read, end) = this.lines.advance(&this.rest[..count]);
            buf.put_slice(&this.rest[..read]);
            this.rest.advance(read);
            this.last.note(end);
            return Poll::Ready(Ok(()));
        }
        let before = buf.filled().len();
        match Pin::new(&mut this.stream).poll_read(cx, buf) {
            Poll::Ready(Ok(())) => {}
            other => return other,
        }
        let (read, end) = this.lines.advance(&buf.filled()[before..]);
        this.last.note(end);
        if before + read < buf.filled().len() {
            this.rest = Bytes::copy_from_slice(&buf.filled()[before + read..]);
            buf.set_filled(before + read);
        }
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for WatchedStream<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The heads of a connection that comes in pieces of `size`: whether each has a length.
    fn heads(text: &str, size: usize) -> Vec<bool> {
        let mut lines = Lines::new();
        let mut found = Vec::new();
        for mut piece in text.as_bytes().chunks(size) {
            while !piece.is_empty() {
                let (read, end) = lines.advance(piece);
                found.extend(end);
                piece = &piece[read..];
            }
        }
        found
    }

    #[test]
    fn the_last_head_is_known_however_its_bytes_come() {
        for (text, last) in [
            ("GET / HTTP/1.1\r\nHost: a\r\n\r\n", false),
            ("PUT / HTTP/1.1\r\nContent-Length: 3\r\n\r\n", true),
            ("PUT / HTTP/1.1\r\ncontent-length:3\r\nHost: a\r\n\r\n", true),
            ("PUT / HTTP/1.1\nCONTENT-LENGTH: 3\n\n", true),
            ("PUT / HTTP/1.1\r\nX-Content-Length: 3\r\nContent-Length-X: 1\r\n\r\n", false),
            ("PUT / HTTP/1.1\r\nX: Content-Length: 3\r\n\r\n", false),
            // A body that ends in a header, and the head after it; without a line end between them, the request is
            // rather refused.
            ("Content-Length: 3PUT / HTTP/1.1\r\nHost: a\r\n\r\n", true),
            ("content-length: 3\r\nPUT / HTTP/1.1\r\nHost: a\r\n\r\n", false),
            ("PUT http://a:80/ HTTP/1.1\r\nContent-Length: 3\r\n\r\n", true),
            ("\r\n\r\nGET / HTTP/1.1\r\nContent-Length: 0\r\n\r\n", true),
            ("body\n\nPUT / HTTP/1.0\r\nContent-Length: 0\r\n\r\n", true),
            ("Content-Length: 3\n\nPUT / HTTP/1.1\r\nHost: a\r\n\r\n", false),
            ("name: PUT / HTTP/1.1\r\nContent-Length: 3\r\n\r\n", true),
        ] {
            for size in [1, 2, 7, 1000] {
                assert_eq!(heads(text, size).last(), Some(&last), "{text:?} by {size}");
            }
        }
    }

    #[tokio::test]
    async fn bytes_pass_unchanged_and_a_read_ends_where_a_head_ends() {
        use tokio::io::AsyncReadExt as _;

        let text = b"GET / HTTP/1.1\r\n\r\nbody\n\nPUT / HTTP/1.1\r\nContent-Length: 1\r\n\r\nx";
        let last = LastHead::default();
        let mut stream = WatchedStream::new(&text[..], last.clone());
        let mut read = Vec::new();
        let mut ends = Vec::new();
        while stream.read_buf(&mut read).await.expect("bytes") > 0 {
            ends.push((read.len(), last.0.load(Ordering::Acquire)));
        }
        assert_eq!(read, text);
        assert_eq!(ends, [(18, false), (61, true), (62, true)]);
    }

    /// How many reads it takes to get all of it, with room for all.
    async fn reads(text: &[u8]) -> usize {
        use tokio::io::AsyncReadExt as _;

        let mut stream = WatchedStream::new(text, LastHead::default());
        let (mut read, mut count) = (Vec::with_capacity(text.len() + 1), 0);
        while stream.read_buf(&mut read).await.expect("bytes") > 0 {
            count += 1;
        }
        assert_eq!(read.len(), text.len());
        count
    }

    #[tokio::test]
    async fn empty_lines_of_a_body_do_not_end_a_read() {
        let head = b"PUT / HTTP/1.1\r\nContent-Length: 100000\r\n\r\n";
        for body in ["\n", "\r\n", "a\n\n", "Content-Length: 1\r\n\r\n", "HTTP/1.2\n\n"] {
            let text = [&head[..], body.repeat(20_000).as_bytes()].concat();
            assert_eq!(reads(&text).await, 2, "{body:?}");
        }
        // What looks like a head ends one, and costs no more for what comes after it.
        let began = std::time::Instant::now();
        assert_eq!(reads("G / HTTP/1.1\n\n".repeat(100_000).as_bytes()).await, 100_000);
        assert!(began.elapsed() < std::time::Duration::from_secs(20), "{:?}", began.elapsed());
    }
}
