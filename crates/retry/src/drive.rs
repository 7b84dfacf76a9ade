//! The future that every async door is made of.
//!
//! [`Drive`] takes an [`Operation`], which makes a fresh future for every attempt, and a [`Judge`], which says what a result
//! means, and drives them through a policy. It is written out as a state machine, not as an `async` block, because then
//! it has a name: a tower service can return it and `IntoFuture` can promise it, without a box.
//!
//! | state | what it waits for |
//! |---|---|
//! | `Idle` | nothing: the run is asked whether an attempt may start |
//! | `Calling` | the attempt, or its time-out |
//! | `Waiting` | the moment of the next attempt, or the cancellation |
//!
//! Cancellation ends a wait at once. An attempt under way is not torn by it, because a torn attempt is one of unknown
//! outcome; it is finished, and nothing follows. To tear it all the same, drop the future.

use std::borrow::Borrow;
use std::fmt;
use std::future::{Future, Pending, pending};
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Instant;

use pin_project_lite::pin_project;
use redrive_core::observe::Outcome;
use redrive_core::{Policy, Report, StopReason};
use tokio::time::Sleep;

use crate::attempt::Attempt;
use crate::clock::sleep_until;
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

/// How a drive ended.
#[derive(Debug)]
pub struct Finished<T, E> {
    /// The last result there is. `None` where no attempt gave one: none was started, or they all timed out.
    pub result: Option<Result<T, E>>,
    /// Why it ended.
    pub report: Report,
}

pin_project! {
    /// An operation on its way through a policy. `X` is a future whose end cancels the waiting.
    #[must_use = "futures do nothing unless polled"]
    pub struct Drive<P, O: Operation, J, X = Pending<()>> {
        course: Course<P>,
        operation: O,
        judge: J,
        last: Option<Result<O::Value, O::Error>>,
        cancelled: bool,
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
        Calling { #[pin] attempt: F, #[pin] time_out: Option<Sleep> },
        Waiting { #[pin] sleep: Sleep },
        Over,
    }
}

impl<P: Borrow<Policy>, O: Operation, J: Judge<O::Value, O::Error>> Drive<P, O, J> {
    /// Drives this operation through this policy.
    pub fn new(policy: P, operation: O, judge: J) -> Self {
        Self::with_terms(policy, operation, judge, pending(), Terms::default())
    }
}

impl<P: Borrow<Policy>, O: Operation, J: Judge<O::Value, O::Error>, X> Drive<P, O, J, X> {
    pub(crate) fn with_terms(policy: P, operation: O, judge: J, cancel: X, terms: Terms) -> Self {
        Self {
            course: Course::new(policy, terms),
            operation,
            judge,
            last: None,
            cancelled: false,
            cancel,
            state: State::Idle,
        }
    }

    /// Makes one attempt, whatever the policy says, because the operation cannot be repeated.
    pub fn only_once(mut self, once: bool) -> Self {
        self.course.terms_mut().only_once = once;
        self
    }

    /// Retries although another retry of this task, further out, retries as well.
    pub fn independent(mut self, independent: bool) -> Self {
        self.course.terms_mut().independent = independent;
        self
    }

    /// No attempt makes sense after this.
    pub fn deadline(mut self, deadline: Option<Instant>) -> Self {
        self.course.terms_mut().deadline = deadline;
        self
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

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        loop {
            let next = match this.state.as_mut().project() {
                StateProjected::Idle => match this.course.begin() {
                    Begin::Stop(reason) => Next::Stop(reason),
                    Begin::Wait(until) => Next::Wait(until),
                    Begin::Call(number) => {
                        // A response that was kept through the wait still holds its connection.
                        if matches!(this.last, Some(Ok(_))) {
                            *this.last = None;
                        }
                        let attempt = this.course.inside(|| this.operation.call(number));
                        let time_out = number.deadline.map(sleep_until);
                        this.state.set(State::Calling { attempt, time_out });
                        continue;
                    }
                },
                StateProjected::Calling { attempt, time_out } => {
                    match this.course.inside(|| attempt.poll(cx)) {
                        Poll::Ready(result) => {
                            let outcome = this.judge.judge(&result);
                            *this.last = Some(result);
                            this.course.settle(outcome)
                        }
                        Poll::Pending => {
                            match time_out.as_pin_mut() {
                                Some(time_out) => ready!(time_out.poll(cx)),
                                None => return Poll::Pending,
                            }
                            this.state.set(State::Idle);
                            this.course.settle(Outcome::TimedOut)
                        }
                    }
                }
                StateProjected::Waiting { sleep } => {
                    if !*this.cancelled && this.cancel.as_mut().poll(cx).is_ready() {
                        *this.cancelled = true;
                    }
                    if *this.cancelled {
                        Next::Stop(StopReason::Cancelled)
                    } else {
                        ready!(sleep.poll(cx));
                        this.state.set(State::Idle);
                        continue;
                    }
                }
                StateProjected::Over => panic!("polled after it was over"),
            };
            match next {
                Next::Wait(until) => this.state.set(State::Waiting { sleep: sleep_until(until) }),
                Next::Stop(reason) => {
                    this.state.set(State::Over);
                    let report = this.course.end(reason);
                    if let Some(Ok(value)) = this.last {
                        this.judge.note(value, &report);
                    }
                    return Poll::Ready(Finished { result: this.last.take(), report });
                }
            }
        }
    }
}

impl<P, O: Operation, J, X> fmt::Debug for Drive<P, O, J, X> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Drive").finish_non_exhaustive()
    }
}
