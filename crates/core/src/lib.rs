//! The shared types of Redrive, and its decisions as pure functions.
//!
//! Everything here is a function of its inputs. The caller passes in the time as a [`Moment`] and randomness
//! as a [`RandomSource`]; nothing in this crate waits, reads or writes. One implementation therefore serves async
//! code, blocking code, a tower layer and a simulation, and its tests need no sleeps.
//!
//! # A call
//!
//! 1. a [`Policy`] is built once and checked ([`policy`]),
//! 2. a [`Run`] takes one call through its attempts ([`run`]),
//! 3. a [`Classify`] turns an error into a [`Disposition`] ([`classify`], [`disposition`]),
//! 4. [`backoff`] and [`jitter`] choose the wait; [`budget`], [`breaker`], [`limit`] and [`rate`] may forbid it,
//! 5. a [`Report`] says why it ended ([`report`]), and [`observe`] passes it to observers.
//!
//! # An event
//!
//! 1. an [`Event`] has an identity, a state and an attempt history ([`mod@event`]),
//! 2. the [`scheduler`] decides which event runs next: inputs and the time in, actions out,
//! 3. [`nodes`] decides which process owns which shard of a store,
//! 4. an attempt ends in a [`Disposition`], and the same [`policy`] plans the retry,
//! 5. [`triage`] has the operators' words: causes, filters, rules, jobs.
//!
//! Beside both: the [`ledger`] decides what a request under a known idempotency key is answered, the [`window`] which
//! ids were seen before, the [`ladder`] what a conflict or a number in a sequence means, and [`names`] has every name
//! that leaves the process.
//!
//! This crate must not contain async code, I/O, a clock or a random source. `cargo xtask tidy` checks that.

mod calls;

mod guards;

pub mod moment;

pub mod random;

pub mod policy;

pub mod event;

pub mod queue_entry;

pub mod scheduler;

pub mod triage;

pub mod window;

pub mod ladder;

pub mod saga;

pub mod ledger;

pub mod names;

pub mod nodes;

pub mod local_slots;

#[doc(hidden)]
pub mod planted;

#[cfg(feature = "serde")]
pub mod config;
mod sync;

pub use calls::{backoff, classify, disposition, jitter, observe, report, run};

pub use guards::{breaker, budget, limit, rate};

pub use backoff::Backoff;
pub use breaker::Breaker;
pub use budget::Budget;
pub use classify::Classify;
pub use disposition::{Disposition, Executed, Fault};
pub use event::Event;
pub use jitter::Jitter;
pub use limit::Limit;
pub use moment::{Clock, Moment};
pub use observe::Observer;
pub use policy::{Policy, PolicyBuilder, PolicyError};
pub use queue_entry::QueueEntry;
pub use random::{RandomSource, SeededRandom};
pub use rate::Rate;
pub use report::{Report, StopReason, Stopped};
pub use run::{Run, Verdict};
