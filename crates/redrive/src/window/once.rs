//! Claim, effect and commit in one call.

use std::future::Future;

use redrive_core::disposition::Again;
use redrive_core::{Executed, Fault, Moment};
use redrive_store::window::{ClaimError, CommitError};

use super::{Claim, Ticket, Window};
use crate::engine::Failure;

/// What became of an effect that is to happen once.
#[derive(Debug)]
pub enum Once<T> {
    /// It happened now, and that is written down.
    Done(T),
    /// It happened now, and that could not be written down: it may happen again.
    Unmarked {
        /// What it gave.
        value: T,
        /// Why.
        error: CommitError,
    },
    /// It had happened before.
    Seen {
        /// When that was committed.
        since: Moment,
    },
    /// Somebody is at it.
    Busy {
        /// When their claim runs out, if it is not settled before.
        until: Moment,
    },
}

impl<T> Once<T> {
    pub(super) fn marked(value: T, committed: Result<(), CommitError>) -> Self {
        match committed {
            Ok(()) => Self::Done(value),
            Err(error) => Self::Unmarked { value, error },
        }
    }
}

/// Why an effect did not happen, or may not have.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OnceError {
    /// Nothing could be said of the id. The effect was not tried.
    #[error(transparent)]
    Claim(#[from] ClaimError),
    /// The effect failed.
    #[error("{}", .0.cause().message)]
    Effect(Failure),
}

impl Window {
    /// Runs an effect if nobody has, and commits it. The effect is not begun where the id is seen or busy.
    ///
    /// Where it fails and the failure says that nothing was executed ([`Failure::not_executed`]), the claim is given
    /// back, and the next delivery may try at once. Every other failure leaves open whether it happened, so the claim
    /// stays until it runs out, as it does where this future is dropped.
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
    /// Where nothing can be said of the id, or the effect failed.
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

/// Gives the claim back where nothing was executed.
pub(super) fn failed(ticket: Ticket, failure: Failure) -> OnceError {
    let executed = match failure.fault() {
        Some(Fault::Retry(Again { executed, .. }) | Fault::Permanent(executed)) => executed,
        None => Executed::Unknown,
    };
    if executed == Executed::No {
        ticket.release();
    }
    OnceError::Effect(failure)
}
