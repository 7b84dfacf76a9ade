//! Telemetry: metrics, logs, traces. Never a payload, never a secret.

pub mod access_log;

pub mod log;

pub mod metrics;

pub(crate) mod openmetrics;

pub mod trace;

pub(crate) mod attempt_feed;

mod queue_gauges;

pub use queue_gauges::Samples;
