//! What most code that retries wants in scope.
//!
//! ```
//! use redrive::prelude::*;
//! ```
//!
//! What code with durable events names besides (`Event`, `Redrive`, `Delivery`, `Failure`) is at the crate's
//! root, behind the feature `engine`.

pub use crate::classify::{self, Classify};
#[cfg(feature = "engine")]
pub use crate::{AfterDead, Delivery, Event, Failure, Redrive, Reply, Transaction};
pub use crate::{
    Attempt, Backoff, Budget, Disposition, Fault, Jitter, Policy, Retry, Start, StopReason, Stopped,
};
