//! Why it stopped.
//!
//! Every run through a policy ends for one reason, and the reason travels with the result: in the [`Report`]
//! beside a success, and in [`Stopped`] around the caller's own error.

use std::error::Error;
use std::fmt;
use std::time::Duration;

use crate::disposition::Executed;
use crate::names::stop;

/// The one reason for which a run ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum StopReason {
    /// It worked.
    Succeeded,
    /// The classifier said that trying again will not help.
    Permanent,
    /// No classifier knew the error, so it was taken to be permanent.
    Unclassified,
    /// The classifier said that it is not needed any more.
    Discarded,
    /// As many attempts were made as the policy allows; one, inside another retry.
    AttemptsSpent,
    /// The next wait would have ended after the policy's time in all.
    TimeSpent,
    /// The next wait would have ended after the deadline that was handed in.
    Deadline,
    /// The budget had no token for another retry, or it was an overload and there is no budget.
    BudgetSpent,
    /// The breaker is open.
    BreakerOpen,
    /// The other side asked to be left alone for longer than the policy is willing to wait.
    NotBeforeTooFar,
    /// Whoever waits gave up.
    Cancelled,
}

impl StopReason {
    /// All of them, as the docs list them.
    pub const ALL: [StopReason; 11] = [
        Self::Succeeded,
        Self::Permanent,
        Self::Unclassified,
        Self::Discarded,
        Self::AttemptsSpent,
        Self::TimeSpent,
        Self::Deadline,
        Self::BudgetSpent,
        Self::BreakerOpen,
        Self::NotBeforeTooFar,
        Self::Cancelled,
    ];

    /// The word used in logs, metrics and headers.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Succeeded => stop::SUCCEEDED,
            Self::Permanent => stop::PERMANENT,
            Self::Unclassified => stop::UNCLASSIFIED,
            Self::Discarded => stop::DISCARDED,
            Self::AttemptsSpent => stop::ATTEMPTS_SPENT,
            Self::TimeSpent => stop::TIME_SPENT,
            Self::Deadline => stop::DEADLINE,
            Self::BudgetSpent => stop::BUDGET_SPENT,
            Self::BreakerOpen => stop::BREAKER_OPEN,
            Self::NotBeforeTooFar => stop::NOT_BEFORE_TOO_FAR,
            Self::Cancelled => stop::CANCELLED,
        }
    }

    /// Whether it forbids every layer further out to try again as well: the downstream is to be left alone.
    #[must_use]
    pub const fn forbids_outer_retry(self) -> bool {
        matches!(self, Self::BudgetSpent | Self::BreakerOpen | Self::NotBeforeTooFar)
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
    /// Time spent waiting between them.
    pub waited: Duration,
    /// What is known of the effect, where it did not succeed: unknown as soon as one attempt left it unknown.
    pub executed: Executed,
    /// Whether the last attempt was ended by the policy's time-out.
    pub timed_out: bool,
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

/// A run that did not succeed: the caller's own error, and why it ended.
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
    /// The error of the last attempt that returned one. `None` where none did: the breaker was open from the
    /// start, the deadline had passed, or every attempt timed out.
    pub error: Option<E>,
    /// What happened.
    pub report: Report,
}

impl<E> Stopped<E> {
    /// The caller's own error, if an attempt returned one.
    #[must_use]
    pub fn into_error(self) -> Option<E> {
        self.error
    }

    /// The same with another error type.
    #[must_use]
    pub fn map<F>(self, change: impl FnOnce(E) -> F) -> Stopped<F> {
        Stopped { error: self.error.map(change), report: self.report }
    }

    /// Whether whoever gets this may try again: not where the run ended to leave the downstream alone.
    #[must_use]
    pub const fn may_be_retried(&self) -> bool {
        !self.report.reason.forbids_outer_retry()
    }
}

/// Any error, as one that is an [`Error`]: what [`Stopped::boxed`] holds.
#[derive(Debug)]
pub struct Boxed(Box<dyn Error + Send + Sync>);

impl fmt::Display for Boxed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl Error for Boxed {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.0.source()
    }
}

impl<E: Into<Box<dyn Error + Send + Sync>>> Stopped<E> {
    /// The same around an error that is an [`Error`], for those that are not: `anyhow::Error`, boxes,
    /// strings. So that `?` works where the caller returns one of them.
    ///
    /// ```
    /// # fn f(stopped: redrive_core::Stopped<String>) -> Result<(), Box<dyn std::error::Error>> {
    /// Err(stopped).map_err(redrive_core::Stopped::boxed)?
    /// # }
    /// ```
    #[must_use]
    pub fn boxed(self) -> Stopped<Boxed> {
        self.map(|error| Boxed(error.into()))
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
        // Not the error itself, which is printed already: a printer of chains would print it twice.
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
