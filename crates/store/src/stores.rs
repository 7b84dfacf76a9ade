//! The implementations.

pub mod memory;
#[cfg(feature = "sqlite")]
mod shared;
#[cfg(feature = "sqlite")]
pub mod sqlite;
