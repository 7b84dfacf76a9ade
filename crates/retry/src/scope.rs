//! How one retry knows that it runs inside another.
//!
//! While an attempt is polled (or, in blocking code, called), a thread-local names it; when the poll returns,
//! the name is taken away again. So the scope follows the task from thread to thread, and what runs beside it
//! does not see it.
//!
//! Four things go through it:
//!
//! - **inwards, that somebody repeats**: a retry inside an attempt of another makes one attempt;
//! - **inwards, the time that is left**: the earliest deadline holds;
//! - **outwards, "leave it alone"**: when a retry inside ends because the budget is spent, the breaker is
//!   open or the other side asked for too long a wait, a failure of the attempt around it is final, whatever
//!   its classifier says. Repeating it would call the same downstream again.
//! - **outwards, "not before"**: a `Retry-After` that a retry inside was given, and that the error on its way
//!   out may have lost, is a floor for the wait of the retry around it.
//!
//! A task that is spawned inside an attempt is a task of its own and sees nothing, unless its future is
//! wrapped in [`carry`]. The other way round, a runtime that is driven inside an attempt (`block_on` in
//! blocking code, a `LocalSet`) polls its other tasks on this thread, and they see the scope as if they were
//! part of the attempt.

use std::cell::Cell;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use pin_project_lite::pin_project;
use redrive_core::{Moment, StopReason};

use crate::attempt::Attempt;

/// An attempt under way, as the retries inside it see it.
///
/// ```
/// use redrive_retry::{Policy, Retry, classify};
/// use redrive_retry::scope::{self, Scope};
///
/// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
/// // A sender is on its second attempt and will make the others: inside, one is made.
/// let down = || async { Err::<(), _>("down") };
/// let policy = Policy::default();
/// let request = async {
///     assert_eq!(scope::current().unwrap().attempt().number(), 2);
///     down.retry(&policy).classify(classify::all).await.unwrap_err().report.attempts
/// };
/// let (attempts, _scope) = Scope::incoming(Some(2), None).around(request).await;
/// assert_eq!(attempts, 1);
/// # });
/// ```
#[derive(Debug, Clone, Copy)]
pub struct Scope {
    attempt: Attempt,
    repeats: bool,
    /// Which budget pays when it repeats; zero where none does.
    payer: usize,
    plea: Option<Plea>,
}

/// What a retry inside an attempt asks of those around it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Plea {
    /// Do not try again.
    LeaveAlone(StopReason),
    /// Do not try again before this moment.
    NotBefore(Moment),
}

impl Plea {
    /// Why nobody should try again, if nobody should.
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
/// Not one cell with a [`Scope`] in it: an attempt is entered right after it was written down, and a
/// processor that is asked to read in one piece what it has just written in several waits until all of them
/// have arrived. Copying a scope in and out took longer than the rest of the call.
struct Current {
    inside: Cell<bool>,
    number: Cell<u32>,
    max: Cell<u32>,
    overall: Cell<u32>,
    deadline: Cell<Option<Moment>>,
    repeats: Cell<bool>,
    payer: Cell<usize>,
    plea: Cell<Option<Plea>>,
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
            plea: Cell::new(None),
        }
    }

    #[inline]
    fn get(&self) -> Option<Scope> {
        if !self.inside.get() {
            return None;
        }
        let (number, max, overall) = (self.number.get(), self.max.get(), self.overall.get());
        let attempt = Attempt { number, max, overall, deadline: self.deadline.get() };
        Some(Scope { attempt, repeats: self.repeats.get(), payer: self.payer.get(), plea: self.plea.get() })
    }

    fn set(&self, scope: Scope) {
        let Scope { attempt: Attempt { number, max, overall, deadline }, repeats, payer, plea } = scope;
        self.inside.set(true);
        self.repeats.set(repeats);
        self.payer.set(payer);
        self.plea.set(plea);
        self.count(number, max, overall, deadline);
    }

    /// A call of its own, so that the numbers come in registers: inlined, the compiler copies two of them at
    /// once.
    #[inline(never)]
    fn count(&self, number: u32, max: u32, overall: u32, deadline: Option<Moment>) {
        self.number.set(number);
        self.max.set(max);
        self.overall.set(overall);
        self.deadline.set(deadline);
    }
}

impl Scope {
    /// A scope that did not begin with a retry here: an incoming request, whose sender may be on its n-th
    /// attempt and may have said until when it waits.
    ///
    /// `attempt` is the number that the sender named, `None` where it named none; only a sender who counts is
    /// taken to repeat.
    #[must_use]
    pub fn incoming(attempt: Option<u32>, deadline: Option<Moment>) -> Self {
        let number = attempt.unwrap_or(1).max(1);
        let attempt_of = Attempt { number, max: u32::MAX, overall: number, deadline };
        Self { attempt: attempt_of, repeats: attempt.is_some(), payer: 0, plea: None }
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

    pub(crate) const fn payer(&self) -> usize {
        self.payer
    }

    pub(crate) const fn deadline(&self) -> Option<Moment> {
        self.attempt.deadline
    }

    /// Why nobody further out should try again, if a retry inside said so.
    #[must_use]
    pub fn forbidden(&self) -> Option<StopReason> {
        self.plea.and_then(Plea::reason)
    }

    /// Before when nobody further out should try again, if a retry inside was told so.
    #[must_use]
    pub const fn not_before(&self) -> Option<Moment> {
        match self.plea {
            Some(Plea::NotBefore(at)) => Some(at),
            _ => None,
        }
    }

    /// Runs `work` inside this scope, and remembers what it forbade.
    pub fn enter<R>(&mut self, work: impl FnOnce() -> R) -> R {
        let mut outer = None;
        let _inside = enter(self.attempt, self.repeats, self.payer, &mut self.plea, &mut outer);
        work()
    }

    /// Runs a future inside this scope; see [`Scoped`].
    pub fn around<F: Future>(self, future: F) -> Scoped<F> {
        Scoped { scope: Some(self), future }
    }
}

/// Makes this attempt the thread's scope, until what is returned is dropped. Then `plea` says what was asked.
///
/// The scope around, seldom there, is kept in `outer`: a place of the caller's, so that none of it is written
/// where there is none.
#[inline(always)]
pub(crate) fn enter<'a>(
    attempt: Attempt,
    repeats: bool,
    payer: usize,
    plea: &'a mut Option<Plea>,
    outer: &'a mut Option<Scope>,
) -> Inside<'a> {
    CURRENT.with(|current| {
        if current.inside.get() {
            keep(outer);
        }
        let Attempt { number, max, overall, deadline } = attempt;
        current.inside.set(true);
        current.repeats.set(repeats);
        current.payer.set(payer);
        current.plea.set(None);
        current.count(number, max, overall, deadline);
    });
    if plea.is_some() {
        hand_in(plea);
    }
    Inside { outer, plea }
}

/// Whoever holds this is inside a scope.
#[must_use = "the scope is left when this is dropped"]
pub(crate) struct Inside<'a> {
    outer: &'a mut Option<Scope>,
    plea: &'a mut Option<Plea>,
}

impl Drop for Inside<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        CURRENT.with(|current| {
            if current.plea.get().is_some() {
                *self.plea = current.plea.get();
            }
            current.inside.set(false);
        });
        if self.outer.is_some() {
            back_to(self.outer);
        }
    }
}

/// Says again what was said while the attempt was last polled.
#[inline(never)]
fn hand_in(plea: &Option<Plea>) {
    CURRENT.with(|current| current.plea.set(*plea));
}

#[inline(never)]
fn keep(outer: &mut Option<Scope>) {
    *outer = current();
}

#[inline(never)]
fn back_to(outer: &mut Option<Scope>) {
    if let Some(outer) = outer.take() {
        CURRENT.with(|current| current.set(outer));
    }
}

/// The scope that this task is in, if it is in one.
#[must_use]
#[inline]
pub fn current() -> Option<Scope> {
    CURRENT.with(Current::get)
}

/// Tells every retry around this code that a failure is final. What a client does on `redrive-no-retry`.
pub fn forbid_outer_retry(reason: StopReason) {
    // Outside of any scope nobody reads it, and whoever enters one overwrites it.
    CURRENT.with(|current| current.plea.set(Some(Plea::LeaveAlone(reason))));
}

/// Tells every retry around this code that the other side asked not to be called before this moment. The
/// latest of several holds, and none where a failure is final anyway.
pub fn ask_not_before(at: Moment) {
    CURRENT.with(|current| {
        let plea = match current.plea.get() {
            Some(Plea::LeaveAlone(_)) => return,
            Some(Plea::NotBefore(other)) => Plea::NotBefore(at.max(other)),
            None => Plea::NotBefore(at),
        };
        current.plea.set(Some(plea));
    });
}

/// Takes the present scope along into a task that is about to be spawned: retries in it then see the retry
/// around. What it forbids stays in that task.
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
