//! What the outside sees of the process: metrics, logs, traces. Never a payload, never a secret.

pub mod access;

pub mod log;

pub mod metrics;

pub mod trace;

mod sample;

pub use sample::Samples;
