//! A real HTTP server on loopback that answers by a script, and records its requests.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use http::{HeaderName, HeaderValue, Request, Response, StatusCode, request::Parts};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

/// What to do with one request.
#[derive(Debug, Clone)]
pub enum Reply {
    /// Answer.
    Answer {
        /// The status.
        status: StatusCode,
        /// Headers, in order.
        headers: Vec<(HeaderName, HeaderValue)>,
        /// The body.
        body: &'static str,
    },
    /// Read the request, then close the connection without an answer.
    Cut,
    /// Read the request and never answer.
    Stall,
}

impl Reply {
    /// A reply with this status and nothing else.
    ///
    /// # Panics
    /// If it is not a valid status.
    #[must_use]
    pub fn status(status: u16) -> Self {
        let status = StatusCode::from_u16(status).expect("a status");
        Self::Answer { status, headers: Vec::new(), body: "" }
    }

    /// The reply with one more header.
    ///
    /// # Panics
    /// If the value is not a valid header value.
    #[must_use]
    pub fn header(mut self, name: &'static str, value: &str) -> Self {
        if let Self::Answer { headers, .. } = &mut self {
            headers.push((HeaderName::from_static(name), value.parse().expect("a header value")));
        }
        self
    }

    /// The reply with this body.
    #[must_use]
    pub fn body(mut self, text: &'static str) -> Self {
        if let Self::Answer { body, .. } = &mut self {
            *body = text;
        }
        self
    }
}

/// A request that arrived.
#[derive(Debug, Clone)]
pub struct Asked {
    /// Method, address, headers.
    pub head: Parts,
    /// The body.
    pub body: Bytes,
}

impl Asked {
    /// A header as text, if it was there.
    #[must_use]
    pub fn header(&self, name: &str) -> Option<&str> {
        self.head.headers.get(name)?.to_str().ok()
    }
}

#[derive(Debug, Default)]
struct AttemptHistory {
    script: VecDeque<Reply>,
    asked: Vec<Asked>,
}

/// The server. Stops when it is dropped. After the script's end it answers 200.
#[derive(Debug)]
pub struct Scripted {
    address: SocketAddr,
    history: Arc<Mutex<AttemptHistory>>,
    task: JoinHandle<()>,
}

impl Scripted {
    /// Starts one on a free port.
    ///
    /// # Panics
    /// If it cannot listen on loopback.
    pub async fn start(script: impl IntoIterator<Item = Reply>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("loopback");
        let address = listener.local_addr().expect("an address");
        let history =
            Arc::new(Mutex::new(AttemptHistory { script: script.into_iter().collect(), asked: Vec::new() }));
        let task = tokio::spawn(accept(listener, Arc::clone(&history)));
        Self { address, history, task }
    }

    /// The address of a path on it.
    #[must_use]
    pub fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    /// All requests so far, in order.
    #[must_use]
    pub fn asked(&self) -> Vec<Asked> {
        self.history.lock().unwrap_or_else(PoisonError::into_inner).asked.clone()
    }
}

impl Drop for Scripted {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn accept(listener: TcpListener, history: Arc<Mutex<AttemptHistory>>) {
    // Connections end with the server: the set aborts them when it is dropped.
    let mut connections = tokio::task::JoinSet::new();
    while let Ok((stream, _)) = listener.accept().await {
        let history = Arc::clone(&history);
        connections.spawn(async move {
            let service = service_fn(move |request| answer(request, Arc::clone(&history)));
            let _ = hyper::server::conn::http1::Builder::new()
                .serve_connection(TokioIo::new(stream), service)
                .await;
        });
    }
}

/// The error that makes hyper close the connection.
#[derive(Debug)]
struct Closed;

impl std::fmt::Display for Closed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("closed by the script")
    }
}

impl std::error::Error for Closed {}

async fn answer(
    request: Request<Incoming>,
    history: Arc<Mutex<AttemptHistory>>,
) -> Result<Response<Full<Bytes>>, Closed> {
    let (head, body) = request.into_parts();
    let body = body.collect().await.map_err(|_| Closed)?.to_bytes();
    let reply = {
        let mut history = history.lock().unwrap_or_else(PoisonError::into_inner);
        history.asked.push(Asked { head, body });
        history.script.pop_front().unwrap_or_else(|| Reply::status(200))
    };
    match reply {
        Reply::Cut => Err(Closed),
        Reply::Stall => std::future::pending().await,
        Reply::Answer { status, headers, body } => {
            let mut response = Response::new(Full::from(body));
            *response.status_mut() = status;
            response.headers_mut().extend(headers);
            Ok(response)
        }
    }
}
