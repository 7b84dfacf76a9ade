//! Why a run stopped.
//!
//! Every run through a policy ends for one reason. The [`Report`] beside a success carries it, and so does
//! [`Stopped`] around the caller's own error.

use std::error::Error;
use std::fmt;
use std::time::Duration;

use crate::disposition::Executed;
use crate::names::stop;

/// The one reason why a run ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum StopReason {
    /// It worked.
    Succeeded,
    /// The classifier reported that another attempt will not help.
    Permanent,
    /// No classifier knew the error, so it counts as permanent.
    Unclassified,
    /// The classifier dropped it as not needed.
    Dropped,
    /// The run used all attempts that the policy allows; inside another retry, that is one.
    AttemptsSpent,
    /// The next wait would have ended after the policy's total time.
    TimeSpent,
    /// The next wait would have ended after the caller's deadline.
    Deadline,
    /// The budget had no token for another retry, or the fault was an overload and there is no budget.
    BudgetSpent,
    /// The breaker is open.
    BreakerOpen,
    /// The downstream asked for a longer wait than the policy allows.
    NotBeforeTooFar,
    /// The caller cancelled.
    Cancelled,
    /// Nothing was sent: the call was made inside the body of a transaction, which may run again or never commit.
    /// Publish an event in the transaction instead (the outbox), or call after the commit.
    InTransaction,
}

impl StopReason {
    /// All reasons, in the order of the docs.
    pub const ALL: [StopReason; 12] = [
        Self::Succeeded,
        Self::Permanent,
        Self::Unclassified,
        Self::Dropped,
        Self::AttemptsSpent,
        Self::TimeSpent,
        Self::Deadline,
        Self::BudgetSpent,
        Self::BreakerOpen,
        Self::NotBeforeTooFar,
        Self::Cancelled,
        Self::InTransaction,
    ];

    /// The word used in logs, metrics and headers.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Succeeded => stop::SUCCEEDED,
            Self::Permanent => stop::PERMANENT,
            Self::Unclassified => stop::UNCLASSIFIED,
            Self::Dropped => stop::DROPPED,
            Self::AttemptsSpent => stop::ATTEMPTS_SPENT,
            Self::TimeSpent => stop::TIME_SPENT,
            Self::Deadline => stop::DEADLINE,
            Self::BudgetSpent => stop::BUDGET_SPENT,
            Self::BreakerOpen => stop::BREAKER_OPEN,
            Self::NotBeforeTooFar => stop::NOT_BEFORE_TOO_FAR,
            Self::Cancelled => stop::CANCELLED,
            Self::InTransaction => stop::IN_TRANSACTION,
        }
    }

    /// Whether outer layers must not retry either: the downstream needs a pause, or the same would be refused again.
    #[must_use]
    pub const fn forbids_outer_retry(self) -> bool {
        matches!(self, Self::BudgetSpent | Self::BreakerOpen | Self::NotBeforeTooFar | Self::InTransaction)
    }
}

impl fmt::Display for StopReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// What happened in a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct Report {
    /// Why it ended.
    pub reason: StopReason,
    /// Attempts that were started.
    pub attempts: u32,
    /// The time spent waiting between attempts.
    pub waited: Duration,
    /// Whether the effect happened, if the run did not succeed: unknown as soon as one attempt left it
    /// unknown.
    pub executed: Executed,
    /// Whether the policy's time-out ended the last attempt.
    pub timed_out: bool,
}

impl Report {
    /// The report of a call that was refused before its first attempt.
    #[must_use]
    pub const fn not_started(reason: StopReason) -> Self {
        Self { reason, attempts: 0, waited: Duration::ZERO, executed: Executed::No, timed_out: false }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { reason, attempts, waited, .. } = self;
        let plural = if *attempts == 1 { "" } else { "s" };
        write!(f, "{reason} after {attempts} attempt{plural}")?;
        match waited.as_millis() {
            0 => Ok(()),
            millis => write!(f, " and {millis} ms of waiting"),
        }
    }
}

/// A run that did not succeed: the caller's own error, and the reason why the run ended.
///
/// ```
/// # fn inspect(stopped: redrive_core::Stopped<std::io::Error>) {
/// use redrive_core::StopReason;
///
/// match stopped.report.reason {
///     StopReason::BudgetSpent => eprintln!("they have trouble enough"),
///     reason => eprintln!("{reason}: {:?}", stopped.error),
/// }
/// # }
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stopped<E> {
    /// The error of the last attempt that returned one. `None` if no attempt did: the breaker was open from
    /// the start, the deadline had passed, or every attempt timed out.
    pub error: Option<E>,
    /// What happened in the run.
    pub report: Report,
}

impl<E> Stopped<E> {
    /// The caller's own error, if an attempt returned one.
    #[must_use]
    pub fn into_error(self) -> Option<E> {
        self.error
    }

    /// The same with the error converted.
    #[must_use]
    pub fn map<F>(self, change: impl FnOnce(E) -> F) -> Stopped<F> {
        Stopped { error: self.error.map(change), report: self.report }
    }

    /// Whether the caller may retry: not if the run ended to give the downstream a pause.
    #[must_use]
    pub const fn may_be_retried(&self) -> bool {
        !self.report.reason.forbids_outer_retry()
    }
}

/// Any error, wrapped as an [`Error`]; used by [`Stopped::boxed`].
#[derive(Debug)]
pub struct BoxedError(Box<dyn Error + Send + Sync>);

impl fmt::Display for BoxedError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl Error for BoxedError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.0.source()
    }
}

impl<E: Into<Box<dyn Error + Send + Sync>>> Stopped<E> {
    /// The same with the error wrapped as an [`Error`], for error types that are not one: `anyhow::Error`,
    /// boxes, strings. With it `?` works where the caller returns one of them.
    ///
    /// ```
    /// # fn f(stopped: redrive_core::Stopped<String>) -> Result<(), Box<dyn std::error::Error>> {
    /// Err(stopped).map_err(redrive_core::Stopped::boxed)?
    /// # }
    /// ```
    #[must_use]
    pub fn boxed(self) -> Stopped<BoxedError> {
        self.map(|error| BoxedError(error.into()))
    }
}

impl<E: fmt::Display> fmt::Display for Stopped<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { error, report } = self;
        match error {
            _ if report.timed_out => write!(f, "{report}: the last attempt timed out"),
            Some(error) => write!(f, "{report}: {error}"),
            None => write!(f, "{report}"),
        }
    }
}

impl<E: Error + 'static> Error for Stopped<E> {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        // The source and not the error itself, which `Display` has printed already.
        self.error.as_ref().and_then(Error::source)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_printer_of_chains_prints_the_error_once() {
        let policy = crate::Policy::default();
        let report = crate::Run::new(&policy).report(StopReason::Permanent);
        let refused = std::io::Error::other("refused");
        let stopped = Stopped { error: Some(refused), report };
        let mut printed = stopped.to_string();
        let mut cause = stopped.source();
        while let Some(error) = cause {
            printed = format!("{printed}: {error}");
            cause = error.source();
        }
        assert_eq!(printed.matches("refused").count(), 1, "{printed}");
    }
}
