//! The tower door.
//!
//! ```
//! use http::{Request, Response, StatusCode};
//! use redrive_core::{Backoff, Policy};
//! use redrive_http::RetryLayer;
//! use std::convert::Infallible;
//! use tower::{Service, ServiceBuilder, ServiceExt, service_fn};
//!
//! # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
//! let flaky = service_fn(|request: Request<&'static str>| async move {
//!     let first = request.headers()["redrive-attempt"] == "1";
//!     let status = if first { StatusCode::BAD_GATEWAY } else { StatusCode::OK };
//!     Ok::<_, Infallible>(Response::builder().status(status).body(()).unwrap())
//! });
//! let policy = Policy::builder().backoff(Backoff::NONE).build().unwrap();
//! let service = ServiceBuilder::new().layer(RetryLayer::http(policy)).service(flaky);
//!
//! let response = service.oneshot(Request::get("/").body("").unwrap()).await.unwrap();
//! assert_eq!(response.status(), StatusCode::OK);
//! # });
//! ```
//!
//! The first attempt uses the service that was polled ready; later ones wait until it is ready again. The
//! response future is a named type: a first-try success allocates nothing of ours.

use std::fmt;
use std::future::Future;
use std::mem;
use std::pin::Pin;
use std::task::{Context, Poll};

use pin_project_lite::pin_project;
use redrive_core::classify::unknown;
use redrive_core::{Fault, Policy, Run, StopReason, Stopped};
use redrive_retry::Attempt;
use redrive_retry::drive::{Drive, Finished, Judge, Operation};
use redrive_retry::held::Held;
use redrive_retry::postfix::ByError;
use tower::util::Oneshot;
use tower::{Layer, Service};

use crate::repeat::{Cloned, Repeat, Repeatable};
use crate::status::{ByStatus, StatusMap};

/// Retries what goes through a service. `J` judges results, `R` says which requests may be sent again.
#[derive(Debug, Clone)]
pub struct RetryLayer<J, R> {
    policy: Policy,
    judge: J,
    repeat: R,
    independent: bool,
}

impl RetryLayer<ByStatus<fn(&std::convert::Infallible) -> Option<Fault>>, Repeatable> {
    /// For HTTP services: answers judged by the default [`StatusMap`], only safe requests repeated. A service
    /// that can fail without an answer also needs a classifier for its errors:
    /// [`errors`](RetryLayer::errors).
    #[must_use]
    pub fn http(policy: Policy) -> Self {
        let judge = ByStatus { statuses: StatusMap::default(), errors: unknown as fn(&_) -> _ };
        Self { policy, judge, repeat: Repeatable::default(), independent: false }
    }
}

impl<C> RetryLayer<ByStatus<C>, Repeatable> {
    /// Says what a failure to get an answer means.
    #[must_use]
    pub fn errors<N>(self, classifier: N) -> RetryLayer<ByStatus<N>, Repeatable> {
        let Self { policy, judge, repeat, independent } = self;
        let judge = ByStatus { statuses: judge.statuses, errors: classifier };
        RetryLayer { policy, judge, repeat, independent }
    }

    /// Says what statuses mean to this destination.
    #[must_use]
    pub fn statuses(mut self, statuses: StatusMap) -> Self {
        self.judge.statuses = statuses;
        self
    }

    /// Gives requests that are not idempotent a key, so that they may be repeated.
    #[must_use]
    pub fn minting_keys(mut self) -> Self {
        self.repeat = self.repeat.minting_keys();
        self
    }
}

impl<C> RetryLayer<ByError<C>, Cloned> {
    /// For any service whose requests can be cloned and may all be repeated: errors judged by a classifier,
    /// every response a success.
    ///
    /// ```
    /// use redrive_core::Policy;
    /// use redrive_http::RetryLayer;
    /// use redrive_retry::classify;
    /// use tower::{Layer, ServiceExt, service_fn};
    ///
    /// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
    /// let double = service_fn(|number: u32| async move { Ok::<_, std::io::Error>(number * 2) });
    /// let service = RetryLayer::new(Policy::default(), classify::io).layer(double);
    /// assert_eq!(service.oneshot(17).await.unwrap(), 34);
    /// # });
    /// ```
    #[must_use]
    pub const fn new(policy: Policy, classifier: C) -> Self {
        Self { policy, judge: ByError(classifier), repeat: Cloned, independent: false }
    }
}

impl<J, R> RetryLayer<J, R> {
    /// For any service: results judged and requests repeated as these two say.
    #[must_use]
    pub const fn with(policy: Policy, judge: J, repeat: R) -> Self {
        Self { policy, judge, repeat, independent: false }
    }

    /// Retries although another retry of the same task, further out, retries as well.
    #[must_use]
    pub fn independent(mut self) -> Self {
        self.independent = true;
        self
    }
}

impl<S, J: Clone, R: Clone> Layer<S> for RetryLayer<J, R> {
    type Service = Retry<S, J, R>;

    fn layer(&self, inner: S) -> Self::Service {
        Retry { inner, layer: self.clone() }
    }
}

/// A service whose calls are retried. Made by [`RetryLayer`].
#[derive(Debug, Clone)]
pub struct Retry<S, J, R> {
    inner: S,
    layer: RetryLayer<J, R>,
}

impl<S, J, R, Req> Service<Req> for Retry<S, J, R>
where
    S: Service<Req> + Clone,
    J: Judge<S::Response, S::Error> + Clone,
    R: Repeat<Req> + Clone,
{
    type Response = S::Response;
    type Error = Stopped<S::Error>;
    type Future = Retrying<S, J, R, Req>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.inner.poll_ready(cx).map_err(|error| {
            let report = Run::new(&self.layer.policy).report(StopReason::Permanent);
            Stopped { error: Some(error), report }
        })
    }

    #[inline]
    fn call(&mut self, mut request: Req) -> Self::Future {
        let RetryLayer { policy, judge, repeat, independent } = &self.layer;
        // The one that was polled ready goes along; a fresh clone stays.
        let fresh = self.inner.clone();
        let ready = mem::replace(&mut self.inner, fresh);
        repeat.prepare(&mut request);
        let copy = repeat.copy(&request);
        let once = copy.is_none();
        let calls = Calls { service: ready, request: Some(request), copy, repeat: repeat.clone() };
        let drive = Drive::new(Held::of(policy), calls, judge.clone());
        Retrying { drive: drive.only_once(once).independent(*independent) }
    }
}

/// The attempts of one request.
#[derive(Debug)]
pub struct Calls<S, R, Req> {
    service: S,
    /// The first one.
    request: Option<Req>,
    /// The next one, copied before the one before it was sent.
    copy: Option<Req>,
    repeat: R,
}

impl<S, R, Req> Operation for Calls<S, R, Req>
where
    S: Service<Req> + Clone,
    R: Repeat<Req>,
{
    type Value = S::Response;
    type Error = S::Error;
    type Future = Call<S, Req>;

    fn call(&mut self, attempt: Attempt) -> Self::Future {
        if let Some(mut first) = self.request.take() {
            self.repeat.stamp(&mut first, attempt);
            return Call { sending: Sending::First { response: self.service.call(first) } };
        }
        let mut again = self.copy.take().expect("what cannot be copied is sent once");
        if attempt.number() < attempt.max() {
            self.copy = self.repeat.copy(&again);
        }
        self.repeat.stamp(&mut again, attempt);
        Call { sending: Sending::Later { response: Oneshot::new(self.service.clone(), again) } }
    }
}

pin_project! {
    /// One attempt.
    #[derive(Debug)]
    pub struct Call<S: Service<Req>, Req> {
        #[pin]
        sending: Sending<S, S::Future, Req>,
    }
}

pin_project! {
    #[project = SendingProjected]
    #[derive(Debug)]
    enum Sending<S: Service<Req>, F, Req> {
        // On the service that was polled ready.
        First { #[pin] response: F },
        // On one that first has to be.
        Later { #[pin] response: Oneshot<S, Req> },
    }
}

impl<S: Service<Req>, Req> Future for Call<S, Req> {
    type Output = Result<S::Response, S::Error>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match self.project().sending.project() {
            SendingProjected::First { response } => response.poll(cx),
            SendingProjected::Later { response } => response.poll(cx),
        }
    }
}

pin_project! {
    /// The response to come.
    pub struct Retrying<S, J, R, Req>
    where
        S: Service<Req>,
        S: Clone,
        R: Repeat<Req>,
    {
        #[pin]
        drive: Drive<Held, Calls<S, R, Req>, J>,
    }
}

impl<S, J, R, Req> Future for Retrying<S, J, R, Req>
where
    S: Service<Req> + Clone,
    J: Judge<S::Response, S::Error>,
    R: Repeat<Req>,
{
    type Output = Result<S::Response, Stopped<S::Error>>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        self.project().drive.poll(cx).map(Finished::into_result)
    }
}

impl<S, J, R, Req> fmt::Debug for Retrying<S, J, R, Req>
where
    S: Service<Req> + Clone,
    R: Repeat<Req>,
{
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Retrying").finish_non_exhaustive()
    }
}
