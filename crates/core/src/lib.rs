//! The words and decisions of Redrive.
//!
//! Everything here is a function of its inputs: time is a [`Moment`] that the caller hands in, chance is a
//! [`Dice`] that the caller hands in, and nothing waits, reads or writes. That is what lets one
//! implementation serve async code, blocking code, a tower layer and a simulation, and be tested without a
//! single sleep.
//!
//! The modules are in the order in which a call meets them:
//!
//! 1. a [`Policy`] is built once and checked ([`policy`]),
//! 2. a [`Run`] takes one call through its attempts ([`run`]),
//! 3. a [`Classify`] turns an error into a [`Disposition`] ([`classify`], [`disposition`]),
//! 4. [`backoff`] and [`jitter`] choose the wait, [`budget`] and [`breaker`] may forbid it,
//! 5. a [`Report`] says why it ended ([`report`]), and [`observe`] tells whoever listens.
//!
//! What this crate must not have: async, I/O, a clock, a random source. `cargo xtask tidy` looks.

pub mod moment;

pub mod dice;

pub mod policy;

pub mod run;

pub mod disposition;

pub mod classify;

pub mod backoff;

pub mod jitter;

pub mod budget;

pub mod breaker;

pub mod limit;

pub mod rate;

pub mod event;

pub mod entry;

pub mod scheduler;

pub mod triage;

pub mod window;

pub mod ledger;

pub mod report;

pub mod observe;

pub mod names;

pub mod nodes;

pub mod near;

#[doc(hidden)]
pub mod planted;

#[cfg(feature = "serde")]
pub mod config;
mod sync;

pub use backoff::Backoff;
pub use breaker::Breaker;
pub use budget::Budget;
pub use classify::Classify;
pub use dice::{Dice, Seeded};
pub use disposition::{Disposition, Executed, Fault};
pub use entry::Entry;
pub use event::Event;
pub use jitter::Jitter;
pub use limit::Limit;
pub use moment::{Clock, Moment};
pub use observe::Observer;
pub use policy::{Policy, PolicyBuilder, PolicyError};
pub use rate::Rate;
pub use report::{Report, StopReason, Stopped};
pub use run::{Run, Verdict};
