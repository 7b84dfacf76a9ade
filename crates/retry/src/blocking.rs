//! The same words without async.
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
//! does what [`wait_with`](Retrying::wait_with) says.

use std::time::{Duration, Instant};

use redrive_core::classify::{Answer, Classify, If, Output, unknown};
use redrive_core::{Moment, Policy, StopReason, Stopped};

use crate::attempt::Attempt;
use crate::clock::{clock, from_now};
use crate::course::{Begin, Course, Next, Terms};
use crate::drive::Finished;
use crate::postfix::{Reported, Unknown, output, reported};

/// Anything that can be called again: `Fn() -> Result` or `Fn(Attempt) -> Result`. `Args` tells the two apart
/// and is never written.
pub trait Retry<Args>: Sized {
    /// What it gives when it works.
    type Value;
    /// What it gives when it fails.
    type Error;

    /// Makes one attempt.
    fn attempt(&mut self, attempt: Attempt) -> Result<Self::Value, Self::Error>;

    /// Retries it under a policy. Without a classifier every error is `unclassified`, hence permanent.
    fn retry(self, policy: &Policy) -> Retrying<'_, Self, Args, Unknown<Self::Error>> {
        Retrying {
            policy,
            operation: self,
            classifier: unknown::<Self::Error>,
            wait: sleep,
            terms: Terms::default(),
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

/// What [`call`](Retrying::call) gives.
type Called<C, T, E> = Result<Output<C, T, E>, Stopped<E>>;

/// Waits, and says whether to go on.
type Wait = fn(Duration) -> bool;

fn sleep(wait: Duration) -> bool {
    std::thread::sleep(wait);
    true
}

/// A call that will be retried by [`call`](Retrying::call).
#[derive(Debug)]
#[must_use = "nothing is called until `call` is"]
pub struct Retrying<'p, O, Args, C, W = Wait> {
    policy: &'p Policy,
    operation: O,
    classifier: C,
    wait: W,
    terms: Terms,
    args: std::marker::PhantomData<fn(Args)>,
}

impl<'p, O: Retry<Args>, Args, C, W> Retrying<'p, O, Args, C, W> {
    /// Says what an error means, as [`redrive_core::classify`] has it.
    pub fn classify<N: Classify<O::Error>>(self, classifier: N) -> Retrying<'p, O, Args, N, W> {
        let Self { policy, operation, wait, terms, args, .. } = self;
        Retrying { policy, operation, classifier, wait, terms, args }
    }

    /// Says which errors may pass; the others are permanent.
    pub fn retry_if<F: Fn(&O::Error) -> bool>(self, may_pass: F) -> Retrying<'p, O, Args, If<F>, W> {
        self.classify(If(may_pass))
    }

    /// Waits by calling this instead of putting the thread to sleep. It says `false` to cancel, at once or in
    /// the middle.
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
    pub fn wait_with<N: FnMut(Duration) -> bool>(self, wait: N) -> Retrying<'p, O, Args, C, N> {
        let Self { policy, operation, classifier, terms, args, .. } = self;
        Retrying { policy, operation, classifier, wait, terms, args }
    }

    /// No attempt makes sense after this.
    pub const fn deadline(mut self, deadline: Instant) -> Self {
        self.terms.deadline = Some(deadline);
        self
    }

    /// The same, counted from now.
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

impl<O, Args, C, W> Retrying<'_, O, Args, C, W>
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
        let mut course = Course::new(self.policy, self.terms);
        output::<C::Answer, _, _>(self.drive(&mut course))
    }

    /// Calls it, and gives the report also when it works.
    #[must_use]
    pub fn report(mut self) -> Reported<Output<C, O::Value, O::Error>, O::Error> {
        let mut course = Course::new(self.policy, self.terms);
        let finished = self.drive(&mut course);
        reported::<C::Answer, _, _>(finished, || course.report(StopReason::Succeeded))
    }

    #[inline(always)]
    fn drive(&mut self, course: &mut Course<&Policy>) -> Finished<O::Value, O::Error> {
        let mut last = None;
        let reason = loop {
            let next = match course.begin() {
                Begin::Stop(reason) => Next::Stop(reason),
                Begin::Wait(until) => Next::Wait(until),
                Begin::Call => match self.attempt(course) {
                    Ok(value) => {
                        course.succeed();
                        return Finished::Worked(value);
                    }
                    Err(error) => {
                        let outcome = self.classifier.classify(&error).disposition().into();
                        last = Some(Err(error));
                        course.settle(outcome)
                    }
                },
            };
            match next {
                Next::Stop(reason) => break reason,
                Next::Wait(until) if !self.wait_until(until) => break StopReason::Cancelled,
                Next::Wait(_) => {}
            }
        };
        Finished::Ended { last, report: course.end(reason) }
    }

    #[inline(always)]
    fn attempt(&mut self, course: &mut Course<&Policy>) -> Result<O::Value, O::Error> {
        let attempt = course.attempt();
        let mut outer = None;
        let _inside = course.enter(&mut outer);
        self.operation.attempt(attempt)
    }

    fn wait_until(&mut self, until: Moment) -> bool {
        (self.wait)(until.since(clock()))
    }
}
