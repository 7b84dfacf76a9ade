//! The imports that most code that retries needs.
//!
//! ```
//! use redrive::prelude::*;
//! ```
//!
//! The types of durable events (`Event`, `Redrive`, `Delivery`, `Failure`) are at the crate's root, behind the feature
//! `engine`.

pub use crate::classify::{self, Classify};
#[cfg(feature = "engine")]
pub use crate::{AfterDead, Delivery, Event, Failure, Redrive, Reply, Transaction};
pub use crate::{
    Attempt, Backoff, Budget, Disposition, Fault, Jitter, Policy, Retry, Start, StopReason, Stopped,
};
