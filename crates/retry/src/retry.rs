//! `.retry()` on functions and closures: `fetch.retry(&policy).classify(…).await`.
//!
//! ```
//! use redrive_retry::{Attempt, Policy, Retry, classify};
//! use std::io;
//!
//! async fn fetch() -> Result<String, io::Error> {
//!     Ok("page".to_owned())
//! }
//!
//! # async fn run() -> Result<(), Box<dyn std::error::Error>> {
//! let policy = Policy::default();
//! let page = fetch.retry(&policy).classify(classify::io).await?;
//!
//! // A closure may ask which attempt it is.
//! let page = (|attempt: Attempt| async move {
//!     eprintln!("attempt {} of {}", attempt.number(), attempt.max());
//!     fetch().await
//! })
//! .retry(&policy)
//! .classify(classify::io)
//! .await?;
//! # Ok(())
//! # }
//! # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(run()).unwrap();
//! ```

use std::future::{Future, IntoFuture, Pending, pending};
use std::marker::PhantomData;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use pin_project_lite::pin_project;
use redrive_core::classify::{Classification, Classify, ClassifyIf, Output, unknown};
use redrive_core::observe::Outcome;
use redrive_core::{Disposition, Fault, Policy, Report, StopReason, Stopped};

use crate::attempt::Attempt;
use crate::call_state::CallOptions;
use crate::clock::from_now;
use crate::drive::{CallResult, Drive, Judge, MakeAttempt};

/// Anything that makes a fresh future for every attempt: `FnMut() -> impl Future` or `FnMut(Attempt) -> impl Future`,
/// with a `Result` as output. `Args` distinguishes the two and is inferred.
pub trait Retry<Args>: Sized {
    /// The operation it becomes.
    type Maker: MakeAttempt;

    /// Retries it under a policy. Without a classifier every error is `unclassified`, hence permanent: use
    /// [`classify`](RetryCall::classify) to say what may be repeated.
    fn retry(
        self,
        policy: &Policy,
    ) -> RetryCall<'_, Self::Maker, Unclassified<<Self::Maker as MakeAttempt>::Error>>;
}

/// The classifier that a call starts with. It knows nothing.
pub type Unclassified<E> = fn(&E) -> Option<Fault>;

macro_rules! operation {
    ($(#[$doc:meta])* $name:ident, $args:ty, |$call:ident, $attempt:ident| $made:expr, $($bound:tt)*) => {
        $(#[$doc])*
        #[derive(Debug)]
        pub struct $name<F>(F);

        impl<F, Fut, T, E> MakeAttempt for $name<F>
        where
            F: $($bound)* -> Fut,
            Fut: Future<Output = Result<T, E>>,
        {
            type Value = T;
            type Error = E;
            type Future = Fut;

            fn call(&mut self, $attempt: Attempt) -> Fut {
                let $call = &mut self.0;
                $made
            }
        }

        impl<F, Fut, T, E> Retry<$args> for F
        where
            F: $($bound)* -> Fut,
            Fut: Future<Output = Result<T, E>>,
        {
            type Maker = $name<F>;

            fn retry(self, policy: &Policy) -> RetryCall<'_, $name<F>, Unclassified<E>> {
                RetryCall {
                    policy,
                    operation: $name(self),
                    classifier: unknown::<E>,
                    cancel: pending(),
                    terms: CallOptions::default(),
                }
            }
        }
    };
}

operation!(
    /// A closure that does not ask which attempt it is.
    Plain, (), |call, _attempt| call(), FnMut()
);
operation!(
    /// A closure that takes the attempt.
    Told, (Attempt,), |call, attempt| call(attempt), FnMut(Attempt)
);

/// A call that will be retried when it is awaited.
#[derive(Debug)]
#[must_use = "nothing is called until this is awaited"]
pub struct RetryCall<'p, O, C, X = Pending<()>> {
    policy: &'p Policy,
    operation: O,
    classifier: C,
    cancel: X,
    terms: CallOptions,
}

impl<'p, O: MakeAttempt, C, X> RetryCall<'p, O, C, X> {
    /// Sets the classifier. Its return type decides the output type: see [`redrive_core::classify`].
    pub fn classify<N: Classify<O::Error>>(self, classifier: N) -> RetryCall<'p, O, N, X> {
        let Self { policy, operation, cancel, terms, .. } = self;
        RetryCall { policy, operation, classifier, cancel, terms }
    }

    /// Says which errors may pass; the others are permanent. Short for a classifier that knows no more than
    /// that.
    ///
    /// ```
    /// use redrive_retry::{Policy, Retry};
    ///
    /// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
    /// let fetch = || async { Err::<(), _>("no such page") };
    /// let stopped = fetch.retry(&Policy::default()).retry_if(|error| error.starts_with("timed out")).await;
    /// assert_eq!(stopped.unwrap_err().report.attempts, 1);
    /// # });
    /// ```
    pub fn retry_if<F: Fn(&O::Error) -> bool>(self, may_pass: F) -> RetryCall<'p, O, ClassifyIf<F>, X> {
        self.classify(ClassifyIf(may_pass))
    }

    /// Ends a wait at once when this future resolves, like `token.cancelled()` of a cancellation token. An attempt in
    /// progress is finished first; if the future has resolved before, no attempt is made.
    ///
    /// ```
    /// use redrive_retry::{Policy, Retry, StopReason, classify};
    /// use tokio_util::sync::CancellationToken;
    ///
    /// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
    /// let token = CancellationToken::new();
    /// token.cancel();
    /// let down = || async { Err::<(), _>("down") };
    /// let stopped = down
    ///     .retry(&Policy::default())
    ///     .classify(classify::all)
    ///     .cancel_on(token.cancelled())
    ///     .await
    ///     .unwrap_err();
    /// assert_eq!(stopped.report.reason, StopReason::Cancelled);
    /// assert_eq!(stopped.report.attempts, 0);
    /// # });
    /// ```
    pub fn cancel_on<N: Future<Output = ()>>(self, cancel: N) -> RetryCall<'p, O, C, N> {
        let Self { policy, operation, classifier, terms, .. } = self;
        RetryCall { policy, operation, classifier, cancel, terms }
    }

    /// No attempt makes sense after this: none is started later, none runs on, and no wait is planned that
    /// ends later.
    pub fn deadline(mut self, deadline: Instant) -> Self {
        self.terms.deadline = Some(deadline);
        self
    }

    /// The same, from now.
    pub fn within(self, time: Duration) -> Self {
        match from_now(time) {
            Some(deadline) => self.deadline(deadline),
            None => self,
        }
    }

    /// Retries although another retry of this task, further out, retries as well. Attempts then multiply: 3 ·
    /// 3 is 9.
    pub const fn independent(mut self) -> Self {
        self.terms.independent = true;
        self
    }

    /// Returns the report also on success: [`Reported`] instead of a `Result`.
    ///
    /// ```
    /// use redrive_retry::{Policy, Retry, StopReason};
    ///
    /// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
    /// let fetch = || async { Ok::<_, std::io::Error>("page") };
    /// let reported = fetch.retry(&Policy::default()).report().await;
    /// assert_eq!(reported.report.reason, StopReason::Succeeded);
    /// assert_eq!(reported.report.attempts, 1);
    /// assert_eq!(reported.into_result().unwrap(), "page");
    /// # });
    /// ```
    pub fn report(self) -> ReportedCall<'p, O, C, X> {
        ReportedCall(self)
    }
}

impl<'p, O, C, X> RetryCall<'p, O, C, X>
where
    O: MakeAttempt,
    C: Classify<O::Error>,
    X: Future<Output = ()>,
{
    fn drive(self) -> Drive<&'p Policy, O, ByError<C>, X> {
        let Self { policy, operation, classifier, cancel, terms } = self;
        Drive::with_terms(policy, operation, ByError(classifier), cancel, terms)
    }
}

impl<'p, O, C, X> IntoFuture for RetryCall<'p, O, C, X>
where
    O: MakeAttempt,
    C: Classify<O::Error>,
    X: Future<Output = ()>,
{
    type Output = Result<Output<C, O::Value, O::Error>, Stopped<O::Error>>;
    type IntoFuture = RetryFuture<'p, O, C, X, Bare>;

    #[inline]
    fn into_future(self) -> Self::IntoFuture {
        RetryFuture { drive: self.drive(), form: PhantomData }
    }
}

/// A call that gives its report along with its result.
#[derive(Debug)]
#[must_use = "nothing is called until this is awaited"]
pub struct ReportedCall<'p, O, C, X>(RetryCall<'p, O, C, X>);

impl<'p, O, C, X> IntoFuture for ReportedCall<'p, O, C, X>
where
    O: MakeAttempt,
    C: Classify<O::Error>,
    X: Future<Output = ()>,
{
    type Output = Reported<Output<C, O::Value, O::Error>, O::Error>;
    type IntoFuture = RetryFuture<'p, O, C, X, WithReport>;

    fn into_future(self) -> Self::IntoFuture {
        RetryFuture { drive: self.0.drive(), form: PhantomData }
    }
}

/// A result, and why it stopped.
#[derive(Debug)]
pub struct Reported<T, E> {
    /// The value; or the last error, `None` if no attempt gave one.
    pub result: Result<T, Option<E>>,
    /// What happened.
    pub report: Report,
}

impl<T, E> Reported<T, E> {
    /// The result alone, the report staying with the error.
    ///
    /// # Errors
    /// If it did not succeed.
    pub fn into_result(self) -> Result<T, Stopped<E>> {
        let Self { result, report } = self;
        result.map_err(|error| Stopped { error, report })
    }
}

/// Judges by the error alone: `Ok` is a success.
#[derive(Debug, Clone, Copy)]
pub struct ByError<C>(pub C);

impl<T, E, C: Classify<E>> Judge<T, E> for ByError<C> {
    fn judge(&self, result: &Result<T, E>) -> Outcome {
        outcome(&self.0, result)
    }
}

pub(crate) fn outcome<T, E, C: Classify<E>>(classifier: &C, result: &Result<T, E>) -> Outcome {
    match result {
        Ok(_) => Outcome::Classified(Disposition::Ok),
        Err(error) => classifier.classify(error).disposition().into(),
    }
}

/// The output of a finished call, in the form of the classifier's answer: a dropped call is a success without a
/// value.
#[inline]
pub(crate) fn output<A: Classification, T, E>(
    finished: CallResult<T, E>,
) -> Result<A::Output<T>, Stopped<E>> {
    match (finished.into_result(), A::dropped()) {
        (Ok(value), _) => Ok(A::worked(value)),
        (Err(Stopped { report, .. }), Some(nothing)) if report.reason == StopReason::Dropped => Ok(nothing),
        (Err(stopped), _) => Err(stopped),
    }
}

/// The same with the report, which `worked` makes for a success.
pub(crate) fn reported<A: Classification, T, E>(
    finished: CallResult<T, E>,
    worked: impl FnOnce() -> Report,
) -> Reported<A::Output<T>, E> {
    let report = match &finished {
        CallResult::Worked(_) => worked(),
        CallResult::Ended { report, .. } => *report,
    };
    Reported { result: output::<A, _, _>(finished).map_err(Stopped::into_error), report }
}

/// The two forms of an output.
#[derive(Debug)]
pub struct Bare;
/// See [`Bare`].
#[derive(Debug)]
pub struct WithReport;

pin_project! {
    /// A call on its way. What `.await` on a [`RetryCall`] or a [`ReportedCall`] polls.
    #[must_use = "futures do nothing unless polled"]
    #[derive(Debug)]
    pub struct RetryFuture<'p, O: MakeAttempt, C, X, Form> {
        #[pin]
        drive: Drive<&'p Policy, O, ByError<C>, X>,
        form: PhantomData<Form>,
    }
}

impl<O, C, X> Future for RetryFuture<'_, O, C, X, Bare>
where
    O: MakeAttempt,
    C: Classify<O::Error>,
    X: Future<Output = ()>,
{
    type Output = Result<Output<C, O::Value, O::Error>, Stopped<O::Error>>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        self.project().drive.poll(cx).map(output::<C::Classification, _, _>)
    }
}

impl<O, C, X> Future for RetryFuture<'_, O, C, X, WithReport>
where
    O: MakeAttempt,
    C: Classify<O::Error>,
    X: Future<Output = ()>,
{
    type Output = Reported<Output<C, O::Value, O::Error>, O::Error>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut drive = self.project().drive;
        let finished = ready!(drive.as_mut().poll(cx));
        Poll::Ready(reported::<C::Classification, _, _>(finished, || drive.report()))
    }
}
