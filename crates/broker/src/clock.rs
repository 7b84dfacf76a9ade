//! The time of day, carried on by tokio's monotonic clock.
//!
//! A time of day that is set back or forward while the process runs neither delays nor hastens a retry, and paused time
//! works in tests.

use std::time::SystemTime;

use redrive_core::Moment;
use tokio::time::Instant;

/// A clock whose moments are nanoseconds since the Unix epoch.
#[derive(Debug, Clone, Copy)]
pub(crate) struct WallClock {
    anchor: Moment,
    start: Instant,
}

impl WallClock {
    /// A clock that shows the time of day now.
    pub(crate) fn start() -> Self {
        Self { anchor: SystemTime::now().into(), start: Instant::now() }
    }

    /// The present.
    pub(crate) fn now(&self) -> Moment {
        self.anchor + self.start.elapsed()
    }
}
