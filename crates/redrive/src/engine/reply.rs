//! What a handler says.

use std::error::Error;
use std::time::Duration;

use redrive_core::event::Cause;
use redrive_core::event::bounds::RESULT_BYTES_MAX;
use redrive_core::{Disposition, Fault};

use super::sqlstate::{is_of_another, sqlstate};

/// What a handler says of an attempt: its disposition, why, and what it leaves behind.
#[derive(Debug, Clone, PartialEq)]
pub struct Reply {
    /// `None`: it failed with an error that nobody classified, which is permanent.
    pub(crate) disposition: Option<Disposition>,
    pub(crate) cause: Option<Cause>,
    pub(crate) result: Option<Vec<u8>>,
    /// Whether a database ended its transaction because of somebody else.
    pub(crate) is_victim: bool,
}

impl Reply {
    /// It worked.
    #[must_use]
    pub const fn ok() -> Self {
        Self { disposition: Some(Disposition::Ok), cause: None, result: None, is_victim: false }
    }

    /// It is not needed any more.
    #[must_use]
    pub const fn discard() -> Self {
        Self { disposition: Some(Disposition::Discard), cause: None, result: None, is_victim: false }
    }

    /// It worked, and this is for whoever publishes the same identity again. At most 16 KiB; what is longer
    /// is left out.
    #[must_use]
    pub fn with_result(result: impl Into<Vec<u8>>) -> Self {
        let result = result.into();
        let result = (result.len() <= RESULT_BYTES_MAX).then_some(result);
        Self { disposition: Some(Disposition::Ok), cause: None, result, is_victim: false }
    }

    pub(crate) fn is_ok(&self) -> bool {
        self.disposition == Some(Disposition::Ok)
    }
}

/// Why an attempt failed, and whether another may help.
///
/// Made by `?` from any error, and then it is *unclassified*, hence permanent: nothing is repeated that nobody
/// said may pass. Say it with [`transient`](Self::transient), or hand the queue a classifier
/// ([`handle_with`](super::QueueBuilder::handle_with)).
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

    /// Another attempt may help; for what is no error, only words.
    pub fn transient_text(text: impl Into<String>) -> Self {
        Self { fault: Some(Fault::transient()), cause: Cause::new("text", text), is_victim: false }
    }

    /// Another attempt will not help; for what is no error, only words.
    pub fn permanent_text(text: impl Into<String>) -> Self {
        Self { fault: Some(Fault::permanent()), cause: Cause::new("text", text), is_victim: false }
    }

    /// An unclassified failure from a boxed error, or from what becomes one: `anyhow::Error`, a string. What `?`
    /// does for errors by their own type.
    pub fn boxed(error: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        let error = error.into();
        let (kind, code) = ("boxed".to_owned(), sqlstate(&*error));
        let is_victim = is_of_another(code.as_deref());
        Self { fault: None, cause: Cause { kind, code, ..Cause::of(&*error) }, is_victim }
    }

    /// What a fault and a cause say.
    #[must_use]
    pub const fn new(fault: Fault, cause: Cause) -> Self {
        Self { fault: Some(fault), cause, is_victim: false }
    }

    /// The other side asked to be left alone for so long. Makes an unclassified failure a transient one.
    #[must_use]
    pub fn not_before(mut self, wait: Duration) -> Self {
        self.fault = Some(self.fault.unwrap_or(Fault::transient()).not_before(wait));
        self
    }

    /// The effect did not happen, and that is certain.
    #[must_use]
    pub fn not_executed(mut self) -> Self {
        self.fault = self.fault.map(Fault::not_executed);
        self
    }

    /// The other side's code: an HTTP status, a SQLSTATE.
    #[must_use]
    pub fn code(mut self, code: impl Into<String>) -> Self {
        self.cause = self.cause.code(code);
        self
    }

    /// What it was classified as; nothing where nobody did.
    #[must_use]
    pub const fn fault(&self) -> Option<Fault> {
        self.fault
    }

    /// What happened, as it is kept in a story.
    #[must_use]
    pub const fn cause(&self) -> &Cause {
        &self.cause
    }

    /// What kind of error this is, so that like ones can be found. Default: the name of its type.
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
        Self { disposition: fault.map(Disposition::from), cause: Some(cause), result: None, is_victim }
    }
}

/// What a handler may return: nothing, a [`Reply`], a [`Disposition`], or a `Result` of one of them.
#[diagnostic::on_unimplemented(
    message = "a handler cannot return `{Self}`",
    note = "return `()`, a `Reply`, a `Disposition`, or a `Result` of one of them with an error that `?` turns into a `Failure`"
)]
pub trait IntoReply {
    /// What it says.
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
        Reply { disposition: Some(self), cause: None, result: None, is_victim: false }
    }
}

impl<T: IntoReply, E: Into<Failure>> IntoReply for Result<T, E> {
    fn into_reply(self) -> Reply {
        self.map_or_else(|error| Reply::from(error.into()), IntoReply::into_reply)
    }
}
