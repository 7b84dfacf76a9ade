//! Observers ready to use, behind the feature of the crate that they speak to.
//!
//! An observer hangs on the policy: `Policy::builder().observer(redrive_retry::observe::Tracing)`.

#[cfg(feature = "metrics")]
mod metrics;
#[cfg(feature = "tracing")]
mod tracing;

#[cfg(feature = "metrics")]
pub use metrics::Metrics;
#[cfg(feature = "tracing")]
pub use tracing::Tracing;
