//! Observers: hear of every attempt, wait and end under a policy.
//!
//! Ready ones are `Tracing` and `Metrics`, behind the features of those names. Your own implements
//! [`Observer`].

pub use redrive_core::observe::*;
#[cfg(any(feature = "tracing", feature = "metrics"))]
pub use redrive_retry::observe::*;
