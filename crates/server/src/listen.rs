//! The listener: connections are bounded in number, and a client that is slow over its request, or over the
//! answer, is let go.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::TcpListener;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, watch};
use tower::ServiceExt;

use crate::auth::Origin;
use crate::config::ServerSettings;

mod let_go;

use let_go::LetGo;

/// How long to wait after a connection could not be accepted: there are no file descriptors left, say.
const ACCEPT_AGAIN: Duration = Duration::from_millis(50);

/// For how long connections are still accepted after a stop: whoever connected before it is heard, and not cut off.
const LINGER: Duration = Duration::from_millis(100);

/// A connection's place among all of them, for as long as anybody has this: with each of its requests, so that one that
/// outlives it, and a tunnel that it became, are counted as well.
#[derive(Debug, Clone)]
pub(crate) struct Place {
    _permit: Arc<OwnedSemaphorePermit>,
}

/// Serves until `stop` says so, then lets requests under way end within `grace`.
pub async fn serve(
    listener: TcpListener,
    router: Router,
    settings: &ServerSettings,
    mut stop: watch::Receiver<bool>,
) {
    let places = Arc::new(Semaphore::new(settings.connections_max));
    // Connections that are open: each holds the sender, and is told to end by the other channel.
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
            let permit = places.clone().acquire_owned().await;
            (permit, listener.accept().await)
        };
        let (permit, accepted) = tokio::select! {
            accepted = accepting => accepted,
            () = &mut over => break,
        };
        // Nobody closes it.
        let Ok(permit) = permit else { break };
        let (stream, peer) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                tracing::warn!(%error, "cannot accept a connection");
                tokio::time::sleep(ACCEPT_AGAIN).await;
                continue;
            }
        };
        // Answers are small and waited for.
        let _ = stream.set_nodelay(true);
        let origin = Origin(peer.ip().to_string().into());
        let place = Place { _permit: Arc::new(permit) };
        let with = place.clone();
        let service = router.clone().map_request(move |mut request: http::Request<hyper::body::Incoming>| {
            request.extensions_mut().insert(origin.clone());
            request.extensions_mut().insert(with.clone());
            request.map(Body::new)
        });
        let service = service.map_err(|error: Infallible| match error {});
        let stream = LetGo::after(settings.body_time, stream);
        let connection = http.serve_connection(TokioIo::new(stream), TowerToHyperService::new(service));
        // A gateway's clients may go on in another protocol.
        let connection = connection.with_upgrades();
        let (open, mut end) = (open.clone(), end.subscribe());
        tokio::spawn(async move {
            let mut connection = std::pin::pin!(connection);
            // A client that broke off, or spoke no HTTP, was answered as far as it can be.
            let told = async { end.wait_for(|end| *end).await.is_ok() };
            tokio::select! {
                _ = connection.as_mut() => {}
                _ = told => {
                    connection.as_mut().graceful_shutdown();
                    let _ = connection.await;
                }
            }
            drop((place, open));
        });
    }
    drop((listener, open));
    end.send_replace(true);
    let _ = tokio::time::timeout(settings.grace, ended.recv()).await;
}
