//! A handler's reply.

use std::error::Error;
use std::time::Duration;

use redrive_core::disposition::{RetryAdvice, RetryClass};
use redrive_core::event::Cause;
use redrive_core::event::bounds::RESULT_BYTES_MAX;
use redrive_core::observe::Outcome;
use redrive_core::{Disposition, Executed, Fault};

use crate::engine::sqlstate::{is_of_another, sqlstate};

/// A handler's reply to an attempt: its disposition, the cause, and a result to keep.
#[derive(Debug, Clone, PartialEq)]
pub struct Reply {
    /// `None`: it failed with an unclassified error, which is permanent.
    pub(crate) disposition: Option<Disposition>,
    pub(crate) cause: Option<Cause>,
    pub(crate) result: Option<Vec<u8>>,
    /// Whether a database ended its transaction because of a conflict with another one.
    pub(crate) is_victim: bool,
    /// Whether the attempt did not begin, and none is charged.
    pub(crate) is_put_off: bool,
}

impl Reply {
    /// The attempt succeeded.
    #[must_use]
    pub const fn ok() -> Self {
        Self::only(Disposition::Ok)
    }

    const fn only(disposition: Disposition) -> Self {
        let disposition = Some(disposition);
        Self { disposition, cause: None, result: None, is_victim: false, is_put_off: false }
    }

    /// The attempt did not begin, for a reason of the process's own: the event waits a little, and no attempt is
    /// charged. A worker that settles a lease with it reports a failed attempt that executed nothing.
    #[must_use]
    pub const fn put_off() -> Self {
        let again = RetryAdvice { class: RetryClass::Transient, not_before: None, executed: Executed::No };
        let disposition = Some(Disposition::Retry(again));
        Self { disposition, cause: None, result: None, is_victim: false, is_put_off: true }
    }

    /// The event is not needed any more.
    #[must_use]
    pub const fn drop() -> Self {
        Self::only(Disposition::Drop)
    }

    /// The attempt succeeded, and later publishers of the same identity get this result. At most 16 KiB; a longer
    /// result is left out.
    #[must_use]
    pub fn with_result(result: impl Into<Vec<u8>>) -> Self {
        let result = result.into();
        let result = (result.len() <= RESULT_BYTES_MAX).then_some(result);
        Self { result, ..Self::ok() }
    }

    /// The disposition as a word: `ok`, `retry`, `permanent`, `drop`, or `unclassified`.
    #[must_use]
    pub fn word(&self) -> &'static str {
        self.disposition.as_ref().map_or(Outcome::Unclassified, |said| Outcome::Classified(*said)).as_str()
    }

    /// The cause of a failure, if it failed.
    #[must_use]
    pub const fn cause(&self) -> Option<&Cause> {
        self.cause.as_ref()
    }

    pub(crate) fn is_ok(&self) -> bool {
        self.disposition == Some(Disposition::Ok)
    }
}

/// Why an attempt failed, and whether another may help.
///
/// `?` makes one from any error, and then it is *unclassified*, hence permanent: only errors that are known to be
/// transient are retried. Say so with [`transient`](Self::transient), or give the queue a classifier
/// ([`handle_with`](crate::engine::QueueBuilder::handle_with)).
///
/// ```
/// use redrive::engine::Failure;
/// use std::time::Duration;
///
/// fn reach() -> Result<(), Failure> {
///     let error = std::io::Error::other("no answer");
///     Err(Failure::transient(error).not_before(Duration::from_secs(2)).code("503"))
/// }
/// assert!(reach().is_err());
/// ```
#[derive(Debug, Clone)]
pub struct Failure {
    fault: Option<Fault>,
    cause: Cause,
    is_victim: bool,
}

impl Failure {
    /// Another attempt may help.
    pub fn transient<E: Error + 'static>(error: E) -> Self {
        Self { fault: Some(Fault::transient()), ..Self::from(error) }
    }

    /// Another attempt will not help.
    pub fn permanent<E: Error + 'static>(error: E) -> Self {
        Self { fault: Some(Fault::permanent()), is_victim: false, ..Self::from(error) }
    }

    /// Another attempt may help; from a text instead of an error.
    pub fn transient_text(text: impl Into<String>) -> Self {
        Self { fault: Some(Fault::transient()), cause: Cause::new("text", text), is_victim: false }
    }

    /// Another attempt will not help; from a text instead of an error.
    pub fn permanent_text(text: impl Into<String>) -> Self {
        Self { fault: Some(Fault::permanent()), cause: Cause::new("text", text), is_victim: false }
    }

    /// An unclassified failure from a boxed error, or from a type that converts into one: `anyhow::Error`, a string.
    /// `?` does the same for typed errors.
    pub fn boxed(error: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        let error = error.into();
        let (kind, code) = ("boxed".to_owned(), sqlstate(&*error));
        let is_victim = is_of_another(code.as_deref());
        Self { fault: None, cause: Cause { kind, code, ..Cause::of(&*error) }, is_victim }
    }

    /// A failure from its parts.
    #[must_use]
    pub const fn new(fault: Fault, cause: Cause) -> Self {
        Self { fault: Some(fault), cause, is_victim: false }
    }

    /// The called service asked for this pause. Makes an unclassified failure a transient one.
    #[must_use]
    pub fn not_before(mut self, wait: Duration) -> Self {
        self.fault = Some(self.fault.unwrap_or(Fault::transient()).not_before(wait));
        self
    }

    /// The effect certainly did not happen.
    #[must_use]
    pub fn not_executed(mut self) -> Self {
        self.fault = self.fault.map(Fault::not_executed);
        self
    }

    /// The code of the called service: an HTTP status, a SQLSTATE.
    #[must_use]
    pub fn code(mut self, code: impl Into<String>) -> Self {
        self.cause = self.cause.code(code);
        self
    }

    /// Its classification; `None` if it is unclassified.
    #[must_use]
    pub const fn fault(&self) -> Option<Fault> {
        self.fault
    }

    /// The cause, as the attempt history keeps it.
    #[must_use]
    pub const fn cause(&self) -> &Cause {
        &self.cause
    }

    /// The kind of error, by which failures are grouped. Default: the name of its type.
    #[must_use]
    pub fn kind(mut self, kind: impl Into<String>) -> Self {
        self.cause.kind = kind.into();
        self
    }
}

impl<E: Error + 'static> From<E> for Failure {
    fn from(error: E) -> Self {
        let cause = Cause { code: sqlstate(&error), ..Cause::of(&error) };
        let is_victim = is_of_another(cause.code.as_deref());
        Self { fault: None, cause, is_victim }
    }
}

impl From<Failure> for Reply {
    fn from(failure: Failure) -> Self {
        let Failure { fault, cause, is_victim } = failure;
        Self { disposition: fault.map(Disposition::from), cause: Some(cause), is_victim, ..Self::ok() }
    }
}

/// What a handler may return: nothing, a [`Reply`], a [`Disposition`], or a `Result` of one of them.
#[diagnostic::on_unimplemented(
    message = "a handler cannot return `{Self}`",
    note = "return `()`, a `Reply`, a `Disposition`, or a `Result` of one of them with an error that `?` turns into a `Failure`"
)]
pub trait IntoReply {
    /// Converts it into a reply.
    fn into_reply(self) -> Reply;
}

impl IntoReply for () {
    fn into_reply(self) -> Reply {
        Reply::ok()
    }
}

impl IntoReply for Reply {
    fn into_reply(self) -> Reply {
        self
    }
}

impl IntoReply for Disposition {
    fn into_reply(self) -> Reply {
        Reply::only(self)
    }
}

impl<T: IntoReply, E: Into<Failure>> IntoReply for Result<T, E> {
    fn into_reply(self) -> Reply {
        self.map_or_else(|error| Reply::from(error.into()), IntoReply::into_reply)
    }
}
