//! The brokers.

pub mod memory;

#[cfg(feature = "kafka")]
pub mod kafka;
