//! Claim, effect and commit in one call.

use std::future::Future;

use redrive_core::disposition::RetryAdvice;
use redrive_core::{Executed, Fault, Moment};
use redrive_store::window::{WindowClaimError, WindowCommitError};

use super::{Claim, Ticket, Window};
use crate::engine::Failure;

/// The result of an effect that must happen once.
#[derive(Debug)]
pub enum Once<T> {
    /// It happened now, and the commit is durable.
    Done(T),
    /// It happened now, but the commit failed: it may happen again.
    Unmarked {
        /// The effect's value.
        value: T,
        /// Why the commit failed.
        error: WindowCommitError,
    },
    /// It had happened before.
    Seen {
        /// When that was committed.
        since: Moment,
    },
    /// Another consumer is working on it.
    Busy {
        /// When that claim runs out, if it is not settled before.
        until: Moment,
    },
}

impl<T> Once<T> {
    pub(super) fn marked(value: T, committed: Result<(), WindowCommitError>) -> Self {
        match committed {
            Ok(()) => Self::Done(value),
            Err(error) => Self::Unmarked { value, error },
        }
    }
}

/// Why an effect did not happen, or may not have happened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OnceError {
    /// The window could not decide about the id. The effect was not tried.
    #[error(transparent)]
    Claim(#[from] WindowClaimError),
    /// The effect failed.
    #[error("{}", .0.cause().message)]
    Effect(Failure),
}

impl Window {
    /// Runs an effect unless it has happened, and commits it. The effect does not begin if the id is seen or busy.
    ///
    /// If it fails and the failure says that nothing was executed ([`Failure::not_executed`]), the claim is released,
    /// and the next delivery may try at once. After every other failure the outcome is unknown, so the claim stays
    /// until it runs out, as it does if this future is dropped.
    ///
    /// ```
    /// use redrive::window::{Once, Window};
    /// use redrive::Failure;
    ///
    /// # async fn charge() -> Result<u32, std::io::Error> { Ok(17) }
    /// # async fn run() -> Result<(), Box<dyn std::error::Error>> {
    /// let window = Window::open("memory:", Default::default()).await?;
    /// let once = window.once("order-17", async { Ok(charge().await.map_err(Failure::transient)?) }).await?;
    /// assert!(matches!(once, Once::Done(17)));
    /// let once = window.once("order-17", async { Ok(charge().await.map_err(Failure::transient)?) }).await?;
    /// assert!(matches!(once, Once::Seen { .. }));
    /// # Ok(())
    /// # }
    /// # tokio::runtime::Runtime::new().unwrap().block_on(run()).unwrap();
    /// ```
    ///
    /// # Errors
    /// If the window cannot decide about the id, or the effect failed.
    pub async fn once<T>(
        &self,
        id: impl AsRef<[u8]>,
        effect: impl Future<Output = Result<T, Failure>>,
    ) -> Result<Once<T>, OnceError> {
        match self.ask("", id.as_ref())? {
            Claim::Seen { since } => Ok(Once::Seen { since }),
            Claim::Busy { until } => Ok(Once::Busy { until }),
            Claim::First(ticket) => {
                let value = match effect.await {
                    Ok(value) => value,
                    Err(failure) => return Err(failed(ticket, failure)),
                };
                Ok(Once::marked(value, ticket.commit().await))
            }
        }
    }
}

/// Releases the claim if nothing was executed.
pub(super) fn failed(ticket: Ticket, failure: Failure) -> OnceError {
    let executed = match failure.fault() {
        Some(Fault::Retry(RetryAdvice { executed, .. }) | Fault::Permanent(executed)) => executed,
        None => Executed::Unknown,
    };
    if executed == Executed::No {
        ticket.release();
    }
    OnceError::Effect(failure)
}
