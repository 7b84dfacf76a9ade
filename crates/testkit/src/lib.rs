//! What the tests of Redrive share: things that fail on request, and what every store promises.
//!
//! Never a dependency of anything that ships.

pub mod conformance;
#[cfg(unix)]
pub mod crash;
#[cfg(unix)]
pub mod disk;
pub mod scripted;

pub use scripted::{Reply, Scripted};
