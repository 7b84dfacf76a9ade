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
use redrive_retry::drive::{CallResult, Drive, Judge, MakeAttempt};
use redrive_retry::policy_handle::PolicyHandle;
use redrive_retry::retry::ByError;
use tower::util::Oneshot;
use tower::{Layer, Service};

use crate::request_copy::{CloneAll, IdempotentRequests, RequestCopy};
use crate::status::{StatusJudge, StatusMap};

/// Retries what goes through a service. `J` judges results, `R` says which requests may be sent again.
#[derive(Debug, Clone)]
pub struct RetryLayer<J, R> {
    policy: Policy,
    judge: J,
    repeat: R,
    independent: bool,
}

impl RetryLayer<StatusJudge<fn(&std::convert::Infallible) -> Option<Fault>>, IdempotentRequests> {
    /// For HTTP services: responses are judged by the default [`StatusMap`], and only safe requests are repeated. A
    /// service that can fail without a response also needs a classifier for its errors:
    /// [`errors`](RetryLayer::errors).
    #[must_use]
    pub fn http(policy: Policy) -> Self {
        let judge = StatusJudge { statuses: StatusMap::default(), errors: unknown as fn(&_) -> _ };
        Self { policy, judge, repeat: IdempotentRequests::default(), independent: false }
    }
}

impl<C> RetryLayer<StatusJudge<C>, IdempotentRequests> {
    /// Sets the classifier for failures without a response.
    #[must_use]
    pub fn errors<N>(self, classifier: N) -> RetryLayer<StatusJudge<N>, IdempotentRequests> {
        let Self { policy, judge, repeat, independent } = self;
        let judge = StatusJudge { statuses: judge.statuses, errors: classifier };
        RetryLayer { policy, judge, repeat, independent }
    }

    /// Says what statuses mean to this destination.
    #[must_use]
    pub fn statuses(mut self, statuses: StatusMap) -> Self {
        self.judge.statuses = statuses;
        self
    }

    /// Gives non-idempotent requests a key, so that they may be repeated.
    #[must_use]
    pub fn minting_keys(mut self) -> Self {
        self.repeat = self.repeat.minting_keys();
        self
    }
}

impl<C> RetryLayer<ByError<C>, CloneAll> {
    /// For any service whose requests can be cloned and may all be repeated: a classifier judges errors, every
    /// response is a success.
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
        Self { policy, judge: ByError(classifier), repeat: CloneAll, independent: false }
    }
}

impl<J, R> RetryLayer<J, R> {
    /// For any service: results judged and requests repeated as these two say.
    #[must_use]
    pub const fn with(policy: Policy, judge: J, repeat: R) -> Self {
        Self { policy, judge, repeat, independent: false }
    }

    /// Retries even inside another retry of the same task.
    #[must_use]
    pub fn independent(mut self) -> Self {
        self.independent = true;
        self
    }
}

impl<S, J: Clone, R: Clone> Layer<S> for RetryLayer<J, R> {
    type Service = RetryService<S, J, R>;

    fn layer(&self, inner: S) -> Self::Service {
        RetryService { inner, layer: self.clone() }
    }
}

/// A service with retries. Made by [`RetryLayer`].
#[derive(Debug, Clone)]
pub struct RetryService<S, J, R> {
    inner: S,
    layer: RetryLayer<J, R>,
}

impl<S, J, R, Req> Service<Req> for RetryService<S, J, R>
where
    S: Service<Req> + Clone,
    J: Judge<S::Response, S::Error> + Clone,
    R: RequestCopy<Req> + Clone,
{
    type Response = S::Response;
    type Error = Stopped<S::Error>;
    type Future = RetryServiceFuture<S, J, R, Req>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.inner.poll_ready(cx).map_err(|error| {
            let report = Run::new(&self.layer.policy).report(StopReason::Permanent);
            Stopped { error: Some(error), report }
        })
    }

    #[inline]
    fn call(&mut self, mut request: Req) -> Self::Future {
        let RetryLayer { policy, judge, repeat, independent } = &self.layer;
        // The instance that was polled ready is used; a fresh clone stays.
        let fresh = self.inner.clone();
        let ready = mem::replace(&mut self.inner, fresh);
        repeat.prepare(&mut request);
        let copy = repeat.copy(&request);
        let once = copy.is_none();
        let calls = ServiceAttempts { service: ready, request: Some(request), copy, repeat: repeat.clone() };
        let drive = Drive::new(PolicyHandle::of(policy), calls, judge.clone());
        RetryServiceFuture { drive: drive.only_once(once).independent(*independent) }
    }
}

/// The attempts of one request.
#[derive(Debug)]
pub struct ServiceAttempts<S, R, Req> {
    service: S,
    /// The first one.
    request: Option<Req>,
    /// The next one, copied before the one before it was sent.
    copy: Option<Req>,
    repeat: R,
}

impl<S, R, Req> MakeAttempt for ServiceAttempts<S, R, Req>
where
    S: Service<Req> + Clone,
    R: RequestCopy<Req>,
{
    type Value = S::Response;
    type Error = S::Error;
    type Future = ServiceAttempt<S, Req>;

    fn call(&mut self, attempt: Attempt) -> Self::Future {
        if let Some(mut first) = self.request.take() {
            self.repeat.stamp(&mut first, attempt);
            return ServiceAttempt { sending: Sending::First { response: self.service.call(first) } };
        }
        let mut again = self.copy.take().expect("what cannot be copied is sent once");
        if attempt.number() < attempt.max() {
            self.copy = self.repeat.copy(&again);
        }
        self.repeat.stamp(&mut again, attempt);
        ServiceAttempt { sending: Sending::Later { response: Oneshot::new(self.service.clone(), again) } }
    }
}

pin_project! {
    /// One attempt.
    #[derive(Debug)]
    pub struct ServiceAttempt<S: Service<Req>, Req> {
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
        // On an instance that must become ready first.
        Later { #[pin] response: Oneshot<S, Req> },
    }
}

impl<S: Service<Req>, Req> Future for ServiceAttempt<S, Req> {
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
    pub struct RetryServiceFuture<S, J, R, Req>
    where
        S: Service<Req>,
        S: Clone,
        R: RequestCopy<Req>,
    {
        #[pin]
        drive: Drive<PolicyHandle, ServiceAttempts<S, R, Req>, J>,
    }
}

impl<S, J, R, Req> Future for RetryServiceFuture<S, J, R, Req>
where
    S: Service<Req> + Clone,
    J: Judge<S::Response, S::Error>,
    R: RequestCopy<Req>,
{
    type Output = Result<S::Response, Stopped<S::Error>>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        self.project().drive.poll(cx).map(CallResult::into_result)
    }
}

impl<S, J, R, Req> fmt::Debug for RetryServiceFuture<S, J, R, Req>
where
    S: Service<Req> + Clone,
    R: RequestCopy<Req>,
{
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RetryServiceFuture").finish_non_exhaustive()
    }
}
