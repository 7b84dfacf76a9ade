//! The future that every async door is made of.
//!
//! [`Drive`] takes an [`Operation`], which makes a fresh future for every attempt, and a [`Judge`], which
//! says what a result means, and drives them through a policy. It is written out as a state machine, not as
//! an `async` block, because then it has a name: a tower service can return it and `IntoFuture` can promise
//! it, without a box.
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
//! use redrive_retry::drive::{Drive, Judge, Operation};
//! use std::future::{Ready, ready};
//!
//! /// Gives the number of the attempt.
//! struct Count;
//! impl Operation for Count {
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
//! Cancellation ends a wait at once. An attempt under way is not torn by it, because a torn attempt is one of
//! unknown outcome; it is finished, and nothing follows. To tear it all the same, drop the future.

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
use crate::clock::{poll_until, sleep_until};
use crate::course::{Begin, Course, Next, Terms};

/// Makes a fresh future for every attempt.
pub trait Operation {
    /// What an attempt gives when it works.
    type Value;
    /// What it gives when it fails.
    type Error;
    /// The attempt.
    type Future: Future<Output = Result<Self::Value, Self::Error>>;

    /// Starts an attempt.
    fn call(&mut self, attempt: Attempt) -> Self::Future;
}

/// Says what the result of an attempt means. For most, an `Ok` is a success; a client's `Ok` can be a 503.
pub trait Judge<T, E> {
    /// The outcome of an attempt that gave this result.
    fn judge(&self, result: &Result<T, E>) -> Outcome;

    /// Leaves the report on a value that is about to be handed out, where there is a place for it.
    fn note(&self, value: &mut T, report: &Report) {
        let _ = (value, report);
    }
}

/// How a call ended.
///
/// A success comes without its report, which [`Drive::report`] makes when somebody wants it: moving one costs
/// more than the rest of a first-try success together.
#[derive(Debug)]
pub enum Finished<T, E> {
    /// It worked.
    Worked(T),
    /// It did not, or nobody needs it any more.
    Ended {
        /// The last result there is. `None` where no attempt gave one: none was started, or they all timed
        /// out.
        last: Option<Result<T, E>>,
        /// Why it ended.
        report: Report,
    },
}

impl<T, E> Finished<T, E> {
    /// The value, also one that was judged a failure, as an HTTP answer can be; otherwise the error and why
    /// it ended.
    ///
    /// # Errors
    /// Where there is no value.
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
    /// An operation on its way through a policy. `X` is a future whose end cancels the waiting.
    #[must_use = "futures do nothing unless polled"]
    pub struct Drive<P: Borrow<Policy>, O: Operation, J, X = Pending<()>> {
        course: Course<P>,
        operation: O,
        judge: J,
        last: Option<Result<O::Value, O::Error>>,
        cancelled: bool,
        // Of the wait, or of the time-out of the attempt under way. Boxed, and made when there is something
        // to wait for: a future is moved before it is polled, and every first-try success would carry it
        // along for nothing.
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

impl<P: Borrow<Policy>, O: Operation, J: Judge<O::Value, O::Error>> Drive<P, O, J> {
    /// Drives this operation through this policy.
    #[inline]
    pub fn new(policy: P, operation: O, judge: J) -> Self {
        Self::with_terms(policy, operation, judge, pending(), Terms::default())
    }
}

impl<P: Borrow<Policy>, O: Operation, J: Judge<O::Value, O::Error>, X> Drive<P, O, J, X> {
    #[inline]
    pub(crate) fn with_terms(policy: P, operation: O, judge: J, cancel: X, terms: Terms) -> Self {
        Self {
            course: Course::new(policy, terms),
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
        self.course.terms_mut().only_once = once;
        self
    }

    /// Retries although another retry of this task, further out, retries as well.
    #[inline]
    pub fn independent(mut self, independent: bool) -> Self {
        self.course.terms_mut().independent = independent;
        self
    }

    /// Ends a wait at once when this future ends.
    #[inline]
    pub fn cancel_on<N: Future<Output = ()>>(self, cancel: N) -> Drive<P, O, J, N> {
        let Self { course, operation, judge, last, cancelled, timer, state, .. } = self;
        Drive { course, operation, judge, last, cancelled, timer, cancel, state }
    }

    /// No attempt makes sense after this.
    #[inline]
    pub fn deadline(mut self, deadline: Option<Instant>) -> Self {
        self.course.terms_mut().deadline = deadline;
        self
    }
}

impl<P: Borrow<Policy>, O: Operation, J, X> Drive<P, O, J, X> {
    /// What happened, of a call that [`Worked`](Finished::Worked).
    #[must_use]
    pub fn report(&self) -> Report {
        self.course.report(StopReason::Succeeded)
    }
}

impl<P, O, J, X> Future for Drive<P, O, J, X>
where
    P: Borrow<Policy>,
    O: Operation,
    J: Judge<O::Value, O::Error>,
    X: Future<Output = ()>,
{
    type Output = Finished<O::Value, O::Error>;

    #[inline]
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        loop {
            let this = self.as_mut().project();
            let fresh = match this.state.as_ref().get_ref() {
                State::Calling { .. } => false,
                State::Idle if this.cancel.poll(cx).is_ready() => {
                    return Poll::Ready(self.finish(StopReason::Cancelled));
                }
                State::Idle => match this.course.begin() {
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
                        (Outcome::Said(Disposition::Ok), Ok(mut value)) => {
                            this.state.set(State::Over);
                            let report = this.course.succeed();
                            this.judge.note(&mut value, &report);
                            return Poll::Ready(Finished::Worked(value));
                        }
                        (outcome, result) => {
                            *this.last = Some(result);
                            this.course.settle(outcome)
                        }
                    }
                }
                Poll::Pending => {
                    ready!(self.as_mut().poll_time_out(cx));
                    self.as_mut().project().course.settle(Outcome::TimedOut)
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
    O: Operation,
    J: Judge<O::Value, O::Error>,
    X: Future<Output = ()>,
{
    /// Polls the attempt under way, a fresh one after starting it.
    ///
    /// It is made and polled for the first time inside one and the same scope, because entering one is not
    /// for free.
    #[inline(always)]
    fn poll_attempt(
        self: Pin<&mut Self>,
        fresh: bool,
        cx: &mut Context<'_>,
    ) -> Poll<Result<O::Value, O::Error>> {
        let mut this = self.project();
        let attempt = this.course.attempt();
        let mut outer = None;
        let _inside = this.course.enter(&mut outer);
        if fresh {
            this.state.set(State::Calling { attempt: this.operation.call(attempt) });
        }
        match this.state.project() {
            StateProjected::Calling { attempt } => attempt.poll(cx),
            _ => unreachable!("an attempt is under way"),
        }
    }

    /// Whether the time of the attempt under way is up.
    fn poll_time_out(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let this = self.project();
        let Some(deadline) = this.course.deadline() else { return Poll::Pending };
        ready!(poll_until(deadline, this.timer, cx));
        rest(this.timer, this.state);
        Poll::Ready(())
    }

    fn wait(self: Pin<&mut Self>, until: Moment) {
        let mut this = self.project();
        this.state.set(State::Waiting);
        // A response would hold its connection through the whole wait.
        if matches!(this.last, Some(Ok(_))) {
            *this.last = None;
        }
        *this.timer = Some(Box::pin(sleep_until(until)));
    }

    /// Waits; says `false` where it was cancelled.
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

    fn finish(self: Pin<&mut Self>, reason: StopReason) -> Finished<O::Value, O::Error> {
        let mut this = self.project();
        this.state.set(State::Over);
        let report = this.course.end(reason);
        if let Some(Ok(value)) = this.last {
            this.judge.note(value, &report);
        }
        Finished::Ended { last: this.last.take(), report }
    }
}

/// Nothing is called and nothing is waited for.
fn rest<F>(timer: &mut Option<Pin<Box<Sleep>>>, mut state: Pin<&mut State<F>>) {
    *timer = None;
    state.set(State::Idle);
}

impl<P: Borrow<Policy>, O: Operation, J, X> fmt::Debug for Drive<P, O, J, X> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Drive").finish_non_exhaustive()
    }
}
