//! Retries as a loop, for code that borrows `&mut self` and must be `Send`.
//!
//! A closure that makes a fresh future cannot lend out a `&mut` that it captured; a loop can.
//!
//! ```
//! use redrive_retry::{Policy, Start, Stopped, classify};
//! use std::io;
//!
//! struct Reader {
//!     policy: Policy,
//!     position: u64,
//! }
//!
//! impl Reader {
//!     async fn read(&mut self, attempt: u32) -> Result<u64, io::Error> {
//!         self.position += 1;
//!         if attempt == 1 { Err(io::ErrorKind::TimedOut.into()) } else { Ok(self.position) }
//!     }
//!
//!     async fn read_with_retries(&mut self) -> Result<u64, Stopped<io::Error>> {
//!         let mut session = self.policy.start();
//!         while let Some(attempt) = session.next().await {
//!             if let Some(position) = session.run(self.read(attempt.number()), classify::io).await {
//!                 return Ok(position);
//!             }
//!         }
//!         Err(session.stopped())
//!     }
//! }
//! # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
//! # let mut reader = Reader { policy: Policy::default(), position: 0 };
//! assert_eq!(reader.read_with_retries().await.unwrap(), 2);
//! # });
//! ```
//!
//! [`run`](Session::run) puts the attempt into its scope, applies its timeout and classifies its error. Code that
//! cannot pass a future reports the result itself: [`done`](Session::done), [`failed`](Session::failed).

use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use pin_project_lite::pin_project;
use redrive_core::classify::{Classification, Classify, Output};
use redrive_core::observe::Outcome;
use redrive_core::{Moment, Policy, Report, StopReason, Stopped};

use tokio::time::Sleep;

use crate::attempt::Attempt;
use crate::call_state::{Begin, CallOptions, CallState, Next};
use crate::clock::{from_now, poll_until, sleep_until};
use crate::policy_handle::PolicyHandle;

/// Starts sessions.
pub trait Start {
    /// Starts a session: one call's way through its attempts.
    fn start<E>(&self) -> Session<E>;
}

impl Start for Policy {
    #[inline]
    fn start<E>(&self) -> Session<E> {
        Session::held(PolicyHandle::of(self))
    }
}

/// One call's way through its attempts, as a loop. See the [module](self).
#[derive(Debug)]
pub struct Session<E> {
    call: CallState<PolicyHandle>,
    state: State,
    error: Option<E>,
}

#[derive(Debug)]
enum State {
    Between(Option<Moment>),
    Over(StopReason),
}

impl<E> Session<E> {
    /// A session under this policy.
    #[must_use]
    #[inline]
    pub const fn new(policy: Policy) -> Self {
        Self::held(PolicyHandle::new(policy))
    }

    #[inline]
    const fn held(policy: PolicyHandle) -> Self {
        let call =
            CallState::new(policy, CallOptions { independent: false, only_once: false, deadline: None });
        Self { call, state: State::Between(None), error: None }
    }

    /// No attempt makes sense after this. To be said before the first [`next`](Self::next).
    #[must_use]
    pub const fn deadline(mut self, deadline: Instant) -> Self {
        self.call.terms_mut().deadline = Some(deadline);
        self
    }

    /// The same, from now.
    #[must_use]
    pub fn within(self, time: Duration) -> Self {
        match from_now(time) {
            Some(deadline) => self.deadline(deadline),
            None => self,
        }
    }

    /// Retries although another retry of this task, further out, retries as well. To be said before the first
    /// [`next`](Self::next).
    #[must_use]
    pub const fn independent(mut self) -> Self {
        self.call.terms_mut().independent = true;
        self
    }

    /// The next attempt, after its wait; `None` when it is over. Dropping the future while it waits loses
    /// nothing.
    ///
    /// An attempt without a reported result is `unclassified`, and the last.
    pub async fn next(&mut self) -> Option<Attempt> {
        if self.call.is_inside() {
            self.settle(Outcome::Unclassified);
        }
        loop {
            match self.state {
                State::Over(_) => return None,
                State::Between(Some(until)) => {
                    sleep_until(until).await;
                    self.state = State::Between(None);
                }
                State::Between(None) => match self.call.begin() {
                    Begin::Wait(until) => self.state = State::Between(Some(until)),
                    Begin::Stop(reason) => self.stop(reason),
                    Begin::Call => return Some(self.call.attempt()),
                },
            }
        }
    }

    /// As [`next`](Self::next), unless `cancel` ends first: then it is over, as `cancelled`. For
    /// `token.cancelled()` of a cancellation token.
    ///
    /// ```
    /// use redrive_retry::{Policy, Start, StopReason};
    /// use tokio_util::sync::CancellationToken;
    ///
    /// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
    /// let token = CancellationToken::new();
    /// token.cancel();
    /// let mut session = Policy::default().start::<std::io::Error>();
    /// assert!(session.next_unless(token.cancelled()).await.is_none());
    /// assert_eq!(session.stopped().report.reason, StopReason::Cancelled);
    /// # });
    /// ```
    pub async fn next_unless(&mut self, cancel: impl Future<Output = ()>) -> Option<Attempt> {
        let cancelled = {
            let (mut cancel, mut next) = (pin!(cancel), pin!(self.next()));
            poll_fn(|cx| match cancel.as_mut().poll(cx) {
                Poll::Ready(()) => Poll::Ready(None),
                Poll::Pending => next.as_mut().poll(cx).map(Some),
            })
            .await
        };
        match cancelled {
            Some(next) => next,
            None => {
                self.call.tear();
                if self.report().is_none() {
                    self.stop(StopReason::Cancelled);
                }
                None
            }
        }
    }

    /// Runs the attempt: inside its scope, with its timeout, its error classified. Returns the value on success, in
    /// the form of the classifier's answer: `Some(None)` if it was dropped. Once per [`next`](Self::next): a second
    /// time nothing is called and `None` is returned.
    #[inline]
    pub fn run<T, F, C>(&mut self, attempt: F, classifier: C) -> Running<'_, E, F, C>
    where
        F: Future<Output = Result<T, E>>,
        C: Classify<E>,
    {
        Running { session: self, classifier: Some(classifier), time_out: None, attempt }
    }

    /// Says that the attempt worked, and gives the value back.
    ///
    /// ```
    /// use redrive_retry::{Policy, Start, classify};
    ///
    /// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
    /// let mut session = Policy::default().start();
    /// let value = loop {
    ///     let Some(attempt) = session.next().await else { panic!("{}", session.stopped()) };
    ///     match if attempt.is_retry() { Ok(17) } else { Err("down") } {
    ///         Ok(value) => break session.done(value),
    ///         Err(error) => session.failed(error, classify::all),
    ///     }
    /// };
    /// assert_eq!(value, 17);
    /// # });
    /// ```
    /// An attempt that was not [`run`](Self::run) is in no
    /// scope, so a retry inside it multiplies with this one, and has no time-out.
    #[inline]
    pub fn done<T>(&mut self, value: T) -> T {
        if self.call.is_inside() {
            self.call.succeed();
            self.state = State::Over(StopReason::Succeeded);
        }
        value
    }

    /// Says that the attempt failed. As with [`done`](Self::done), it was in no scope and had no time-out.
    pub fn failed<C: Classify<E>>(&mut self, error: E, classifier: C) {
        let outcome = classifier.classify(&error).disposition().into();
        self.error = Some(error);
        self.settle(outcome);
    }

    fn settle(&mut self, outcome: Outcome) {
        if !self.call.is_inside() {
            return;
        }
        match self.call.settle(outcome) {
            Next::Wait(until) => self.state = State::Between(Some(until)),
            Next::Stop(reason) => self.stop(reason),
        }
    }

    fn stop(&mut self, reason: StopReason) {
        self.call.end(reason);
        self.state = State::Over(reason);
    }

    /// Why it ended, once it has.
    #[must_use]
    pub fn report(&self) -> Option<Report> {
        match self.state {
            State::Over(reason) => Some(self.call.report(reason)),
            State::Between(_) => None,
        }
    }

    /// The last error and the reason. Ends an unfinished session as `cancelled`.
    #[must_use]
    pub fn stopped(mut self) -> Stopped<E> {
        let report = match self.state {
            State::Over(reason) => self.call.report(reason),
            State::Between(_) => {
                self.call.tear();
                self.call.end(StopReason::Cancelled)
            }
        };
        Stopped { error: self.error, report }
    }
}

pin_project! {
    /// An attempt of a session. Hand-written, because an `async fn` would move the attempt twice before polling it.
    #[must_use = "futures do nothing unless polled"]
    #[derive(Debug)]
    pub struct Running<'s, E, F, C> {
        session: &'s mut Session<E>,
        classifier: Option<C>,
        // Made when the attempt has to be waited for.
        time_out: Option<Pin<Box<Sleep>>>,
        #[pin]
        attempt: F,
    }
}

impl<T, E, F, C> Future for Running<'_, E, F, C>
where
    F: Future<Output = Result<T, E>>,
    C: Classify<E>,
{
    type Output = Option<Output<C, T, E>>;

    #[inline]
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        let session = this.session;
        if !session.call.is_inside() {
            return Poll::Ready(None);
        }
        let polled = {
            let mut outer = None;
            let _inside = session.call.enter(&mut outer);
            this.attempt.poll(cx)
        };
        let failed = match polled {
            Poll::Ready(Ok(value)) => {
                return Poll::Ready(Some(C::Classification::worked(session.done(value))));
            }
            Poll::Ready(Err(error)) => Some(error),
            Poll::Pending => {
                let Some(deadline) = session.call.deadline() else { return Poll::Pending };
                ready!(poll_until(deadline, this.time_out, cx));
                None
            }
        };
        match (failed, this.classifier.take()) {
            (Some(error), Some(classifier)) => session.failed(error, classifier),
            _ => session.settle(Outcome::TimedOut),
        }
        Poll::Ready(match session.state {
            State::Over(StopReason::Dropped) => C::Classification::dropped(),
            _ => None,
        })
    }
}
