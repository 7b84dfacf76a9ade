//! What the tests of Redrive share: things that fail on request.
//!
//! Never a dependency of anything that ships.

pub mod scripted;

pub use scripted::{Reply, Scripted};
