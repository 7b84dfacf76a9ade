//! What an attempt knows about itself.

use std::time::{Duration, Instant};

use redrive_core::Moment;

use crate::clock::{clock, instant};
use crate::scope;

/// One attempt, as seen from inside the call.
///
/// Passed to closures and loops that take it, and available at any depth below through [`Attempt::current`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Attempt {
    pub(crate) number: u32,
    pub(crate) max: u32,
    /// The number that the outermost retry of this task counts.
    pub(crate) overall: u32,
    pub(crate) deadline: Option<Moment>,
}

impl Attempt {
    /// The attempt that is running in this task, if any.
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

    /// The number of the outermost retry's attempt in this task, sent as `redrive-attempt`.
    ///
    /// The same as [`number`](Self::number), except inside another retry, where this call makes a single attempt and
    /// the outer one counts.
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

    /// The remaining time, if there is a limit.
    #[must_use]
    pub fn remaining(&self) -> Option<Duration> {
        self.deadline.map(|deadline| deadline.since(clock()))
    }
}
