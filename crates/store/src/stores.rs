//! The implementations.

pub mod memory;
#[cfg(feature = "sqlite")]
pub mod sqlite;
