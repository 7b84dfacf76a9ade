//! What an attempt needs before it starts: breaker, limit, budget and rate of a queue, for sources outside the scheduler.

use super::attempt_end::{EndedAttempt, report};
use super::dispatch::{Passes, admit};
use super::queue::QueuePlan;
use crate::event::Mode;
use crate::moment::Moment;

/// The permits of one attempt. Dropping them without a report releases them.
#[derive(Debug)]
pub struct AttemptPermits(Passes);

impl AttemptPermits {
    /// Asks rate, breaker, limit and budget, as the scheduler does before it dispatches.
    ///
    /// # Errors
    /// With the moment at which to ask again.
    pub fn acquire(plan: &QueuePlan, mode: Mode, now: Moment) -> Result<Self, Moment> {
        admit(plan, mode, now).map(Self).map_err(|closed| closed.until)
    }

    /// Reports how the attempt ended to breaker and limit.
    pub fn report(self, ended: &EndedAttempt, now: Moment) {
        report(self.0, false, ended, now);
    }
}
