//! Every order of messages within a small scope: finds what random runs seldom reach.
//!
//! The world is as small as it can be and still go wrong: one process, two shards that are each taken at most
//! twice, three events. Everything that may happen next is a [`Step`]: a message reaches the scheduler, early
//! or late or twice; the store performs an action, or fails, or performs it and answers that the outcome is
//! unknown; an attempt ends; an operator recalls, pauses, resumes; a shard is taken from its own owner, or
//! handed off. The [`search()`] goes through all orders of steps up to a depth, with the production scheduler
//! and the in-memory store. It runs each path from the beginning, because a scheduler cannot be copied; it
//! does not enter a state again whose fingerprint it has seen.
//!
//! In each state it checks the invariants, then continues without faults until no action is planned. All
//! events must be done by then, whether or not answers of earlier epochs still arrive. A state from which
//! events are stuck for ever is therefore found where it arises, not a hundred steps later.
//!
//! It leaves out several processes, handlers' transactions, workers' leases, and time except for what the
//! scheduler waits for. The [simulation](crate::simulation) has those.

#![allow(clippy::expect_used, reason = "a search that is wrong itself has to stop")]

mod scenario;

mod step;

mod world;

mod calm;

mod explore;

pub use explore::{Explored, Limits, Stuck, search};
#[cfg(feature = "planted")]
pub use scenario::SEARCHED;
pub use scenario::Scenario;
pub use step::Step;
