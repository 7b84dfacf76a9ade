//! What an attempt can know of itself.

use std::time::{Duration, Instant};

use redrive_core::Moment;

use crate::clock::{clock, instant};
use crate::scope;

/// One attempt, as seen from inside the call.
///
/// Handed to closures and loops that ask for it, and found by [`Attempt::current`] at any depth below them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Attempt {
    pub(crate) number: u32,
    pub(crate) max: u32,
    /// The number that the outermost retry of this task counts.
    pub(crate) overall: u32,
    pub(crate) deadline: Option<Moment>,
}

impl Attempt {
    /// The attempt that is running in this task, if one is.
    ///
    /// ```
    /// use redrive_retry::{Attempt, Policy, Retry};
    ///
    /// async fn deep_down() -> Result<u32, std::io::Error> {
    ///     Ok(Attempt::current().map_or(0, |attempt| attempt.number()))
    /// }
    /// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
    /// assert_eq!(deep_down.retry(&Policy::default()).await.unwrap(), 1);
    /// assert_eq!(deep_down().await.unwrap(), 0);
    /// # });
    /// ```
    #[must_use]
    pub fn current() -> Option<Self> {
        scope::current().map(|scope| scope.attempt())
    }

    /// Which attempt, from 1.
    #[must_use]
    pub const fn number(&self) -> u32 {
        self.number
    }

    /// Which attempt the outermost retry of this task is on: what is sent along as `redrive-attempt`.
    ///
    /// The same as [`number`](Self::number), except inside another retry, where this call is made once and
    /// the other one counts.
    #[must_use]
    pub const fn overall(&self) -> u32 {
        self.overall
    }

    /// How many there may be.
    #[must_use]
    pub const fn max(&self) -> u32 {
        self.max
    }

    /// Whether an earlier one failed.
    #[must_use]
    pub const fn is_retry(&self) -> bool {
        self.number > 1
    }

    /// When it has to be over: the earliest of the policy's limits and the deadlines handed in.
    #[must_use]
    pub fn deadline(&self) -> Option<Instant> {
        self.deadline.map(instant)
    }

    /// How much time is left, where there is a limit.
    #[must_use]
    pub fn remaining(&self) -> Option<Duration> {
        self.deadline.map(|deadline| deadline.since(clock()))
    }
}
