//! Settling: the outcome of attempts, under the fence.
//!
//! [`fast`] settles with one statement what needs no lookup; [`slow`] takes the rest, in a transaction.

pub(super) mod fast;

pub(super) mod slow;
