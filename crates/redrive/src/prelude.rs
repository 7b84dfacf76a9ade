//! What most code that retries wants in scope.
//!
//! ```
//! use redrive::prelude::*;
//! ```

pub use crate::classify::{self, Classify};
pub use crate::{
    Attempt, Backoff, Budget, Disposition, Fault, Jitter, Policy, Retry, Start, StopReason, Stopped,
};
