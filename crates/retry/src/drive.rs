//! The future behind every async call style.
//!
//! [`Drive`] takes a [`MakeAttempt`], which makes a fresh future for every attempt, and a [`Judge`], which judges
//! results, and drives them through a policy. It is a hand-written state machine rather than an `async` block, so
//! that its type has a name: a tower service can return it and `IntoFuture` can name it, without a box.
//!
//! | state | what it waits for |
//! |---|---|
//! | `Idle` | nothing: the run is asked whether an attempt may start |
//! | `Calling` | the attempt, or its time-out |
//! | `Waiting` | the moment of the next attempt, or the cancellation |
//!
//! ```
//! use redrive_core::observe::Outcome;
//! use redrive_core::{Backoff, Disposition, Fault, Policy};
//! use redrive_retry::Attempt;
//! use redrive_retry::drive::{Drive, Judge, MakeAttempt};
//! use std::future::{Ready, ready};
//!
//! /// Gives the number of the attempt.
//! struct Count;
//! impl MakeAttempt for Count {
//!     type Value = u32;
//!     type Error = ();
//!     type Future = Ready<Result<u32, ()>>;
//!     fn call(&mut self, attempt: Attempt) -> Self::Future {
//!         ready(Ok(attempt.number()))
//!     }
//! }
//!
//! /// Wants a larger one.
//! struct AtLeast(u32);
//! impl Judge<u32, ()> for AtLeast {
//!     fn judge(&self, result: &Result<u32, ()>) -> Outcome {
//!         match result {
//!             Ok(number) if *number >= self.0 => Disposition::Ok.into(),
//!             _ => Fault::transient().into(),
//!         }
//!     }
//! }
//!
//! # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
//! let policy = Policy::builder().backoff(Backoff::NONE).build().unwrap();
//! assert_eq!(Drive::new(&policy, Count, AtLeast(3)).await.into_result(), Ok(3));
//! # });
//! ```
//!
//! Cancellation ends a wait at once. It does not abort an attempt in progress, because the outcome of an aborted
//! attempt is unknown; the attempt is finished, and none follows. To abort it, drop the future.

use std::borrow::Borrow;
use std::fmt;
use std::future::{Future, Pending, pending};
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Instant;

use pin_project_lite::pin_project;
use redrive_core::observe::Outcome;
use redrive_core::{Disposition, Moment, Policy, Report, StopReason, Stopped};
use tokio::time::Sleep;

use crate::attempt::Attempt;
use crate::call_state::{Begin, CallOptions, CallState, Next};
use crate::clock::{poll_until, sleep_until};

/// Makes a fresh future for every attempt.
pub trait MakeAttempt {
    /// The value of a successful attempt.
    type Value;
    /// The error of a failed attempt.
    type Error;
    /// The attempt.
    type Future: Future<Output = Result<Self::Value, Self::Error>>;

    /// Starts an attempt.
    fn call(&mut self, attempt: Attempt) -> Self::Future;
}

/// Judges the result of an attempt. For most operations `Ok` is a success; a client's `Ok` can be a 503.
pub trait Judge<T, E> {
    /// The outcome of an attempt that gave this result.
    fn judge(&self, result: &Result<T, E>) -> Outcome;

    /// Attaches the report to a value before it is returned, if the value has a place for it.
    fn note(&self, value: &mut T, report: &Report) {
        let _ = (value, report);
    }
}

/// How a call ended.
///
/// A success comes without its report, which [`Drive::report`] makes on request: moving one costs more than the rest
/// of a first-try success.
#[derive(Debug)]
pub enum CallResult<T, E> {
    /// It worked.
    Worked(T),
    /// It failed, or was cancelled.
    Ended {
        /// The last result. `None` if no attempt gave one: none was started, or all timed out.
        last: Option<Result<T, E>>,
        /// Why it ended.
        report: Report,
    },
}

impl<T, E> CallResult<T, E> {
    /// The value, even if it was judged a failure, as an HTTP response can be; otherwise the error and the reason.
    ///
    /// # Errors
    /// If there is no value.
    #[inline]
    pub fn into_result(self) -> Result<T, Stopped<E>> {
        match self {
            Self::Worked(value) | Self::Ended { last: Some(Ok(value)), .. } => Ok(value),
            Self::Ended { last: Some(Err(error)), report } => Err(Stopped { error: Some(error), report }),
            Self::Ended { last: None, report } => Err(Stopped { error: None, report }),
        }
    }
}

pin_project! {
    /// An operation driven through a policy. `X` is a future that cancels the waiting when it resolves.
    #[must_use = "futures do nothing unless polled"]
    pub struct Drive<P: Borrow<Policy>, O: MakeAttempt, J, X = Pending<()>> {
        call: CallState<P>,
        operation: O,
        judge: J,
        last: Option<Result<O::Value, O::Error>>,
        cancelled: bool,
        // The timer of a wait, or of the timeout of the attempt in progress. Boxed and created only if needed: a
        // future is moved before it is polled, and every first-try success would carry the timer for nothing.
        timer: Option<Pin<Box<Sleep>>>,
        #[pin]
        cancel: X,
        #[pin]
        state: State<O::Future>,
    }
}

pin_project! {
    #[project = StateProjected]
    enum State<F> {
        Idle,
        Calling { #[pin] attempt: F },
        Waiting,
        Over,
    }
}

impl<P: Borrow<Policy>, O: MakeAttempt, J: Judge<O::Value, O::Error>> Drive<P, O, J> {
    /// Drives this operation through this policy.
    #[inline]
    pub fn new(policy: P, operation: O, judge: J) -> Self {
        Self::with_terms(policy, operation, judge, pending(), CallOptions::default())
    }
}

impl<P: Borrow<Policy>, O: MakeAttempt, J: Judge<O::Value, O::Error>, X> Drive<P, O, J, X> {
    #[inline]
    pub(crate) fn with_terms(policy: P, operation: O, judge: J, cancel: X, terms: CallOptions) -> Self {
        Self {
            call: CallState::new(policy, terms),
            operation,
            judge,
            last: None,
            cancelled: false,
            timer: None,
            cancel,
            state: State::Idle,
        }
    }

    /// Makes one attempt, whatever the policy says, because the operation cannot be repeated.
    #[inline]
    pub fn only_once(mut self, once: bool) -> Self {
        self.call.terms_mut().only_once = once;
        self
    }

    /// Retries although another retry of this task, further out, retries as well.
    #[inline]
    pub fn independent(mut self, independent: bool) -> Self {
        self.call.terms_mut().independent = independent;
        self
    }

    /// Ends a wait at once when this future resolves.
    #[inline]
    pub fn cancel_on<N: Future<Output = ()>>(self, cancel: N) -> Drive<P, O, J, N> {
        let Self { call, operation, judge, last, cancelled, timer, state, .. } = self;
        Drive { call, operation, judge, last, cancelled, timer, cancel, state }
    }

    /// No attempt makes sense after this.
    #[inline]
    pub fn deadline(mut self, deadline: Option<Instant>) -> Self {
        self.call.terms_mut().deadline = deadline;
        self
    }
}

impl<P: Borrow<Policy>, O: MakeAttempt, J, X> Drive<P, O, J, X> {
    /// What happened, of a call that [`Worked`](CallResult::Worked).
    #[must_use]
    pub fn report(&self) -> Report {
        self.call.report(StopReason::Succeeded)
    }
}

impl<P, O, J, X> Future for Drive<P, O, J, X>
where
    P: Borrow<Policy>,
    O: MakeAttempt,
    J: Judge<O::Value, O::Error>,
    X: Future<Output = ()>,
{
    type Output = CallResult<O::Value, O::Error>;

    #[inline]
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        loop {
            let this = self.as_mut().project();
            let fresh = match this.state.as_ref().get_ref() {
                State::Calling { .. } => false,
                State::Idle if this.cancel.poll(cx).is_ready() => {
                    return Poll::Ready(self.finish(StopReason::Cancelled));
                }
                State::Idle => match this.call.begin() {
                    Begin::Call => true,
                    Begin::Wait(until) => {
                        self.as_mut().wait(until);
                        continue;
                    }
                    Begin::Stop(reason) => return Poll::Ready(self.finish(reason)),
                },
                State::Waiting => {
                    if ready!(self.as_mut().poll_wait(cx)) {
                        continue;
                    }
                    return Poll::Ready(self.finish(StopReason::Cancelled));
                }
                State::Over => panic!("polled after it was over"),
            };
            let next = match self.as_mut().poll_attempt(fresh, cx) {
                Poll::Ready(result) => {
                    let mut this = self.as_mut().project();
                    match (this.judge.judge(&result), result) {
                        (Outcome::Classified(Disposition::Ok), Ok(mut value)) => {
                            this.state.set(State::Over);
                            let report = this.call.succeed();
                            this.judge.note(&mut value, &report);
                            return Poll::Ready(CallResult::Worked(value));
                        }
                        (outcome, result) => {
                            *this.last = Some(result);
                            this.call.settle(outcome)
                        }
                    }
                }
                Poll::Pending => {
                    ready!(self.as_mut().poll_time_out(cx));
                    self.as_mut().project().call.settle(Outcome::TimedOut)
                }
            };
            match next {
                Next::Wait(until) => self.as_mut().wait(until),
                Next::Stop(reason) => return Poll::Ready(self.finish(reason)),
            }
        }
    }
}

impl<P, O, J, X> Drive<P, O, J, X>
where
    P: Borrow<Policy>,
    O: MakeAttempt,
    J: Judge<O::Value, O::Error>,
    X: Future<Output = ()>,
{
    /// Polls the attempt in progress, or starts a fresh one.
    ///
    /// The attempt is created and first polled inside the same scope, because entering a scope is not free.
    #[inline(always)]
    fn poll_attempt(
        self: Pin<&mut Self>,
        fresh: bool,
        cx: &mut Context<'_>,
    ) -> Poll<Result<O::Value, O::Error>> {
        let mut this = self.project();
        let attempt = this.call.attempt();
        let mut outer = None;
        let _inside = this.call.enter(&mut outer);
        if fresh {
            this.state.set(State::Calling { attempt: this.operation.call(attempt) });
        }
        match this.state.project() {
            StateProjected::Calling { attempt } => attempt.poll(cx),
            _ => unreachable!("an attempt is under way"),
        }
    }

    /// Whether the attempt in progress has timed out.
    fn poll_time_out(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let this = self.project();
        let Some(deadline) = this.call.deadline() else { return Poll::Pending };
        ready!(poll_until(deadline, this.timer, cx));
        rest(this.timer, this.state);
        Poll::Ready(())
    }

    fn wait(self: Pin<&mut Self>, until: Moment) {
        let mut this = self.project();
        this.state.set(State::Waiting);
        // A response would hold its connection during the whole wait.
        if matches!(this.last, Some(Ok(_))) {
            *this.last = None;
        }
        *this.timer = Some(Box::pin(sleep_until(until)));
    }

    /// Waits; returns `false` if cancelled.
    fn poll_wait(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<bool> {
        let this = self.project();
        *this.cancelled = *this.cancelled || this.cancel.poll(cx).is_ready();
        if *this.cancelled {
            return Poll::Ready(false);
        }
        if let Some(timer) = this.timer {
            ready!(timer.as_mut().poll(cx));
        }
        rest(this.timer, this.state);
        Poll::Ready(true)
    }

    fn finish(self: Pin<&mut Self>, reason: StopReason) -> CallResult<O::Value, O::Error> {
        let mut this = self.project();
        this.state.set(State::Over);
        let report = this.call.end(reason);
        if let Some(Ok(value)) = this.last {
            this.judge.note(value, &report);
        }
        CallResult::Ended { last: this.last.take(), report }
    }
}

/// Nothing is called and nothing is waited for.
fn rest<F>(timer: &mut Option<Pin<Box<Sleep>>>, mut state: Pin<&mut State<F>>) {
    *timer = None;
    state.set(State::Idle);
}

impl<P: Borrow<Policy>, O: MakeAttempt, J, X> fmt::Debug for Drive<P, O, J, X> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Drive").finish_non_exhaustive()
    }
}
