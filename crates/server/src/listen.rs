//! The listener: the number of connections is limited, and a client that is slow to send its request or to read the
//! response is disconnected; so is one whose request has an ambiguous length.
//!
//! Which connection makes room for a new one is a matter of `connections`, certificates one of `tls`, clients that
//! read nothing one of `timeouts`, and requests whose length two readers could see differently one of `framing`.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, HttpBody};
use axum::response::Response;
use bytes::Bytes;
use futures_util::future::{Either, ready};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::{Service as _, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, watch};
use tower::ServiceExt;

use crate::auth::Origin;
use crate::config::ServerSettings;

mod connections;
mod framing;
mod timeouts;
mod tls;

pub(crate) use connections::ConnectionPermit;
pub use tls::{Tls, TlsError};

use connections::{Connections, UnderWay};
use framing::{LastHead, WatchedStream};
use timeouts::WriteTimeout;

/// How long to wait after an accept failed, for lack of file descriptors for example.
const ACCEPT_AGAIN: Duration = Duration::from_millis(50);

/// How long connections are still accepted after a stop, so that clients that connected before it are served.
const LINGER: Duration = Duration::from_millis(100);

/// Serves until `stop` is set, then lets requests in progress finish within `grace`.
pub async fn serve(
    listener: TcpListener,
    router: Router,
    settings: &ServerSettings,
    tls: Option<Arc<Tls>>,
    mut stop: watch::Receiver<bool>,
) {
    let connections = Connections::new(settings.connections_max);
    let watching = tls.clone().map(|tls| tokio::spawn(tls.watch()));
    // Open connections: each holds the sender; the other channel tells it to end.
    let (open, mut ended) = mpsc::channel::<Infallible>(1);
    let end = watch::Sender::new(false);
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(settings.head_time).max_headers(100);
    let mut over = std::pin::pin!(async {
        let _ = stop.wait_for(|stop| *stop).await;
        tokio::time::sleep(LINGER).await;
    });
    loop {
        let accepting = async {
            let (stream, peer) = listener.accept().await?;
            Ok::<_, std::io::Error>((connections.take(peer.ip()).await, stream, peer))
        };
        let accepted = tokio::select! {
            accepted = accepting => accepted,
            () = &mut over => break,
        };
        let (permit, stream, peer) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                tracing::warn!(%error, "cannot accept a connection");
                tokio::time::sleep(ACCEPT_AGAIN).await;
                continue;
            }
        };
        let Some(permit) = permit else { break };
        // Answers are small and waited for.
        let _ = stream.set_nodelay(true);
        let connection = Connection {
            http: http.clone(),
            router: router.clone(),
            origin: Origin(peer.ip().to_string().into()),
            permit,
            end: end.subscribe(),
        };
        let (tls, settings, open) = (tls.clone(), settings.clone(), open.clone());
        tokio::spawn(async move {
            connection.serve(stream, tls, &settings).await;
            drop(open);
        });
    }
    drop((listener, open));
    end.send_replace(true);
    let _ = tokio::time::timeout(settings.grace, ended.recv()).await;
    if let Some(watching) = watching {
        watching.abort();
    }
}

/// An accepted connection, and what it needs.
struct Connection {
    http: http1::Builder,
    router: Router,
    origin: Origin,
    permit: ConnectionPermit,
    end: watch::Receiver<bool>,
}

impl Connection {
    async fn serve(self, stream: TcpStream, tls: Option<Arc<Tls>>, settings: &ServerSettings) {
        let stream = WriteTimeout::after(settings.body_time, stream);
        let Some(tls) = tls else { return self.talk(stream).await };
        let permit = self.permit.clone();
        let handshake = tokio::time::timeout(settings.head_time, tls.accept(stream));
        tokio::select! {
            // A client without TLS, or without a certificate that is wanted, is not answered.
            accepted = handshake => if let Ok(Ok(stream)) = accepted { self.talk(stream).await },
            () = permit.replaced() => {}
        }
    }

    async fn talk(mut self, stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static) {
        let (origin, permit) = (self.origin, self.permit.clone());
        let service = self.router.map_request(move |mut request: http::Request<Incoming>| {
            request.extensions_mut().insert(origin.clone());
            request.extensions_mut().insert(permit.clone());
            request.map(Body::new)
        });
        let begun = self.permit.clone();
        let service = tower::service_fn(move |request| {
            let (service, under_way) = (service.clone(), begun.begin());
            async move { Ok::<_, Infallible>(until_sent(service.oneshot(request).await?, under_way)) }
        });
        let last = LastHead::default();
        let stream = WatchedStream::new(stream, last.clone());
        let service = TowerToHyperService::new(service);
        // Called as soon as a head is parsed, and before anything after it is read.
        let service =
            service_fn(move |request: http::Request<Incoming>| match last.is_ambiguous(request.headers()) {
                true => Either::Left(ready(Ok(framing::refusal()))),
                false => Either::Right(service.call(request)),
            });
        let connection = self.http.serve_connection(TokioIo::new(stream), service);
        // A gateway's clients may upgrade to another protocol.
        let mut connection = std::pin::pin!(connection.with_upgrades());
        let told = async { self.end.wait_for(|end| *end).await.is_ok() };
        tokio::select! {
            // A client that broke off, or spoke no HTTP, was answered as far as it can be.
            _ = connection.as_mut() => {}
            _ = told => {
                connection.as_mut().graceful_shutdown();
                let _ = connection.await;
            }
            () = self.permit.replaced() => {}
        }
    }
}

/// The response, whose request is in progress until the last byte of its body is taken.
fn until_sent(response: Response, under_way: UnderWay) -> Response {
    response.map(|body| Body::new(Sending { body, _under_way: under_way }))
}

struct Sending {
    body: Body,
    _under_way: UnderWay,
}

impl HttpBody for Sending {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<hyper::body::Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> hyper::body::SizeHint {
        self.body.size_hint()
    }
}
