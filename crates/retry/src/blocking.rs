//! The blocking API.
//!
//! ```
//! use redrive_retry::blocking::Retry;
//! use redrive_retry::{Policy, classify};
//! use std::io;
//!
//! fn read() -> Result<String, io::Error> {
//!     Ok("page".to_owned())
//! }
//!
//! let page = read.retry(&Policy::default()).classify(classify::io).call()?;
//! # Ok::<(), redrive_retry::Stopped<io::Error>>(())
//! ```
//!
//! A blocking attempt cannot be ended from outside, so the policy's attempt time-out is not enforced; the
//! time in all and the deadline still decide whether another attempt starts. Waiting blocks the thread, or
//! does what [`wait_with`](RetryCall::wait_with) says.

use std::time::{Duration, Instant};

use redrive_core::classify::{Classification, Classify, ClassifyIf, Output, unknown};
use redrive_core::{Moment, Policy, StopReason, Stopped};

use crate::attempt::Attempt;
use crate::call_state::{Begin, CallOptions, CallState, Next};
use crate::clock::{clock, from_now};
use crate::drive::CallResult;
use crate::retry::{Reported, Unclassified, output, reported};

/// Anything that can be called again: `Fn() -> Result` or `Fn(Attempt) -> Result`. `Args` distinguishes the two and
/// is inferred.
pub trait Retry<Args>: Sized {
    /// The value on success.
    type Value;
    /// The error on failure.
    type Error;

    /// Makes one attempt.
    fn attempt(&mut self, attempt: Attempt) -> Result<Self::Value, Self::Error>;

    /// Retries it under a policy. Without a classifier every error is `unclassified`, hence permanent.
    fn retry(self, policy: &Policy) -> RetryCall<'_, Self, Args, Unclassified<Self::Error>> {
        RetryCall {
            policy,
            operation: self,
            classifier: unknown::<Self::Error>,
            wait: sleep,
            terms: CallOptions::default(),
            args: std::marker::PhantomData,
        }
    }
}

impl<F: FnMut() -> Result<T, E>, T, E> Retry<()> for F {
    type Value = T;
    type Error = E;

    fn attempt(&mut self, _: Attempt) -> Result<T, E> {
        self()
    }
}

impl<F: FnMut(Attempt) -> Result<T, E>, T, E> Retry<(Attempt,)> for F {
    type Value = T;
    type Error = E;

    fn attempt(&mut self, attempt: Attempt) -> Result<T, E> {
        self(attempt)
    }
}

/// What [`call`](RetryCall::call) gives.
type Called<C, T, E> = Result<Output<C, T, E>, Stopped<E>>;

/// Waits, and returns whether to continue.
type Wait = fn(Duration) -> bool;

fn sleep(wait: Duration) -> bool {
    std::thread::sleep(wait);
    true
}

/// A call that will be retried by [`call`](RetryCall::call).
#[derive(Debug)]
#[must_use = "nothing is called until `call` is"]
pub struct RetryCall<'p, O, Args, C, W = Wait> {
    policy: &'p Policy,
    operation: O,
    classifier: C,
    wait: W,
    terms: CallOptions,
    args: std::marker::PhantomData<fn(Args)>,
}

impl<'p, O: Retry<Args>, Args, C, W> RetryCall<'p, O, Args, C, W> {
    /// Sets the classifier; see [`redrive_core::classify`].
    pub fn classify<N: Classify<O::Error>>(self, classifier: N) -> RetryCall<'p, O, Args, N, W> {
        let Self { policy, operation, wait, terms, args, .. } = self;
        RetryCall { policy, operation, classifier, wait, terms, args }
    }

    /// Says which errors may pass; the others are permanent.
    pub fn retry_if<F: Fn(&O::Error) -> bool>(self, may_pass: F) -> RetryCall<'p, O, Args, ClassifyIf<F>, W> {
        self.classify(ClassifyIf(may_pass))
    }

    /// Waits by calling this instead of putting the thread to sleep. It returns `false` to cancel, before or during
    /// the wait.
    ///
    /// ```
    /// use redrive_retry::blocking::Retry;
    /// use redrive_retry::{Policy, StopReason, classify};
    /// use std::sync::mpsc;
    ///
    /// let (stop, stopped) = mpsc::channel::<()>();
    /// drop(stop);
    /// let down = || Err::<(), _>("down");
    /// let ended = down
    ///     .retry(&Policy::default())
    ///     .classify(classify::all)
    ///     .wait_with(|wait| stopped.recv_timeout(wait) == Err(mpsc::RecvTimeoutError::Timeout))
    ///     .call()
    ///     .unwrap_err();
    /// assert_eq!(ended.report.reason, StopReason::Cancelled);
    /// ```
    pub fn wait_with<N: FnMut(Duration) -> bool>(self, wait: N) -> RetryCall<'p, O, Args, C, N> {
        let Self { policy, operation, classifier, terms, args, .. } = self;
        RetryCall { policy, operation, classifier, wait, terms, args }
    }

    /// No attempt makes sense after this.
    pub const fn deadline(mut self, deadline: Instant) -> Self {
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

    /// Retries although another retry of this thread, further out, retries as well.
    pub const fn independent(mut self) -> Self {
        self.terms.independent = true;
        self
    }
}

impl<O, Args, C, W> RetryCall<'_, O, Args, C, W>
where
    O: Retry<Args>,
    C: Classify<O::Error>,
    W: FnMut(Duration) -> bool,
{
    /// Calls it, as often as the policy says.
    ///
    /// # Errors
    /// With the last error and why it stopped.
    #[inline]
    pub fn call(mut self) -> Called<C, O::Value, O::Error> {
        let mut call = CallState::new(self.policy, self.terms);
        output::<C::Classification, _, _>(self.drive(&mut call))
    }

    /// Calls it, and returns the report also on success.
    #[must_use]
    pub fn report(mut self) -> Reported<Output<C, O::Value, O::Error>, O::Error> {
        let mut call = CallState::new(self.policy, self.terms);
        let finished = self.drive(&mut call);
        reported::<C::Classification, _, _>(finished, || call.report(StopReason::Succeeded))
    }

    #[inline(always)]
    fn drive(&mut self, call: &mut CallState<&Policy>) -> CallResult<O::Value, O::Error> {
        let mut last = None;
        let reason = loop {
            let next = match call.begin() {
                Begin::Stop(reason) => Next::Stop(reason),
                Begin::Wait(until) => Next::Wait(until),
                Begin::Call => match self.attempt(call) {
                    Ok(value) => {
                        call.succeed();
                        return CallResult::Worked(value);
                    }
                    Err(error) => {
                        let outcome = self.classifier.classify(&error).disposition().into();
                        last = Some(Err(error));
                        call.settle(outcome)
                    }
                },
            };
            match next {
                Next::Stop(reason) => break reason,
                Next::Wait(until) if !self.wait_until(until) => break StopReason::Cancelled,
                Next::Wait(_) => {}
            }
        };
        CallResult::Ended { last, report: call.end(reason) }
    }

    #[inline(always)]
    fn attempt(&mut self, call: &mut CallState<&Policy>) -> Result<O::Value, O::Error> {
        let attempt = call.attempt();
        let mut outer = None;
        let _inside = call.enter(&mut outer);
        self.operation.attempt(attempt)
    }

    fn wait_until(&mut self, until: Moment) -> bool {
        (self.wait)(until.since(clock()))
    }
}
