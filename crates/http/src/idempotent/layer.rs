//! The layer: a request through the table, from its key to its answer.
//!
//! Until a request is claimed it belongs to its connection; from then on it runs to its end, also when the client hangs
//! up: what is left of it becomes a task ([`Answering`]). So a request that runs in one go, and every replay, costs no
//! task of its own.

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
use super::bounds::EndpointError;
use super::drain::{Drain, Drained};
use super::endpoint::{Endpoint, Settings, Tenant};
use super::hints::Hints;
use super::identify::Known;
use super::keys::Keys;
use super::ledger::Ledger;
use super::minted::Minted;
use super::observe::Became;
use super::pace::Pace;
use super::problem::Problem;
use super::serve::serve;

/// Answers the repetition of a request with the answer of the first.
///
/// To be put inside of whatever authenticates and authorizes, so that both happen again for each repetition. Clones are
/// the same one.
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
            pace: Pace::default(),
            hints: Hints::default(),
            minted: Minted::default(),
        })))
    }

    /// A service that tells what is remembered under a key, for a route of its own: `GET /bookings/keys/{key}`.
    #[must_use]
    pub fn keys(&self) -> Keys {
        Keys(Arc::clone(&self.0))
    }

    /// Stops: no new runs, those under way get `grace`, and what is left is ended and recorded, as one that may run
    /// again where that is safe and as unknown where not. Replays go on.
    pub async fn drain(&self, grace: Duration) -> Drained {
        self.0.drain.drain(grace).await
    }
}

/// What all requests of an operation share.
pub(super) struct Shared {
    pub(super) settings: Settings,
    pub(super) tenant: Tenant,
    pub(super) effects: Effects,
    pub(super) ledger: Arc<dyn Ledger>,
    pub(super) permits: Arc<Semaphore>,
    pub(super) drain: Arc<Drain>,
    pub(super) pace: Pace,
    pub(super) hints: Hints,
    pub(super) minted: Minted,
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

    pub(super) fn became(&self, became: Became) {
        if let Some(observer) = &self.settings.observer {
            observer.became(&self.settings.operation, became);
        }
    }

    /// A request that is new to the ledger is about to run.
    pub(super) fn begins(&self, known: &Known, attempt: u32) {
        self.became(if attempt <= 1 { Became::Fresh } else { Became::TakenOver });
        if attempt <= 1
            && let Some(observer) = &self.settings.observer
            && self.minted.is_repeated(&known.ask.print, &known.scope.key)
        {
            observer.minted_again(&self.settings.operation);
        }
    }

    pub(super) fn refused(&self, problem: Problem) -> Response<Body> {
        self.became(Became::Refused);
        self.problem(problem)
    }
}

impl<S> Layer<S> for Idempotent {
    type Service = Guarded<S>;

    fn layer(&self, inner: S) -> Guarded<S> {
        Guarded { shared: Arc::clone(&self.0), inner }
    }
}

/// A service whose requests may be repeated. Made by [`Idempotent`].
#[derive(Clone, Debug)]
pub struct Guarded<S> {
    shared: Arc<Shared>,
    inner: S,
}

impl<S, B, R> Service<Request<B>> for Guarded<S>
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
    type Future = Answering<S::Error>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<B>) -> Answering<S::Error> {
        // The one that was asked whether it is ready is the one to be called.
        let clone = self.inner.clone();
        let mut inner = std::mem::replace(&mut self.inner, clone);
        let entered = Entered::default();
        let method = request.method();
        let enrolled =
            !method.is_safe() && self.shared.settings.method.as_ref().is_none_or(|one| one == method);
        if !enrolled {
            let passing = inner.call(request.map(Body::stream));
            let answer = async move { passing.await.map(|response| response.map(Body::stream)) };
            return Answering::new(Box::pin(answer), entered);
        }
        let answer = serve(Arc::clone(&self.shared), inner, request, entered.clone());
        Answering::new(Box::pin(answer), entered)
    }
}

/// Whether a request has been claimed, or is about to be: then it runs to its end.
#[derive(Debug, Clone, Default)]
pub(super) struct Entered(Arc<Flags>);

#[derive(Debug, Default)]
struct Flags {
    entered: AtomicBool,
    detached: AtomicBool,
}

impl Entered {
    pub(super) fn set(&self, entered: bool) {
        self.0.entered.store(entered, Ordering::Relaxed);
    }

    /// Whether its client is gone, and it goes on by itself.
    pub(super) fn is_detached(&self) -> bool {
        self.0.detached.load(Ordering::Relaxed)
    }
}

type Boxed<E> = Pin<Box<dyn Future<Output = Result<Response<Body>, E>> + Send>>;

/// The answer to come. Dropped while its handler runs, that goes on by itself.
pub struct Answering<E: Send + 'static> {
    answer: Option<Boxed<E>>,
    entered: Entered,
    /// Where it came from, for what goes on by itself.
    #[cfg(feature = "tracing")]
    span: tracing::Span,
}

impl<E: Send + 'static> Answering<E> {
    fn new(answer: Boxed<E>, entered: Entered) -> Self {
        Self {
            answer: Some(answer),
            entered,
            #[cfg(feature = "tracing")]
            span: tracing::Span::current(),
        }
    }
}

impl<E: Send + 'static> fmt::Debug for Answering<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Answering").field("entered", &self.entered).finish_non_exhaustive()
    }
}

impl<E: Send + 'static> Future for Answering<E> {
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

impl<E: Send + 'static> Drop for Answering<E> {
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
