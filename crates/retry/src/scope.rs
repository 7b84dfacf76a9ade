//! How one retry knows that it runs inside another.
//!
//! While an attempt is polled (or, in blocking code, called), a thread-local names it; when the poll returns, the name
//! is taken away again. So the scope follows the task from thread to thread, and what runs beside it does not see it.
//!
//! Three things go through it:
//!
//! - **inwards, that somebody repeats**: a retry inside an attempt of another makes one attempt;
//! - **inwards, the time that is left**: the earliest deadline holds;
//! - **outwards, "leave it alone"**: when a retry inside ends because the budget is spent, the breaker is open or the
//!   other side asked for too long a wait, a failure of the attempt around it is final, whatever its classifier says.
//!   Repeating it would call the same downstream again.
//!
//! A task that is spawned inside an attempt is a task of its own and sees nothing, unless its future is wrapped in [`carry`].

use std::cell::Cell;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use pin_project_lite::pin_project;
use redrive_core::{Moment, StopReason};

use crate::attempt::Attempt;

/// An attempt under way, as the retries inside it see it.
#[derive(Debug, Clone, Copy)]
pub struct Scope {
    attempt: Attempt,
    repeats: bool,
    forbidden: Option<StopReason>,
}

thread_local! {
    static CURRENT: Cell<Option<Scope>> = const { Cell::new(None) };
}

impl Scope {
    /// A scope that did not begin with a retry here: an incoming request, whose sender may be on his n-th attempt and
    /// may have said until when he waits.
    ///
    /// `attempt` is the number that the sender named, `None` where he named none; only a sender who counts is taken to
    /// repeat.
    #[must_use]
    pub fn incoming(attempt: Option<u32>, deadline: Option<Moment>) -> Self {
        let number = attempt.unwrap_or(1).max(1);
        let attempt_of = Attempt { number, max: u32::MAX, overall: number, deadline };
        Self { attempt: attempt_of, repeats: attempt.is_some(), forbidden: None }
    }

    pub(crate) const fn of(attempt: Attempt, repeats: bool) -> Self {
        Self { attempt, repeats, forbidden: None }
    }

    /// The attempt.
    #[must_use]
    pub const fn attempt(&self) -> Attempt {
        self.attempt
    }

    /// Whether somebody further out will try again if this fails.
    #[must_use]
    pub const fn repeats(&self) -> bool {
        self.repeats
    }

    pub(crate) const fn deadline(&self) -> Option<Moment> {
        self.attempt.deadline
    }

    /// Why nobody further out should try again, if a retry inside said so.
    #[must_use]
    pub const fn forbidden(&self) -> Option<StopReason> {
        self.forbidden
    }

    /// Runs `work` inside this scope, and remembers what it forbade.
    pub fn enter<R>(&mut self, work: impl FnOnce() -> R) -> R {
        struct Restore<'a>(&'a mut Scope, Option<Scope>);
        impl Drop for Restore<'_> {
            fn drop(&mut self) {
                if let Some(left) = CURRENT.replace(self.1) {
                    self.0.forbidden = left.forbidden;
                }
            }
        }
        let outer = CURRENT.replace(Some(*self));
        let _restore = Restore(self, outer);
        work()
    }

    /// Runs a future inside this scope; see [`Scoped`].
    pub fn around<F: Future>(self, future: F) -> Scoped<F> {
        Scoped { scope: Some(self), future }
    }
}

/// The scope that this task is in, if it is in one.
#[must_use]
pub fn current() -> Option<Scope> {
    CURRENT.get()
}

/// Tells every retry around this code that a failure is final. What a client does on `redrive-no-retry`.
pub fn forbid_outer_retry(reason: StopReason) {
    if let Some(mut scope) = CURRENT.get() {
        scope.forbidden = Some(reason);
        CURRENT.set(Some(scope));
    }
}

/// Takes the present scope along into a task that is about to be spawned: retries in it then see the retry around.
/// What it forbids stays in that task.
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
    /// A future that is polled inside a scope. Gives its output, and the scope with what was forbidden in it.
    #[derive(Debug)]
    pub struct Scoped<F> {
        scope: Option<Scope>,
        #[pin]
        future: F,
    }
}

impl<F: Future> Future for Scoped<F> {
    type Output = (F::Output, Option<Scope>);

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        let polled = match this.scope {
            Some(scope) => scope.enter(|| this.future.poll(cx)),
            None => this.future.poll(cx),
        };
        polled.map(|output| (output, *this.scope))
    }
}
