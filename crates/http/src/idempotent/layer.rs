//! The layer: a request through the table, from its key to its answer.
//!
//! Until a request is claimed it belongs to its connection. From then on it runs to its end even if the client
//! disconnects: the rest becomes a task ([`IdempotentFuture`]). So replays, and requests that run uninterrupted, cost
//! no task.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use http_body::Body as HttpBody;
use redrive_core::ledger::Effects;
use tokio::sync::Semaphore;
use tower::{Layer, Service};

use super::body::{Body, BoxError};
use super::drain::{Drain, DrainReport};
use super::endpoint::{Endpoint, Settings, Tenant};
use super::identify::KeyedRequest;
use super::ledger::Ledger;
use super::observe::RequestOutcome;
use super::problem::Problem;
use super::serve::serve;
use crate::fingerprint::RequestDifference;
use crate::idempotent::endpoint::bounds::EndpointError;
use crate::idempotent::key_lookup::KeyLookup;
use crate::idempotent::serve::latency::LatencyHistogram;
use crate::idempotent::serve::rekeyed::RecentRequests;
use crate::idempotent::serve::wakeups::Wakeups;

/// Answers the repetition of a request with the answer of the first.
///
/// Put it inside the layers that authenticate and authorise, so that both run for each repeated request. Clones share
/// their state.
#[derive(Clone, Debug)]
pub struct Idempotent(Arc<Shared>);

impl Idempotent {
    /// A layer for one operation.
    ///
    /// # Errors
    /// Where the endpoint makes no sense.
    pub fn new(ledger: Arc<dyn Ledger>, endpoint: Endpoint<Tenant, Effects>) -> Result<Self, EndpointError> {
        endpoint.check()?;
        let Endpoint { mut settings, tenant, effects } = endpoint;
        settings.observer = settings.observer.or_else(|| ledger.observer());
        let permits = Arc::new(Semaphore::new(settings.concurrency));
        Ok(Self(Arc::new(Shared {
            settings,
            tenant,
            effects,
            ledger,
            permits,
            drain: Arc::default(),
            pace: LatencyHistogram::default(),
            hints: Wakeups::default(),
            minted: RecentRequests::default(),
        })))
    }

    /// A service that returns the record of a key, for its own route: `GET /bookings/keys/{key}`.
    #[must_use]
    pub fn keys(&self) -> KeyLookup {
        KeyLookup(Arc::clone(&self.0))
    }

    /// Drains: no new runs; runs in progress get `grace`; the rest is aborted and recorded as retriable if that is
    /// safe, otherwise as unknown. Replays continue.
    pub async fn drain(&self, grace: Duration) -> DrainReport {
        self.0.drain.drain(grace).await
    }
}

/// The state shared by all requests of an operation.
pub(super) struct Shared {
    pub(super) settings: Settings,
    pub(super) tenant: Tenant,
    pub(super) effects: Effects,
    pub(super) ledger: Arc<dyn Ledger>,
    pub(super) permits: Arc<Semaphore>,
    pub(super) drain: Arc<Drain>,
    pub(super) pace: LatencyHistogram,
    pub(super) hints: Wakeups,
    pub(super) minted: RecentRequests,
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { settings, effects, ledger, .. } = self;
        let mut it = f.debug_struct("Idempotent");
        it.field("operation", &settings.operation).field("effects", effects).field("ledger", ledger);
        it.finish_non_exhaustive()
    }
}

impl Shared {
    pub(super) fn problem(&self, problem: Problem) -> Response<Body> {
        problem.response(&self.settings.page)
    }

    pub(super) fn became(&self, became: RequestOutcome) {
        if let Some(observer) = &self.settings.observer {
            observer.became(&self.settings.operation, became);
        }
    }

    /// Reports a request under its key.
    pub(super) fn keyed(
        &self,
        known: &KeyedRequest,
        became: RequestOutcome,
        differs: Option<RequestDifference>,
    ) {
        self.became(became);
        if let Some(observer) = &self.settings.observer {
            observer.keyed(&known.scope, became, differs);
        }
    }

    /// Reports a request that is new to the ledger and about to run.
    pub(super) fn begins(&self, known: &KeyedRequest, attempt: u32) {
        self.keyed(known, if attempt <= 1 { RequestOutcome::Fresh } else { RequestOutcome::TakenOver }, None);
        if attempt <= 1
            && let Some(observer) = &self.settings.observer
            && self.minted.is_repeated(&known.ask.print, &known.scope.key)
        {
            observer.rekeyed(&self.settings.operation);
        }
    }

    pub(super) fn refused(&self, problem: Problem) -> Response<Body> {
        self.became(RequestOutcome::Refused);
        self.problem(problem)
    }
}

impl<S> Layer<S> for Idempotent {
    type Service = IdempotentService<S>;

    fn layer(&self, inner: S) -> IdempotentService<S> {
        IdempotentService { shared: Arc::clone(&self.0), inner }
    }
}

/// An idempotent service. Made by [`Idempotent`].
#[derive(Clone, Debug)]
pub struct IdempotentService<S> {
    shared: Arc<Shared>,
    inner: S,
}

impl<S, B, R> Service<Request<B>> for IdempotentService<S>
where
    S: Service<Request<Body>, Response = Response<R>> + Clone + Send + 'static,
    S::Future: Send,
    S::Error: Send + 'static,
    B: HttpBody<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
    R: HttpBody<Data = Bytes> + Send + 'static,
    R::Error: Into<BoxError>,
{
    type Response = Response<Body>;
    type Error = S::Error;
    type Future = IdempotentFuture<S::Error>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<B>) -> IdempotentFuture<S::Error> {
        // The instance that was polled ready is the one to call.
        let clone = self.inner.clone();
        let mut inner = std::mem::replace(&mut self.inner, clone);
        let entered = ClaimFlag::default();
        let method = request.method();
        let enrolled =
            !method.is_safe() && self.shared.settings.method.as_ref().is_none_or(|one| one == method);
        if !enrolled {
            let passing = inner.call(request.map(Body::stream));
            let answer = async move { passing.await.map(|response| response.map(Body::stream)) };
            return IdempotentFuture::new(Box::pin(answer), entered);
        }
        let answer = serve(Arc::clone(&self.shared), inner, request, entered.clone());
        IdempotentFuture::new(Box::pin(answer), entered)
    }
}

/// Whether a request has been claimed, or is about to be: then it runs to its end.
#[derive(Debug, Clone, Default)]
pub(super) struct ClaimFlag(Arc<Flags>);

#[derive(Debug, Default)]
struct Flags {
    entered: AtomicBool,
    detached: AtomicBool,
}

impl ClaimFlag {
    pub(super) fn set(&self, entered: bool) {
        self.0.entered.store(entered, Ordering::Relaxed);
    }

    /// Whether the client is gone and the run continues on its own.
    pub(super) fn is_detached(&self) -> bool {
        self.0.detached.load(Ordering::Relaxed)
    }
}

type BoxedError<E> = Pin<Box<dyn Future<Output = Result<Response<Body>, E>> + Send>>;

/// The future of a response. If dropped while the handler runs, the handler continues on its own.
pub struct IdempotentFuture<E: Send + 'static> {
    answer: Option<BoxedError<E>>,
    entered: ClaimFlag,
    /// The current span, for a run that continues on its own.
    #[cfg(feature = "tracing")]
    span: tracing::Span,
}

impl<E: Send + 'static> IdempotentFuture<E> {
    fn new(answer: BoxedError<E>, entered: ClaimFlag) -> Self {
        Self {
            answer: Some(answer),
            entered,
            #[cfg(feature = "tracing")]
            span: tracing::Span::current(),
        }
    }
}

impl<E: Send + 'static> fmt::Debug for IdempotentFuture<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("IdempotentFuture").field("entered", &self.entered).finish_non_exhaustive()
    }
}

impl<E: Send + 'static> Future for IdempotentFuture<E> {
    type Output = Result<Response<Body>, E>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let Some(answer) = &mut self.answer else { return Poll::Pending };
        let polled = answer.as_mut().poll(cx);
        if polled.is_ready() {
            self.answer = None;
        }
        polled
    }
}

impl<E: Send + 'static> Drop for IdempotentFuture<E> {
    fn drop(&mut self) {
        if let Some(answer) = self.answer.take()
            && self.entered.0.entered.load(Ordering::Relaxed)
            && let Ok(runtime) = tokio::runtime::Handle::try_current()
        {
            self.entered.0.detached.store(true, Ordering::Relaxed);
            let rest = async move { drop(answer.await) };
            #[cfg(feature = "tracing")]
            let rest = tracing::Instrument::instrument(
                rest,
                std::mem::replace(&mut self.span, tracing::Span::none()),
            );
            runtime.spawn(rest);
        }
    }
}
