//! The implementations.

pub mod memory;
#[cfg(feature = "postgres")]
pub mod postgres;
#[cfg(any(feature = "sqlite", feature = "postgres"))]
mod rows;
#[cfg(any(feature = "sqlite", feature = "postgres"))]
pub(crate) mod shared;
#[cfg(feature = "sqlite")]
pub mod sqlite;
