//! How one retry knows that it runs inside another.
//!
//! While an attempt is polled (or, in blocking code, called), a thread-local names it; when the poll returns,
//! the name is taken away again. So the scope follows the task from thread to thread, and what runs beside it
//! does not see it.
//!
//! Four things go through it:
//!
//! - **inwards, that an outer layer retries**: a retry inside an attempt of another makes a single attempt;
//! - **inwards, the remaining time**: the earliest deadline applies;
//! - **outwards, "do not retry"**: if an inner retry ends because the budget is spent, the breaker is open or the
//!   other side asked for too long a wait, a failure of the outer attempt is final, whatever its classifier says.
//!   Repeating it would call the same downstream again.
//! - **outwards, "not before"**: a `Retry-After` that a retry inside was given, and that the error on its way
//!   out may have lost, is a floor for the wait of the retry around it.
//!
//! A task spawned inside an attempt sees no scope, unless its future is wrapped in [`carry`]. Conversely, a runtime
//! that is driven inside an attempt (`block_on` in blocking code, a `LocalSet`) polls its other tasks on this thread,
//! and they see the scope as if they were part of the attempt.

use std::cell::Cell;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use pin_project_lite::pin_project;
use redrive_core::{Moment, StopReason};

use crate::attempt::Attempt;

/// An attempt in progress, as inner retries see it.
///
/// ```
/// use redrive_retry::{Policy, Retry, classify};
/// use redrive_retry::scope::{self, RetryScope};
///
/// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
/// // A sender is on its second attempt and will make the others: inside, one is made.
/// let down = || async { Err::<(), _>("down") };
/// let policy = Policy::default();
/// let request = async {
///     assert_eq!(scope::current().unwrap().attempt().number(), 2);
///     down.retry(&policy).classify(classify::all).await.unwrap_err().report.attempts
/// };
/// let (attempts, _scope) = RetryScope::incoming(Some(2), None).around(request).await;
/// assert_eq!(attempts, 1);
/// # });
/// ```
#[derive(Debug, Clone, Copy)]
pub struct RetryScope {
    attempt: Attempt,
    repeats: bool,
    /// Which budget pays when it repeats; zero where none does.
    payer: usize,
    hint: Option<RetryHint>,
}

/// The hint of an inner retry to outer ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RetryHint {
    /// Do not try again.
    LeaveAlone(StopReason),
    /// Do not try again before this moment.
    NotBefore(Moment),
}

impl RetryHint {
    /// Why outer layers should not retry, if they should not.
    pub(crate) const fn reason(self) -> Option<StopReason> {
        match self {
            Self::LeaveAlone(reason) => Some(reason),
            Self::NotBefore(_) => None,
        }
    }
}

thread_local! {
    static CURRENT: Current = const { Current::none() };
}

/// The thread's scope, a cell for each part of it.
///
/// Not one cell with a [`RetryScope`]: an attempt is entered right after its scope was written, and reading in one
/// piece what was just written in several stalls the processor. Copying a scope in and out took longer than the rest
/// of the call.
struct Current {
    inside: Cell<bool>,
    number: Cell<u32>,
    max: Cell<u32>,
    overall: Cell<u32>,
    deadline: Cell<Option<Moment>>,
    repeats: Cell<bool>,
    payer: Cell<usize>,
    hint: Cell<Option<RetryHint>>,
}

impl Current {
    const fn none() -> Self {
        Self {
            inside: Cell::new(false),
            number: Cell::new(0),
            max: Cell::new(0),
            overall: Cell::new(0),
            deadline: Cell::new(None),
            repeats: Cell::new(false),
            payer: Cell::new(0),
            hint: Cell::new(None),
        }
    }

    #[inline]
    fn get(&self) -> Option<RetryScope> {
        if !self.inside.get() {
            return None;
        }
        let (number, max, overall) = (self.number.get(), self.max.get(), self.overall.get());
        let attempt = Attempt { number, max, overall, deadline: self.deadline.get() };
        Some(RetryScope {
            attempt,
            repeats: self.repeats.get(),
            payer: self.payer.get(),
            hint: self.hint.get(),
        })
    }

    fn set(&self, scope: RetryScope) {
        let RetryScope { attempt: Attempt { number, max, overall, deadline }, repeats, payer, hint } = scope;
        self.inside.set(true);
        self.repeats.set(repeats);
        self.payer.set(payer);
        self.hint.set(hint);
        self.count(number, max, overall, deadline);
    }

    /// Out of line, so that the numbers come in registers: inlined, the compiler copies two of them at once.
    #[inline(never)]
    fn count(&self, number: u32, max: u32, overall: u32, deadline: Option<Moment>) {
        self.number.set(number);
        self.max.set(max);
        self.overall.set(overall);
        self.deadline.set(deadline);
    }
}

impl RetryScope {
    /// A scope that did not begin with a local retry: an incoming request, whose sender may be on its n-th attempt
    /// and may have set a deadline.
    ///
    /// `attempt` is the sender's attempt number, `None` if absent; only a sender with an attempt number is taken to
    /// retry.
    #[must_use]
    pub fn incoming(attempt: Option<u32>, deadline: Option<Moment>) -> Self {
        let number = attempt.unwrap_or(1).max(1);
        let attempt_of = Attempt { number, max: u32::MAX, overall: number, deadline };
        Self { attempt: attempt_of, repeats: attempt.is_some(), payer: 0, hint: None }
    }

    /// The attempt.
    #[must_use]
    pub const fn attempt(&self) -> Attempt {
        self.attempt
    }

    /// Whether an outer layer will retry if this fails.
    #[must_use]
    pub const fn repeats(&self) -> bool {
        self.repeats
    }

    pub(crate) const fn payer(&self) -> usize {
        self.payer
    }

    pub(crate) const fn deadline(&self) -> Option<Moment> {
        self.attempt.deadline
    }

    /// Why outer layers should not retry, if an inner retry said so.
    #[must_use]
    pub fn forbidden(&self) -> Option<StopReason> {
        self.hint.and_then(RetryHint::reason)
    }

    /// The earliest time for an outer retry, if an inner retry was given one.
    #[must_use]
    pub const fn not_before(&self) -> Option<Moment> {
        match self.hint {
            Some(RetryHint::NotBefore(at)) => Some(at),
            _ => None,
        }
    }

    /// Runs `work` inside this scope, and records its hints.
    pub fn enter<R>(&mut self, work: impl FnOnce() -> R) -> R {
        let mut outer = None;
        let _inside = enter(self.attempt, self.repeats, self.payer, &mut self.hint, &mut outer);
        work()
    }

    /// Runs a future inside this scope; see [`Scoped`].
    pub fn around<F: Future>(self, future: F) -> Scoped<F> {
        Scoped { scope: Some(self), future }
    }
}

/// Makes this attempt the thread's scope until the guard is dropped. Then `hint` has the hint of inner retries.
///
/// The outer scope, which is rare, is kept in `outer`, a slot of the caller's, so that nothing is written if there is
/// none.
#[inline(always)]
pub(crate) fn enter<'a>(
    attempt: Attempt,
    repeats: bool,
    payer: usize,
    hint: &'a mut Option<RetryHint>,
    outer: &'a mut Option<RetryScope>,
) -> Inside<'a> {
    CURRENT.with(|current| {
        if current.inside.get() {
            keep(outer);
        }
        let Attempt { number, max, overall, deadline } = attempt;
        current.inside.set(true);
        current.repeats.set(repeats);
        current.payer.set(payer);
        current.hint.set(None);
        current.count(number, max, overall, deadline);
    });
    if hint.is_some() {
        hand_in(hint);
    }
    Inside { outer, hint }
}

/// A guard: the thread is inside a scope until it is dropped.
#[must_use = "the scope is left when this is dropped"]
pub(crate) struct Inside<'a> {
    outer: &'a mut Option<RetryScope>,
    hint: &'a mut Option<RetryHint>,
}

impl Drop for Inside<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        CURRENT.with(|current| {
            if current.hint.get().is_some() {
                *self.hint = current.hint.get();
            }
            current.inside.set(false);
        });
        if self.outer.is_some() {
            back_to(self.outer);
        }
    }
}

/// Restores the hint of the previous poll.
#[inline(never)]
fn hand_in(hint: &Option<RetryHint>) {
    CURRENT.with(|current| current.hint.set(*hint));
}

#[inline(never)]
fn keep(outer: &mut Option<RetryScope>) {
    *outer = current();
}

#[inline(never)]
fn back_to(outer: &mut Option<RetryScope>) {
    if let Some(outer) = outer.take() {
        CURRENT.with(|current| current.set(outer));
    }
}

/// The scope that this task is in, if it is in one.
#[must_use]
#[inline]
pub fn current() -> Option<RetryScope> {
    CURRENT.with(Current::get)
}

/// Tells every outer retry that a failure is final. A client calls it on `redrive-no-retry`.
pub fn forbid_outer_retry(reason: StopReason) {
    // Outside of any scope it is never read, and entering a scope overwrites it.
    CURRENT.with(|current| current.hint.set(Some(RetryHint::LeaveAlone(reason))));
}

/// Tells every outer retry not to call the other side before this moment. The latest of several applies, and none if
/// a failure is final anyway.
pub fn ask_not_before(at: Moment) {
    CURRENT.with(|current| {
        let hint = match current.hint.get() {
            Some(RetryHint::LeaveAlone(_)) => return,
            Some(RetryHint::NotBefore(other)) => RetryHint::NotBefore(at.max(other)),
            None => RetryHint::NotBefore(at),
        };
        current.hint.set(Some(hint));
    });
}

/// Carries the current scope into a task that is about to be spawned: retries in it then see the outer retry. Its
/// hints stay in that task.
///
/// ```
/// use redrive_retry::scope;
///
/// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
/// let task = tokio::spawn(scope::carry(async { scope::current().is_some() }));
/// assert!(!task.await.unwrap(), "there was none to carry");
/// # });
/// ```
pub fn carry<F: Future>(future: F) -> impl Future<Output = F::Output> {
    let scoped = Scoped { scope: current(), future };
    async move { scoped.await.0 }
}

pin_project! {
    /// A future that is polled inside a scope. Returns its output, and the scope with the recorded hints.
    #[derive(Debug)]
    pub struct Scoped<F> {
        scope: Option<RetryScope>,
        #[pin]
        future: F,
    }
}

impl<F: Future> Future for Scoped<F> {
    type Output = (F::Output, Option<RetryScope>);

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        let polled = match this.scope {
            Some(scope) => scope.enter(|| this.future.poll(cx)),
            None => this.future.poll(cx),
        };
        polled.map(|output| (output, *this.scope))
    }
}
