//! From an error to a disposition.
//!
//! A classifier is a function of the error. What it returns decides two things at the type level:
//!
//! | it returns | for an error it does not know | the call's output |
//! |---|---|---|
//! | [`Fault`] | not possible: it knows every error | `T` |
//! | `Option<Fault>` | `None`: the next classifier decides; after the last one the error is `unclassified` | `T` |
//! | [`Disposition`] | not possible | `Option<T>`: `None` if it returned [`Drop`](Disposition::Drop) |
//! | `Option<Disposition>` | `None`, as above | `Option<T>` |
//!
//! A caller whose classifier cannot drop therefore never has to unwrap, and a caller whose classifier can
//! drop cannot forget to check. An error that no classifier knows is permanent, and is reported as
//! `unclassified` so that it can be found.
//!
//! ```
//! use redrive_core::{Classify, Fault, classify};
//! use std::io;
//!
//! // The first classifier that knows the error decides.
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

/// Turns an error into an answer. Implemented by every `Fn(&E) -> impl Classification`.
#[diagnostic::on_unimplemented(
    message = "`{Self}` does not classify `{E}`",
    label = "not a classifier of `{E}`",
    note = "a classifier is a function of a reference to the error that returns a `Fault` or a `Disposition`, or an `Option` of one; write the type of a closure's argument: `|error: &{E}| …`"
)]
pub trait Classify<E: ?Sized> {
    /// The type of its answer; see the table at the top of this module.
    type Classification: Classification;

    /// Returns what this error means for the attempt.
    fn classify(&self, error: &E) -> Self::Classification;

    /// Asks `next` about errors that this classifier does not know.
    fn or<N>(self, next: N) -> OrElse<Self, N>
    where
        Self: Sized,
        N: Classify<E, Classification = Self::Classification>,
    {
        OrElse { first: self, next }
    }
}

impl<E: ?Sized, F, A> Classify<E> for F
where
    F: Fn(&E) -> A,
    A: Classification,
{
    type Classification = A;

    fn classify(&self, error: &E) -> A {
        self(error)
    }
}

/// The output of a call with values of type `T`, errors of type `E` and classifier `C`.
pub type Output<C, T, E> = <<C as Classify<E>>::Classification as Classification>::Output<T>;

/// Two classifiers, asked in order.
#[derive(Debug, Clone, Copy)]
pub struct OrElse<A, B> {
    first: A,
    next: B,
}

impl<E: ?Sized, A, B> Classify<E> for OrElse<A, B>
where
    A: Classify<E>,
    B: Classify<E, Classification = A::Classification>,
{
    type Classification = A::Classification;

    fn classify(&self, error: &E) -> Self::Classification {
        self.first.classify(error).or_else(|| self.next.classify(error))
    }
}

/// The return type of a classifier: a [`Fault`] or a [`Disposition`], or an `Option` of one.
#[diagnostic::on_unimplemented(
    message = "a classifier cannot answer with `{Self}`",
    label = "not a `Fault`, a `Disposition`, or an `Option` of one",
    note = "to say only whether to retry, use `.retry_if(|error| …)`"
)]
pub trait Classification: sealed::Sealed {
    /// The output of a successful call: `T`, or `Option<T>` if the classifier can drop.
    type Output<T>;

    /// The output of a successful attempt.
    fn worked<T>(value: T) -> Self::Output<T>;

    /// The output of a dropped attempt; `None` if this classifier cannot drop.
    fn dropped<T>() -> Option<Self::Output<T>>;

    /// The disposition, or `None` if the classifier does not know the error.
    fn disposition(self) -> Option<Disposition>;

    /// This answer, or `other` if this one does not know the error.
    #[must_use]
    fn or_else(self, other: impl FnOnce() -> Self) -> Self;
}

impl Classification for Fault {
    type Output<T> = T;

    fn worked<T>(value: T) -> T {
        value
    }

    fn dropped<T>() -> Option<T> {
        None
    }

    fn disposition(self) -> Option<Disposition> {
        Some(self.into())
    }

    fn or_else(self, _: impl FnOnce() -> Self) -> Self {
        self
    }
}

impl Classification for Disposition {
    type Output<T> = Option<T>;

    fn worked<T>(value: T) -> Option<T> {
        Some(value)
    }

    fn dropped<T>() -> Option<Option<T>> {
        Some(None)
    }

    fn disposition(self) -> Option<Disposition> {
        Some(self)
    }

    fn or_else(self, _: impl FnOnce() -> Self) -> Self {
        self
    }
}

impl<A: Classification> Classification for Option<A> {
    type Output<T> = A::Output<T>;

    fn worked<T>(value: T) -> A::Output<T> {
        A::worked(value)
    }

    fn dropped<T>() -> Option<A::Output<T>> {
        A::dropped()
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

/// The classifier that knows no error: every error is `unclassified` and therefore permanent.
///
/// It is the default of every entry point, so that Redrive repeats only what a classifier calls safe to
/// repeat.
#[must_use]
pub fn unknown<E: ?Sized>(_: &E) -> Option<Fault> {
    None
}

/// The classifier behind `retry_if`: a predicate decides whether an error is transient, and nothing more is
/// known of it.
#[derive(Debug, Clone, Copy)]
pub struct ClassifyIf<F>(pub F);

impl<E: ?Sized, F: Fn(&E) -> bool> Classify<E> for ClassifyIf<F> {
    type Classification = Fault;

    fn classify(&self, error: &E) -> Fault {
        if (self.0)(error) { Fault::transient() } else { Fault::permanent() }
    }
}

/// The classifier that calls every error transient, with an unknown effect. Use it for idempotent calls whose
/// errors all mean the same.
#[must_use]
pub fn all<E: ?Sized>(_: &E) -> Fault {
    Fault::transient()
}
