//! The shared test tools of Redrive: services that fail on request, the promises of every store, and a
//! simulation of the whole.
//!
//! It is never a dependency of a crate that ships.

pub mod broker;
pub mod conformance;
#[cfg(unix)]
pub mod crash;
#[cfg(unix)]
pub mod disk;
pub mod exhaustive;
#[cfg(unix)]
pub mod kafka;
#[cfg(unix)]
pub mod postgres;
pub mod scripted;
pub mod sequence;
pub mod simulation;
pub mod window;

pub use scripted::{Reply, Scripted};
