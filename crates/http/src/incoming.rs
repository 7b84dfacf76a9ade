//! The server side: a single attempt if the sender retries, and advice when it should not.
//!
//! ```
//! use http::{Request, Response, StatusCode};
//! use redrive_core::{Backoff, Policy};
//! use redrive_http::IncomingLayer;
//! use redrive_retry::{Retry, classify};
//! use std::convert::Infallible;
//! use tower::{Layer, ServiceExt, service_fn};
//!
//! # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
//! let handler = service_fn(|_: Request<()>| async {
//!     // No budget: an overload further down is not retried, and the caller learns that it should not either.
//!     let policy = Policy::builder().no_budget().build().unwrap();
//!     let busy = || async { Err::<(), _>("busy") };
//!     let status = match busy.retry(&policy).classify(|_: &&str| redrive_core::Fault::overload()).await {
//!         Ok(()) => StatusCode::OK,
//!         Err(_) => StatusCode::SERVICE_UNAVAILABLE,
//!     };
//!     Ok::<_, Infallible>(Response::builder().status(status).body(()).unwrap())
//! });
//! let response = IncomingLayer.layer(handler).oneshot(Request::new(())).await.unwrap();
//! assert_eq!(response.headers()["redrive-no-retry"], "1");
//! # });
//! ```

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use http::{HeaderMap, HeaderValue, Request, Response};
use pin_project_lite::pin_project;
use redrive_core::names::header;
use redrive_retry::clock;
use redrive_retry::scope::{RetryScope, Scoped};
use tower::{Layer, Service};

use crate::propagation;

/// Puts every request into the scope its sender describes: attempt and deadline. Inner retries then make a single
/// attempt if the sender retries, and none past its deadline. A response of 400 or above is marked `redrive-no-retry:
/// 1` if an inner retry gave up deliberately or exhausted its attempts. If an inner retry was asked to wait, the
/// response says so in `Retry-After`, unless it has one. A gRPC response is always 200 and is not marked.
#[derive(Debug, Clone, Copy, Default)]
pub struct IncomingLayer;

impl<S> Layer<S> for IncomingLayer {
    type Service = IncomingService<S>;

    fn layer(&self, inner: S) -> IncomingService<S> {
        IncomingService(inner)
    }
}

/// A service whose requests run in their sender's scope. Made by [`IncomingLayer`].
#[derive(Debug, Clone)]
pub struct IncomingService<S>(S);

impl<S, B, R> Service<Request<B>> for IncomingService<S>
where
    S: Service<Request<B>, Response = Response<R>>,
{
    type Response = Response<R>;
    type Error = S::Error;
    type Future = IncomingFuture<S::Future>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.0.poll_ready(cx)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let mut scope = propagation::extract(request.headers());
        let answer = scope.enter(|| self.0.call(request));
        IncomingFuture { answer: scope.around(answer) }
    }
}

pin_project! {
    /// The answer to come.
    #[derive(Debug)]
    pub struct IncomingFuture<F> {
        #[pin]
        answer: Scoped<F>,
    }
}

impl<F, R, E> Future for IncomingFuture<F>
where
    F: Future<Output = Result<Response<R>, E>>,
{
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        let (mut answer, scope) = ready!(self.project().answer.poll(cx));
        if let (Ok(response), Some(scope)) = (&mut answer, scope)
            && response.status().as_u16() >= 400
        {
            pass_on(scope, response.headers_mut());
        }
        Poll::Ready(answer)
    }
}

/// Passes the advice of inner retries on to the sender.
fn pass_on(scope: RetryScope, headers: &mut HeaderMap) {
    if scope.forbidden().is_some() {
        headers.insert(header::NO_RETRY, HeaderValue::from_static("1"));
    } else if let Some(at) = scope.not_before()
        && !headers.contains_key(header::RETRY_AFTER)
    {
        // In whole seconds, and not a moment too early.
        let wait = at.since(clock());
        let seconds = wait.as_secs() + u64::from(wait.subsec_nanos() > 0);
        headers.insert(header::RETRY_AFTER, HeaderValue::from(seconds));
    }
}
