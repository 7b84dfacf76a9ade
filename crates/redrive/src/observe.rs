//! Observers: notified of every attempt, wait and end under a policy.
//!
//! `Tracing` and `Metrics` are ready-made, behind the features of those names. Implement [`Observer`] for your own.

pub use redrive_core::observe::*;
#[cfg(any(feature = "tracing", feature = "metrics"))]
pub use redrive_retry::observe::*;
