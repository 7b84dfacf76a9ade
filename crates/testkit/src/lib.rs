//! What the tests of Redrive share: things that fail on request, what every store promises, and a simulation
//! of it all.
//!
//! Never a dependency of anything that ships.

pub mod conformance;
#[cfg(unix)]
pub mod crash;
#[cfg(unix)]
pub mod disk;
#[cfg(unix)]
pub mod postgres;
pub mod scripted;
pub mod simulation;
pub mod window;

pub use scripted::{Reply, Scripted};
