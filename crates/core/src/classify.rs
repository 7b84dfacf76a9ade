//! From an error to a disposition.
//!
//! A classifier is a function of the error. What it returns decides two things at the type level:
//!
//! | it returns | an error it does not know | the call's output |
//! |---|---|---|
//! | [`Fault`] | cannot happen: it knows all | `T` |
//! | `Option<Fault>` | `None`: the next classifier is asked, and after the last it is `unclassified` | `T` |
//! | [`Disposition`] | cannot happen | `Option<T>`: `None` where it said [`Discard`](Disposition::Discard) |
//! | `Option<Disposition>` | `None`, as above | `Option<T>` |
//!
//! So whoever cannot discard never has to unwrap, and whoever can cannot forget to look. An error that nobody
//! knows is permanent, and is reported as `unclassified` so that it can be found.
//!
//! ```
//! use redrive_core::{Classify, Fault, classify};
//! use std::io;
//!
//! // First that knows, decides.
//! let mine = |error: &io::Error| match error.kind() {
//!     io::ErrorKind::AddrInUse => Some(Fault::transient().not_executed()),
//!     _ => None,
//! };
//! let classifier = mine.or(classify::io);
//! assert!(classifier.classify(&io::ErrorKind::AddrInUse.into()).unwrap().is_transient());
//! assert!(classifier.classify(&io::ErrorKind::TimedOut.into()).unwrap().is_transient());
//! ```

use crate::disposition::{Disposition, Fault};

mod io;
mod sqlstate;

pub use io::io;
pub use sqlstate::sqlstate;

/// Turns an error into an answer. Implemented by every `Fn(&E) -> impl Answer`.
#[diagnostic::on_unimplemented(
    message = "`{Self}` does not classify `{E}`",
    label = "not a classifier of `{E}`",
    note = "a classifier is a function of a reference to the error that returns a `Fault` or a `Disposition`, or an `Option` of one; write the type of a closure's argument: `|error: &{E}| …`"
)]
pub trait Classify<E: ?Sized> {
    /// What it can say; see the table at the top of this module.
    type Answer: Answer;

    /// Says what this error means for the attempt.
    fn classify(&self, error: &E) -> Self::Answer;

    /// Asks `next` about whatever this one does not know.
    fn or<N>(self, next: N) -> Or<Self, N>
    where
        Self: Sized,
        N: Classify<E, Answer = Self::Answer>,
    {
        Or { first: self, next }
    }
}

impl<E: ?Sized, F, A> Classify<E> for F
where
    F: Fn(&E) -> A,
    A: Answer,
{
    type Answer = A;

    fn classify(&self, error: &E) -> A {
        self(error)
    }
}

/// What a call gives whose values are `T`, whose errors are `E`, and whose classifier is `C`.
pub type Output<C, T, E> = <<C as Classify<E>>::Answer as Answer>::Output<T>;

/// Two classifiers, asked in order.
#[derive(Debug, Clone, Copy)]
pub struct Or<A, B> {
    first: A,
    next: B,
}

impl<E: ?Sized, A, B> Classify<E> for Or<A, B>
where
    A: Classify<E>,
    B: Classify<E, Answer = A::Answer>,
{
    type Answer = A::Answer;

    fn classify(&self, error: &E) -> Self::Answer {
        self.first.classify(error).or_else(|| self.next.classify(error))
    }
}

/// What a classifier may return: a [`Fault`] or a [`Disposition`], each for sure or as an `Option`.
#[diagnostic::on_unimplemented(
    message = "a classifier cannot answer with `{Self}`",
    label = "not a `Fault`, a `Disposition`, or an `Option` of one",
    note = "to say only whether to retry, use `.retry_if(|error| …)`"
)]
pub trait Answer: sealed::Sealed {
    /// What a successful call gives: `T`, or `Option<T>` where the answer can be to discard.
    type Output<T>;

    /// The output of an attempt that worked.
    fn worked<T>(value: T) -> Self::Output<T>;

    /// The output of an attempt that was discarded; `None` where that cannot be said.
    fn discarded<T>() -> Option<Self::Output<T>>;

    /// The disposition, or `None` where the error is not known.
    fn disposition(self) -> Option<Disposition>;

    /// This answer, or the other one where this does not know.
    #[must_use]
    fn or_else(self, other: impl FnOnce() -> Self) -> Self;
}

impl Answer for Fault {
    type Output<T> = T;

    fn worked<T>(value: T) -> T {
        value
    }

    fn discarded<T>() -> Option<T> {
        None
    }

    fn disposition(self) -> Option<Disposition> {
        Some(self.into())
    }

    fn or_else(self, _: impl FnOnce() -> Self) -> Self {
        self
    }
}

impl Answer for Disposition {
    type Output<T> = Option<T>;

    fn worked<T>(value: T) -> Option<T> {
        Some(value)
    }

    fn discarded<T>() -> Option<Option<T>> {
        Some(None)
    }

    fn disposition(self) -> Option<Disposition> {
        Some(self)
    }

    fn or_else(self, _: impl FnOnce() -> Self) -> Self {
        self
    }
}

impl<A: Answer> Answer for Option<A> {
    type Output<T> = A::Output<T>;

    fn worked<T>(value: T) -> A::Output<T> {
        A::worked(value)
    }

    fn discarded<T>() -> Option<A::Output<T>> {
        A::discarded()
    }

    fn disposition(self) -> Option<Disposition> {
        self.and_then(A::disposition)
    }

    fn or_else(self, other: impl FnOnce() -> Self) -> Self {
        self.or_else(other)
    }
}

mod sealed {
    use crate::disposition::{Disposition, Fault};

    pub trait Sealed {}
    impl Sealed for Fault {}
    impl Sealed for Disposition {}
    impl<A: Sealed> Sealed for Option<A> {}
}

/// The classifier that knows nothing: every error is `unclassified`, hence permanent.
///
/// The default of every door, so that nothing is repeated that nobody said was safe to repeat.
#[must_use]
pub fn unknown<E: ?Sized>(_: &E) -> Option<Fault> {
    None
}

/// The classifier that asks whether an error may pass, and knows no more of it than that. What the doors'
/// `retry_if` is made of.
#[derive(Debug, Clone, Copy)]
pub struct If<F>(pub F);

impl<E: ?Sized, F: Fn(&E) -> bool> Classify<E> for If<F> {
    type Answer = Fault;

    fn classify(&self, error: &E) -> Fault {
        if (self.0)(error) { Fault::transient() } else { Fault::permanent() }
    }
}

/// The classifier that calls every error transient, with an unknown effect. For calls that are idempotent and
/// whose errors are all alike.
#[must_use]
pub fn all<E: ?Sized>(_: &E) -> Fault {
    Fault::transient()
}
